/* SPDX-License-Identifier: BSD-2-Clause */
/* What the thread does that asks NCCL's RAS: for agent/join/ras.c alone. */
#ifndef LIEN_RAS_JOB_H
#define LIEN_RAS_JOB_H

#include "agent/join/netns.h"
#include "agent/join/ras_ask.h"
#include "agent/ras/ras_match.h"
#include "agent/core/worker.h"

/* Of a process more addresses are not looked at in one go. */
#define LIEN_RAS_PLACES_MAX 256

/* An ncclComm_t that the process has used. */
struct lien_ras_place {
	uint64_t address;
	uint64_t hash; /* as found earlier; 0: to be looked for */
	int row;       /* of the process's rows; -1: none */
	int32_t rank;  /* -1: not known */
};

/* A process: up to `uid` filled in by who asks, with the places. */
struct lien_ras_subject {
	uint32_t pid, uid;
	uint64_t start;
	struct lien_ras_place *place;
	unsigned places;

	bool gone; /* it has ended: nothing of what follows counts */
	bool asked, done, whole;
	uint64_t netns;
	uint16_t port;
	int32_t own_pid; /* as the process itself sees it, and NCCL names it; -1: not known */
	bool shared_pid; /* another one that is asked about has the same */
	unsigned job;
	char problem[LIEN_RAS_PROBLEM];
	char version[LIEN_RAS_VERSION];
	struct lien_ras_row *row;
	unsigned rows;
};

struct lien_ras_job {
	struct lien_job job;
	struct lien_netns *netns;
	struct lien_ras_subject *subject;
	unsigned subjects;
};

/* Asks, and looks for what it is told in the processes' memory. In the thread. */
void lien_ras_job_run(struct lien_job *job);
void lien_ras_job_free(struct lien_job *job);

#endif
