// SPDX-License-Identifier: BSD-2-Clause
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cli/commands.h"
#include "tools/picture/dot.h"
#include "tools/picture/graph_svg.h"
#include "tools/cli/idle.h"
#include "tools/cli/options.h"
#include "tools/text/process_text.h"
#include "tools/text/output.h"
#include "tools/cli/nodes_view.h"
#include "tools/cli/out_file.h"
#include "tools/cli/query.h"

static const char *const examples[] = {"lien graph --format svg -o job.svg",
	"a picture: GPUs, processes, their memory, who imports it",
	"lien graph --format svg --slurm 4711 -o job.svg", "the same of all nodes of a Slurm job",
	"lien graph | dot -Tpdf > job.pdf", "a picture made by graphviz, with registrations",
	"lien graph --format json -o job.json", "every allocation, handle and mapping", NULL};

static const struct lien_usage usage = {
	.command = "lien graph",
	.arguments = "",
	.summary = "Prints the graph of who allocated, exported, imported, mapped and registered "
		   "what. "
		   "dot (the default) is for graphviz and shows allocations that are alike as one "
		   "box; "
		   "svg is a picture by GPU and process, readable for 8 ranks and more; "
		   "json has all of them.",
	.apart = (const char *const[]){"nodes", "from", "slurm", "from", NULL},
	.needs = (const char *const[]){"force", "output", NULL},
	.examples = examples,
};

static int print_json(const json_t *result, const struct lien_taken *taken, FILE *out)
{
	(void)taken;
	lien_print_json(out, result);
	return 0;
}

static int print_dot(const json_t *result, const struct lien_taken *taken, FILE *out)
{
	(void)taken;
	return lien_graph_dot(result, out);
}

static int print_svg(const json_t *result, const struct lien_taken *taken, FILE *out)
{
	const time_t seconds = taken->ns / 1000000000;
	char when[64] = "", *names = NULL;
	const json_t *node;
	struct tm local;
	size_t i;
	int err;

	json_array_foreach (json_object_get(result, "nodes"), i, node)
		names = lien_append(
			names, ", ", "%s%s", names ? "" : "on ", json_string_value(node));
	if (seconds && localtime_r(&seconds, &local))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %z", &local);
	err = lien_graph_svg(result, names ? names : taken->where, when, out);
	free(names);
	return err;
}

static const struct format {
	const char *name;
	int (*print)(const json_t *result, const struct lien_taken *taken, FILE *out);
} formats[] = {{"dot", print_dot}, {"svg", print_svg}, {"json", print_json}};

static const struct format *find_format(const char *name)
{
	const struct format *format = formats;

	while (strcmp(format->name, name) != 0)
		format++;
	return format;
}

static int write_graph(const json_t *result, const struct lien_taken *taken,
	const struct format *format, const char *path, bool force)
{
	FILE *out = path ? lien_out_open(usage.command, path, force) : stdout;
	int err;

	if (!out)
		return LIEN_EXIT_FAILURE;
	err = format->print(result, taken, out);
	if (path)
		return lien_out_close(usage.command, path, out, err);
	return err ? lien_complain(usage.command, "out of memory") : LIEN_EXIT_OK;
}

int lien_cmd_graph(int argc, char **argv)
{
	const char *name = NULL, *path = NULL;
	bool json = false, force = false;
	static struct lien_nodes_view nodes;
	struct lien_taken taken = {.ns = time(NULL) * 1000000000ull};
	int code;
	struct lien_query query = {.from.taken = &taken,
		.command = usage.command,
		.code = &code,
		.timeout_ms = LIEN_QUERY_MS,
		.nodes = &nodes,
		.usage = &usage};
	const struct lien_option options[] = {
		{"format", LIEN_OPTION_CHOICE, &name, "dot|svg|json", "default: dot", 0},
		{"o,output", LIEN_OPTION_STRING, &path, "FILE",
			"write to this file instead of standard output", 0},
		{"force", LIEN_OPTION_FLAG, &force, NULL, "overwrite a file that exists", 0},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), LIEN_FROM_OPTION(&query.from),
		LIEN_NODES_OPTIONS(&nodes.options), {}};
	char host[HOST_NAME_MAX + 1] = "";
	const struct format *format;
	json_t *result;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	format = find_format(name ? name : json ? "json" : "dot");
	if (json && format->print != print_json)
		return lien_usage_error(&usage, "--json and --format %s cannot be combined", name);
	gethostname(host, sizeof(host) - 1);
	snprintf(taken.where, sizeof(taken.where), "on %s", host);
	result = lien_query(&query, json_pack("{s:s}", "op", "graph"));
	lien_nodes_view_free(&nodes);
	if (!result)
		return code;
	if (format->print != print_json)
		lien_drop_arena(result);
	code = write_graph(result, &taken, format, path, force);
	if (!code)
		lien_warn_hidden(usage.command, result);
	json_decref(result);
	return code;
}
