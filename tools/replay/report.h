/* SPDX-License-Identifier: BSD-2-Clause */
/* Reports of a replay. */
#ifndef LIEN_REPLAY_REPORT_H
#define LIEN_REPLAY_REPORT_H

#include "tools/replay/job.h"

/* Warns on stderr about data that the recording lacks, and parts that are not replayed. */
void lien_report_script(const struct lien_script *script, const char *path);

/* At the quiet point: prints a line per worker on out, then "replay: ready"; warnings on stderr. */
void lien_report_ready(const struct lien_job *job, FILE *out);

/* Prints the summary as JSON on stdout. verified is NULL if nothing was verified. -ENOMEM. */
int lien_report_json(
	const struct lien_job *job, const char *path, const struct lien_job_totals *verified);

#endif
