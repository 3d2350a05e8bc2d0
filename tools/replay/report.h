/* SPDX-License-Identifier: BSD-2-Clause */
/* What a replay says about itself. */
#ifndef LIEN_REPLAY_REPORT_H
#define LIEN_REPLAY_REPORT_H

#include <tools/replay/job.h>

/* What the recording lacks, or what of it is not replayed: warnings on stderr. */
void lien_report_script(const struct lien_script *script, const char *path);

/* At the quiet point: a line per worker on out, then "replay: ready"; warnings on stderr. */
void lien_report_ready(const struct lien_job *job, FILE *out);

/* The summary as JSON, on stdout. verified may be NULL: nothing was. -ENOMEM. */
int lien_report_json(
	const struct lien_job *job, const char *path, const struct lien_job_totals *verified);

#endif
