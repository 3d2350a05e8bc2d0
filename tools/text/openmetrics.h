/* SPDX-License-Identifier: BSD-2-Clause */
/* The reply to `metrics` as text for Prometheus. docs/metrics.md lists what is in it. */
#ifndef LIEN_TEXT_OPENMETRICS_H
#define LIEN_TEXT_OPENMETRICS_H

#include <stdio.h>

#include <jansson.h>

enum lien_metrics_format {
	LIEN_METRICS_OPEN,	 /* OpenMetrics 1.0 */
	LIEN_METRICS_PROMETHEUS, /* Prometheus's own text format 0.0.4 */
};

/* The media types, for HTTP. */
#define LIEN_METRICS_OPEN_TYPE	     "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define LIEN_METRICS_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

void lien_print_metrics(FILE *out, const json_t *metrics, enum lien_metrics_format format);

#endif
