// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/graph_dot.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/query.h"

static const char *const examples[] = {"lien graph | dot -Tsvg > job.svg",
	"a picture: processes, their memory, who imports it",
	"lien graph --format json --output job.json", "every allocation, handle and mapping", NULL};

static const struct lien_usage usage = {
	.command = "lien graph",
	.arguments = "",
	.summary = "Prints the graph of who allocated, exported, imported, mapped and registered "
		   "what.\n"
		   "dot (the default) is for graphviz and shows allocations that are alike as one "
		   "box;\n"
		   "json has all of them.",
	.examples = examples,
};

static int print_graph(const json_t *result, bool json, FILE *out)
{
	if (!json)
		return lien_graph_dot(result, out);
	lien_print_json(out, result);
	return 0;
}

static int write_graph(const json_t *result, bool json, const char *path)
{
	FILE *out = path ? fopen(path, "we") : stdout;
	int err;

	if (!out)
		return lien_complain(usage.command, "cannot write %s: %s", path, strerror(errno));
	err = print_graph(result, json, out);
	if (!path)
		return err ? lien_complain(usage.command, "out of memory") : LIEN_EXIT_OK;
	if (!err && (fflush(out) || ferror(out)))
		err = -errno;
	if (fclose(out) && !err)
		err = -errno;
	if (err)
		return lien_complain(usage.command, "cannot write %s: %s", path, strerror(-err));
	return LIEN_EXIT_OK;
}

int lien_cmd_graph(int argc, char **argv)
{
	const char *socket = NULL, *from = NULL, *format = NULL, *path = NULL;
	bool json = false;
	const struct lien_option options[] = {
		{"format", LIEN_OPTION_STRING, &format, "NAME", "dot (default) or json", 0},
		{"output", LIEN_OPTION_STRING, &path, "FILE", "write to this file", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), LIEN_FROM_OPTION(&from), {}};
	struct lien_query query = {.command = usage.command, .timeout_ms = LIEN_QUERY_MS};
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (format && strcmp(format, "dot") && strcmp(format, "json"))
		return lien_usage_error(&usage, "--format %s is neither dot nor json", format);
	if (json && format && !strcmp(format, "dot"))
		return lien_usage_error(&usage, "--json and --format dot exclude each other");
	json |= format && !strcmp(format, "json");
	query.socket = socket;
	query.from = from;
	result = lien_query(&query, json_pack("{s:s}", "op", "graph"));
	if (!result)
		return LIEN_EXIT_FAILURE;
	code = write_graph(result, json, path);
	json_decref(result);
	return code;
}
