/* SPDX-License-Identifier: BSD-2-Clause */
/* The exports of a recording, by the number that joins them with their imports. */
#ifndef LIEN_REPLAY_SHARE_H
#define LIEN_REPLAY_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <bsd/sys/tree.h>

struct lien_replay_share {
	RB_ENTRY(lien_replay_share) tree;
	uint64_t number;     /* lien_event.share.share */
	uint64_t allocation; /* its number */
	uint32_t exporter;   /* index of the process */
	uint32_t op;	     /* index of the call there */
	uint32_t type;	     /* CUmemAllocationHandleType */
	uint32_t imports;    /* recorded ones that are replayed */

	/* While the replay runs. */
	bool arrived;
	int fd; /* -1: none, or every import is served */
	uint32_t served;
	uint8_t fabric[64];
};

RB_HEAD(lien_replay_share_tree, lien_replay_share);

struct lien_replay_share *lien_replay_share_find(
	struct lien_replay_share_tree *shares, uint64_t number);

/* NULL: no memory. The number must be new. */
struct lien_replay_share *lien_replay_share_add(
	struct lien_replay_share_tree *shares, uint64_t number);

/* Closes what is open. */
void lien_replay_share_clear(struct lien_replay_share_tree *shares);

/* In order of number: the first, and the one after. NULL: no more. */
struct lien_replay_share *lien_replay_share_first(struct lien_replay_share_tree *shares);
struct lien_replay_share *lien_replay_share_next(struct lien_replay_share *share);

#endif
