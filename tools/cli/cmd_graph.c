// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
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
#include "tools/text/arena.h"
#include "tools/text/output.h"
#include "tools/cli/nodes_view.h"
#include "tools/cli/query.h"

static const char *const examples[] = {"lien graph --format svg > job.svg",
	"a picture: GPUs, processes, their memory, who imports it",
	"lien graph --format svg --slurm 4711 > job.svg", "the same of all nodes of a Slurm job",
	"lien graph | dot -Tpdf > job.pdf", "a picture made by graphviz, with registrations",
	"lien graph --format json --output job.json", "every allocation, handle and mapping", NULL};

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
	.examples = examples,
};

static int print_json(const json_t *result, FILE *out)
{
	lien_print_json(out, result);
	return 0;
}

static int print_svg(const json_t *result, FILE *out)
{
	char host[HOST_NAME_MAX + 1] = "", when[64] = "", *names = NULL;
	const json_t *file = json_object_get(result, "file"), *node;
	time_t now = file ? lien_get_number(result, "t") : (uint64_t)time(NULL);
	struct tm local;
	size_t i;
	int err;

	gethostname(host, sizeof(host) - 1);
	json_array_foreach (json_object_get(result, "nodes"), i, node)
		names = lien_append(
			names, ", ", "%s%s", names ? "" : "on ", json_string_value(node));
	if (file) /* it does not say on which host it was made */
		names = lien_format("in %s", basename(json_string_value(file)));
	else if (!names)
		names = lien_format("on %s", host);
	if (localtime_r(&now, &local))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S %z", &local);
	err = lien_graph_svg(result, names, when, out);
	free(names);
	return err;
}

static const struct format {
	const char *name;
	int (*print)(const json_t *result, FILE *out);
} formats[] = {{"dot", lien_graph_dot}, {"svg", print_svg}, {"json", print_json}};

static const struct format *find_format(const char *name)
{
	const struct format *format = formats;

	while (strcmp(format->name, name) != 0)
		format++;
	return format;
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
	const char *socket = NULL, *name = NULL, *path = NULL;
	bool json = false;
	static struct lien_nodes_view nodes;
	struct lien_query query = {.command = usage.command,
		.timeout_ms = LIEN_QUERY_MS,
		.nodes = &nodes,
		.usage = &usage};
	const struct lien_option options[] = {
		{"format", LIEN_OPTION_CHOICE, &name, "dot|svg|json", "default: dot", 0},
		{"output", LIEN_OPTION_STRING, &path, "FILE", "write to this file", 0},
		LIEN_CLIENT_OPTIONS(&json, &socket), LIEN_FROM_OPTION(&query.from),
		LIEN_NODES_OPTIONS(&nodes.options), {}};
	const struct format *format;
	uint64_t wall_ns = 0;
	json_t *result;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	format = find_format(name ? name : json ? "json" : "dot");
	if (json && format->print != print_json)
		return lien_usage_error(&usage, "--json and --format %s cannot be combined", name);
	query.socket = socket;
	query.code = &code;
	query.from.wall_ns = &wall_ns;
	result = lien_query(&query, json_pack("{s:s}", "op", "graph"));
	lien_nodes_view_free(&nodes);
	if (!result)
		return code;
	if (query.from.path && format->print == print_svg) {
		json_object_set_new(result, "file", json_string(query.from.path));
		json_object_set_new(result, "t", json_integer(wall_ns / 1000000000));
	}
	if (format->print != print_json)
		lien_drop_arena(result);
	code = write_graph(result, format, path);
	if (!code)
		lien_warn_hidden(usage.command, result);
	json_decref(result);
	return code;
}
