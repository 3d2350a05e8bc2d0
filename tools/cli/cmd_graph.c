// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/commands.h"
#include "tools/picture/dot.h"
#include "tools/picture/graph_svg.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

static const char *const examples[] = {"lien graph --format svg > job.svg",
	"a picture: GPUs, processes, their memory, who imports it",
	"lien graph | dot -Tpdf > job.pdf", "a picture made by graphviz, with registrations",
	"lien graph --format json --output job.json", "every allocation, handle and mapping", NULL};

static const struct lien_usage usage = {
	.command = "lien graph",
	.arguments = "",
	.summary = "Prints the graph of who allocated, exported, imported, mapped and registered "
		   "what.\n"
		   "dot (the default) is for graphviz and shows allocations that are alike as one "
		   "box;\n"
		   "svg is a picture by GPU and process, readable for 8 ranks and more;\n"
		   "json has all of them.",
	.examples = examples,
};

static int print_json(const json_t *result, FILE *out)
{
	lien_print_json(out, result);
	return 0;
}

static int print_svg(const json_t *result, FILE *out)
{
	char host[HOST_NAME_MAX + 1] = "", when[64] = "";
	time_t now = time(NULL);
	struct tm local;

	gethostname(host, sizeof(host) - 1);
	if (localtime_r(&now, &local))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %z", &local);
	return lien_graph_svg(result, host, when, out);
}

static const struct format {
	const char *name;
	int (*print)(const json_t *result, FILE *out);
} formats[] = {{"dot", lien_graph_dot}, {"svg", print_svg}, {"json", print_json}, {}};

static const struct format *find_format(const char *name)
{
	for (const struct format *format = formats; format->name; format++) {
		if (!strcmp(format->name, name))
			return format;
	}
	return NULL;
}

static int write_graph(const json_t *result, const struct format *format, const char *path)
{
	FILE *out = path ? fopen(path, "we") : stdout;
	int err;

	if (!out)
		return lien_complain(usage.command, "cannot write %s: %s", path, strerror(errno));
	err = format->print(result, out);
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
	const char *socket = NULL, *from = NULL, *name = NULL, *path = NULL;
	bool json = false;
	const struct lien_option options[] = {
		{"format", LIEN_OPTION_STRING, &name, "NAME", "dot (default), svg or json", 0},
		{"output", LIEN_OPTION_STRING, &path, "FILE", "write to this file", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), LIEN_FROM_OPTION(&from), {}};
	struct lien_query query = {.command = usage.command, .timeout_ms = LIEN_QUERY_MS};
	const struct format *format;
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	format = find_format(name ? name : json ? "json" : "dot");
	if (!format)
		return lien_usage_error(&usage, "--format %s is neither dot, svg nor json", name);
	if (json && format->print != print_json)
		return lien_usage_error(&usage, "--json and --format %s exclude each other", name);
	query.socket = socket;
	query.from = from;
	result = lien_query(&query, json_pack("{s:s}", "op", "graph"));
	if (!result)
		return LIEN_EXIT_FAILURE;
	code = write_graph(result, format, path);
	json_decref(result);
	return code;
}
