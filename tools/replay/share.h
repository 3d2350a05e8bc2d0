/* SPDX-License-Identifier: BSD-2-Clause */
/* The exports of a recording, by the number that matches them with their imports. */
#ifndef LIEN_REPLAY_SHARE_H
#define LIEN_REPLAY_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <bsd/sys/tree.h>

struct lien_replay_share {
	RB_ENTRY(lien_replay_share) tree;
	uint64_t number;     /* lien_event.share.share */
	uint64_t allocation; /* its number */
	uint32_t exporter;   /* index of the exporting process */
	uint32_t op;	     /* index of the call there */
	uint32_t type;	     /* CUmemAllocationHandleType */
	uint32_t imports;    /* number of recorded imports that are replayed */

	/* State while the replay runs. */
	bool arrived;
	int fd; /* -1: none, or every import has been served */
	uint32_t served;
	uint8_t fabric[64];
};

RB_HEAD(lien_replay_share_tree, lien_replay_share);

struct lien_replay_share *lien_replay_share_find(
	struct lien_replay_share_tree *shares, uint64_t number);

/* Returns NULL: no memory. The number must be new. */
struct lien_replay_share *lien_replay_share_add(
	struct lien_replay_share_tree *shares, uint64_t number);

/* Closes open fds and frees all. */
void lien_replay_share_clear(struct lien_replay_share_tree *shares);

/* Iterate in order of number: the first, and the next. NULL: no more. */
struct lien_replay_share *lien_replay_share_first(struct lien_replay_share_tree *shares);
struct lien_replay_share *lien_replay_share_next(struct lien_replay_share *share);

#endif
