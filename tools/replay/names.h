/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The names (allocation handles, communicators, registrations) that a recorded process has, and the
 * corresponding values in the process that replays it. A process can have several references to a
 * name (a retained handle); each has an actual value of its own.
 */
#ifndef LIEN_REPLAY_NAMES_H
#define LIEN_REPLAY_NAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <bsd/sys/queue.h>
#include <bsd/sys/tree.h>

enum lien_replay_name_kind {
	LIEN_REPLAY_NAME_HANDLE,
	LIEN_REPLAY_NAME_COMM,
	LIEN_REPLAY_NAME_REGISTRATION,
	LIEN_REPLAY_NAME_WINDOW,
};

struct lien_replay_name {
	RB_ENTRY(lien_replay_name) tree;
	TAILQ_ENTRY(lien_replay_name) order; /* in order of first appearance */
	enum lien_replay_name_kind kind;
	uint32_t flags; /* LIEN_OP_* of the call that returned it */
	uint64_t recorded;
	uint64_t
		tag; /* handle: number of its allocation; registration: its recorded communicator */
	uint32_t count, room;
	uint64_t *actual; /* [count], the latest last */
};

RB_HEAD(lien_replay_name_tree, lien_replay_name);
TAILQ_HEAD(lien_replay_name_list, lien_replay_name);

struct lien_replay_names {
	struct lien_replay_name_tree tree;
	struct lien_replay_name_list order;
};

void lien_replay_names_init(struct lien_replay_names *names);
void lien_replay_names_clear(struct lien_replay_names *names);

/* Returns NULL for an unknown name. */
struct lien_replay_name *lien_replay_names_find(
	struct lien_replay_names *names, enum lien_replay_name_kind kind, uint64_t recorded);

/* Adds a reference to the name. NULL: no memory. An existing name keeps its tag and flags. */
struct lien_replay_name *lien_replay_names_push(struct lien_replay_names *names,
	enum lien_replay_name_kind kind, uint64_t recorded, uint64_t actual, uint64_t tag,
	uint32_t flags);

/* Removes the latest reference and returns its actual value; frees name with the last one. */
uint64_t lien_replay_names_pop(struct lien_replay_names *names, struct lien_replay_name *name);

/* Returns the actual value of the latest reference. */
uint64_t lien_replay_name_actual(const struct lien_replay_name *name);

#endif
