/* SPDX-License-Identifier: BSD-2-Clause */
/* The thread's side of asking NCCL's RAS: for agent/join/ras.c alone. */
#ifndef LIEN_RAS_JOB_H
#define LIEN_RAS_JOB_H

#include "agent/join/netns.h"
#include "agent/join/ras_ask.h"
#include "agent/ras/ras_match.h"
#include "agent/core/worker.h"

/* Limit of addresses to examine per process and job. */
#define LIEN_RAS_PLACES_MAX 256

/* An ncclComm_t that the process has used. */
struct lien_ras_place {
	uint64_t address;
	uint64_t hash; /* from an earlier search; 0: search for it */
	int row;       /* index of the process's row; -1: none */
	int32_t rank;  /* -1: not known */
};

/* A process. The caller fills in the members up to `uid`, and the places. */
struct lien_ras_subject {
	uint32_t pid, uid;
	uint64_t start;
	struct lien_ras_place *place;
	unsigned places;

	bool gone; /* it has ended: ignore what follows */
	bool asked, done, whole;
	uint64_t netns;
	uint16_t port;
	int32_t own_pid; /* as the process itself and NCCL see it; -1: not known */
	bool shared_pid; /* another process of the job has the same */
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

/* Asks RAS, and searches the processes' memory for the answers. Runs in the thread. */
void lien_ras_job_run(struct lien_job *job);
void lien_ras_job_free(struct lien_job *job);

#endif
