/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inside a worker: the process that stands for one recorded process. Functions return 0 or -errno;
 * of -EIO the reason is in .text, for the parent to print. -ECANCELED: the parent said stop.
 */
#ifndef LIEN_REPLAY_WORKER_H
#define LIEN_REPLAY_WORKER_H

#include <tools/replay/driver.h>
#include <tools/replay/image.h>
#include <tools/replay/names.h>
#include <tools/replay/space.h>
#include <tools/replay/wire.h>

#define LIEN_REPLAY_DEVICES_MAX 64

struct lien_replay_worker {
	int sock;
	struct lien_replay_image *image;
	const struct lien_replay_allocation *allocations;
	const struct lien_replay_op *ops;

	struct lien_replay_names names;
	struct lien_replay_space space;
	bool nccl; /* the stand-in libnccl is there */
	int devices;
	int current; /* actual device whose context is current; -1: none */
	CUcontext contexts[LIEN_REPLAY_DEVICES_MAX];

	uint64_t change;   /* number of the pattern that rewritable memory holds */
	uint64_t *written; /* of each allocation, how much of it this owner wrote in that pattern */
	void *buffer;	   /* copies go through it */

	char text[sizeof(((struct lien_replay_message *)0)->text)];
};

/* Everything a worker does, after exec: its parent talks to it over sock. Returns an exit status.
 */
int lien_replay_worker_main(int number, int sock);

/* Sets .text. Returns -EIO. */
int lien_replay_wrong(struct lien_replay_worker *w, const char *format, ...)
	__attribute__((__format__(__printf__, 2, 3)));

/* Counts progress up; -ECANCELED when told to stop. */
int lien_replay_progress(struct lien_replay_worker *w);

/* Calls a driver function, from inside libnccl where the flags say so and there is one. */
CUresult lien_replay_call(
	struct lien_replay_worker *w, uint32_t flags, void *fn, const long args[6]);
#define LIEN_REPLAY_CALL(w, flags, name, ...)                                                      \
	lien_replay_call(w, flags, (void *)lien_replay_driver.name, (const long[6]){__VA_ARGS__})

/* The device that stands for a recorded one: this machine may have fewer. */
int lien_replay_device(const struct lien_replay_worker *w, int recorded);

/* Makes the primary context of an actual device current, retains it the first time. */
int lien_replay_context(struct lien_replay_worker *w, int device);

/* issue.c: one op. */
int lien_replay_issue(struct lien_replay_worker *w, const struct lien_replay_op *op);

/* issue_comm.c: one of NCCL's, for its table. Does nothing without the stand-in libnccl. */
int lien_replay_issue_comm(struct lien_replay_worker *w, const struct lien_replay_op *op);

/* unwind.c: gives back all that is held, the latest first. */
int lien_replay_unwind(struct lien_replay_worker *w);

/* contents.c: writes what this owner has not written of an allocation and can by this mapping. */
int lien_replay_fill(struct lien_replay_worker *w, struct lien_replay_mapping *mapping);

/* Rewrites all of its own memory. Every worker must be told, owners or not. */
int lien_replay_change(struct lien_replay_worker *w, uint64_t change);

/* Compares every mapping. */
int lien_replay_verify(struct lien_replay_worker *w, struct lien_replay_checked *checked);

/* How much of the mapping has known contents and can be read here. */
uint64_t lien_replay_verifiable(
	const struct lien_replay_worker *w, const struct lien_replay_mapping *mapping);

#endif
