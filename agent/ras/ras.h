/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parses what NCCL's RAS answers to a client: the communicators, and the rank of each process; and
 * finds which of these communicators is at an address of a process. Plain C. The text comes from a
 * process that may say anything: every number is checked, nothing is read beyond its end, and
 * nothing is kept beyond the limits below.
 *
 * NCCL 2.28.7 and later answer in JSON ("SET FORMAT json"): every communicator, every rank. Up to
 * 2.28.9 a comma is missing in the part about ranks that did not answer
 * (src/ras/client_support.cc), so this parser does without commas. Older versions answer in words,
 * and lien does not ask them (agent/join/ras_ask.h).
 */
#ifndef LIEN_RAS_H
#define LIEN_RAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIEN_RAS_COMMS_MAX 32768
#define LIEN_RAS_RANKS_MAX 131072
#define LIEN_RAS_VERSION   24
#define LIEN_RAS_PROBLEM   160 /* of a line that says why there is no answer */

/* A numeric address; the one at which a process listens identifies its node. */
struct lien_ras_host {
	uint8_t family; /* 4, 6; 0: not known */
	uint8_t address[16];
};

/* A communicator; according to NCCL its three hashes together identify it. */
struct lien_ras_comm {
	uint64_t hash; /* 0: nonsense, or a communicator that is being made; to be ignored */
	uint64_t host_hash, pid_hash;
	int32_t nranks; /* -1: not reported */
};

struct lien_ras_rank {
	uint32_t comm; /* index in .comm */
	/* -1: not reported; the pid is in the process's own pid namespace */
	int32_t rank, pid, device;
	bool missing; /* did not answer, or is no longer a member */
	struct lien_ras_host host;
};

struct lien_ras_answer {
	struct lien_ras_comm *comm;
	struct lien_ras_rank *rank;
	unsigned comms, comms_room, ranks, ranks_room;
	unsigned named;			/* number of communicators according to the answer */
	bool whole;			/* complete, and no limit was reached */
	char version[LIEN_RAS_VERSION]; /* NCCL's, printable; "": not reported */
};

/* Fills in what could be read, also of a truncated answer (then .whole is false). -EBADMSG: it is
 * not a RAS answer; -ENOMEM. The caller calls lien_ras_answer_clear() in any case. */
int lien_ras_parse_json(const char *text, size_t size, struct lien_ras_answer *answer);
void lien_ras_answer_clear(struct lien_ras_answer *answer);

/* Parses the decimal number at the beginning; -1: none, negative, or too large. */
int32_t lien_ras_number(const char *text);

/*
 * NCCL keeps the hash that RAS reports in the communicator's structure (struct ncclComm in
 * src/include/comm.h), at an offset that depends on the version, so the hash is found by its value.
 * The structure shows where it ends: its first and its last eight bytes are equal, and a
 * static_assert in NCCL (2.24 to 2.30) guarantees that they are first and last. In all of these
 * versions rank and size follow the hash, 32 bits each; if they equal what RAS says, there is no
 * doubt.
 */
/* Anything longer is not a structure. That of 2.28.9 takes 1.03 MiB. */
#define LIEN_RAS_STRUCTURE_MAX (16u << 20)

/* A communicator that may belong to a process. */
struct lien_ras_row {
	uint64_t hash, host_hash, pid_hash;
	int32_t rank;	/* of the process; -1: not reported */
	int32_t nranks; /* -1: not reported */
	int32_t device; /* CUDA ordinal; -1: not reported */
	bool sure;	/* RAS says it is this process's; else that pid may mean another process */
	uint64_t address; /* where it was found; 0: not found */
};

/* Returns the size of the structure at the beginning of memory; 0: it does not end there. */
size_t lien_ras_structure(const void *memory, size_t size);

/*
 * Returns the row that the structure matches, and its rank (-1: not known). -1: none, or more than
 * one could be meant.
 */
int lien_ras_match(const void *structure, size_t size, const struct lien_ras_row *row,
	unsigned count, int32_t *rank);

/* Rows that were found at several addresses become unknown: .address 0. `from` has one entry per
 * address of the process, the row's index or -1; those entries become -1. */
void lien_ras_match_once(int *from, unsigned addresses);

/* What is known of a process, for the views. */
struct lien_ras_report {
	uint64_t t_asked;		/* CLOCK_MONOTONIC ns */
	char problem[LIEN_RAS_PROBLEM]; /* why there is no answer; "": there is one */
	char version[LIEN_RAS_VERSION]; /* NCCL's; "": not reported */
	unsigned job;			/* number of communicators of its job */
	bool whole;			/* none of this process's can be missing below */
	/* its communicators; .address is their address in the process */
	struct lien_ras_row *row;
	unsigned rows;
};

void lien_ras_report_free(struct lien_ras_report *report);

#endif
