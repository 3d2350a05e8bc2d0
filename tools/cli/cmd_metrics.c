// SPDX-License-Identifier: BSD-2-Clause
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/cli/query.h"
#include "tools/text/json_text.h"
#include "tools/text/openmetrics.h"

static const char *const examples[] = {"lien metrics", "what lien-exporter would serve now",
	"lien metrics --format prometheus > lien.prom", "for node_exporter's textfile collector",
	NULL};

static const struct lien_usage usage = {
	.command = "lien metrics",
	.arguments = "",
	.summary =
		"Prints figures for a monitoring system: memory by process, GPU, library and tag, "
		"transactions, their durations and refusals, events, losses, host memory. Root "
		"gets those of all processes, others those of their own and the node's sums. "
		"lien-exporter serves the same over HTTP.",
	.examples = examples,
};

int lien_cmd_metrics(int argc, char **argv)
{
	int code;
	struct lien_query query = {
		.command = usage.command, .code = &code, .timeout_ms = LIEN_QUERY_MS};
	const char *format = NULL;
	bool json = false;
	const struct lien_option options[] = {
		{"format", LIEN_OPTION_CHOICE, &format, "openmetrics|prometheus",
			"OpenMetrics (default), or Prometheus's own format, which is all that "
			"node_exporter reads",
			0},
		LIEN_CLIENT_OPTIONS(&json, &query.socket), {}};
	json_t *result;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	result = lien_query(&query, json_pack("{s:s}", "op", "metrics"));
	if (!result)
		return code;
	if (json)
		lien_print_json(stdout, result);
	else
		lien_print_metrics(stdout, result,
			format && !strcmp(format, "prometheus") ? LIEN_METRICS_PROMETHEUS
								: LIEN_METRICS_OPEN);
	json_decref(result);
	return LIEN_EXIT_OK;
}
