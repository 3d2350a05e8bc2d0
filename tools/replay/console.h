/* SPDX-License-Identifier: BSD-2-Clause */
/* Commands for a replay at its quiet point, one per line. */
#ifndef LIEN_REPLAY_CONSOLE_H
#define LIEN_REPLAY_CONSOLE_H

#include "tools/replay/job.h"

#define LIEN_CONSOLE_COMMANDS "verify, change SEED, free, quit"

/*
 * Reads commands from fd until quit or the end of input, and answers each with a line on out.
 * Returns 0, or -errno when the job cannot continue; mismatches only set job->failed. *last: totals
 * of the last verify.
 */
int lien_console_run(struct lien_job *job, int fd, FILE *out, struct lien_job_totals *last);

/* The verify command; prints its answer to out. */
int lien_console_verify(struct lien_job *job, FILE *out, struct lien_job_totals *totals);

#endif
