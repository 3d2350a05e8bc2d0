/* SPDX-License-Identifier: BSD-2-Clause */
/* What is known of a process from NCCL's RAS: for the views. Plain data. */
#ifndef LIEN_RAS_REPORT_H
#define LIEN_RAS_REPORT_H

#include "agent/graph/graph.h"
#include "agent/ras/ras_match.h"
#include "agent/ras/ras_parse.h"

struct lien_ras_report {
	LIST_ENTRY(lien_ras_report) next;
	uint32_t pid;
	uint64_t start;
	uint64_t t_asked;		/* CLOCK_MONOTONIC ns; 0: not yet */
	char problem[LIEN_RAS_PROBLEM]; /* why it is not answered; "": it is */
	char version[LIEN_RAS_VERSION]; /* of NCCL; "": not told */
	unsigned job;			/* how many communicators its job has */
	bool whole;			/* none of this process's can be missing below */
	struct lien_ras_row *row;	/* its communicators; .address is where it has them */
	unsigned rows;
};

/* Where the views get it; .of NULL, or an answer of NULL: nobody has asked. */
struct lien_view_ras {
	const struct lien_ras_report *(*of)(void *context, const struct lien_process *process);
	void *context;
	bool pending; /* is being asked now */
};

/* True of a process that may have communicators whose making was not seen. */
bool lien_comms_may_lack(const struct lien_process *process);

#endif
