/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What NCCL's RAS answers to a client: which communicators there are, and which process has which
 * rank. Plain C. The text comes from a process that may say anything: every number is checked,
 * nothing is read behind its end, and no more is kept than the limits below.
 *
 * NCCL 2.28.7 and later answer in JSON ("SET FORMAT json"): every communicator, every rank. Up to
 * 2.28.9 a comma is missing in what is told of ranks that did not answer
 * (src/ras/client_support.cc), so this reader does without commas. Older versions answer
 * in words, and are not asked (agent/join/ras_ask.h).
 */
#ifndef LIEN_RAS_PARSE_H
#define LIEN_RAS_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIEN_RAS_COMMS_MAX 32768
#define LIEN_RAS_RANKS_MAX 131072
#define LIEN_RAS_VERSION   24
#define LIEN_RAS_PROBLEM   160 /* of a line that says why there is no answer */

/* A numeric address; which one a process listens at tells its node. */
struct lien_ras_host {
	uint8_t family; /* 4, 6; 0: not known */
	uint8_t address[16];
};

/* NCCL says that the three hashes together name a communicator. */
struct lien_ras_comm {
	uint64_t hash; /* 0: nonsense, or a communicator that is being made: none of interest */
	uint64_t host_hash, pid_hash;
	int32_t nranks; /* -1: not told */
};

struct lien_ras_rank {
	uint32_t comm;		   /* index in .comm */
	int32_t rank, pid, device; /* -1: not told; the pid is that of its own pid namespace */
	bool missing;		   /* it did not answer, or is no member any more */
	struct lien_ras_host host;
};

struct lien_ras_answer {
	struct lien_ras_comm *comm;
	struct lien_ras_rank *rank;
	unsigned comms, ranks;
	unsigned named;			/* how many communicators it says there are */
	bool whole;			/* it has its end, and no limit was reached */
	char version[LIEN_RAS_VERSION]; /* of NCCL, printable; "": not told */
};

/* Fills in what could be read, also of an answer that is cut off (then .whole is false). -EBADMSG:
 * it is nothing of the kind. -ENOMEM. The caller calls lien_ras_answer_clear() in any case. */
int lien_ras_parse_json(const char *text, size_t size, struct lien_ras_answer *answer);
void lien_ras_answer_clear(struct lien_ras_answer *answer);

/* -EINVAL: not a numeric address. */
int lien_ras_host_parse(const char *text, struct lien_ras_host *host);

/* The decimal number at the beginning; -1: none that fits and is not negative. */
int32_t lien_ras_number(const char *text);

#endif
