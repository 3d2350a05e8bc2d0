/* SPDX-License-Identifier: BSD-2-Clause */
/* NCCL RAS's report on a process, for the views. Plain data. */
#ifndef LIEN_RAS_REPORT_H
#define LIEN_RAS_REPORT_H

#include "agent/graph/graph.h"
#include "agent/ras/ras.h"

struct lien_ras_report {
	LIST_ENTRY(lien_ras_report) next;
	uint32_t pid;
	uint64_t start;
	uint64_t t_asked;		/* CLOCK_MONOTONIC ns; 0: not yet */
	char problem[LIEN_RAS_PROBLEM]; /* why there is no answer; "": there is one */
	char version[LIEN_RAS_VERSION]; /* NCCL's; "": not reported */
	unsigned job;			/* number of communicators of its job */
	bool whole;			/* none of this process's can be missing below */
	/* its communicators; .address is their address in the process */
	struct lien_ras_row *row;
	unsigned rows;
};

/* How the views get a report; .of NULL, or a result of NULL: RAS has not been asked. */
struct lien_view_ras {
	const struct lien_ras_report *(*of)(void *context, const struct lien_process *process);
	void *context;
	bool pending; /* a question is under way */
};

/* Returns true if the process may have communicators whose making was not seen. */
bool lien_comms_may_lack(const struct lien_process *process);

#endif
