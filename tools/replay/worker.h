/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Internal to a worker: the process that stands for one recorded process. Functions return 0 or
 * -errno; for -EIO the reason is in .text, for the parent to print. -ECANCELED: the parent said
 * stop.
 */
#ifndef LIEN_REPLAY_WORKER_H
#define LIEN_REPLAY_WORKER_H

#include "tools/replay/driver.h"
#include "tools/replay/image.h"
#include "tools/replay/names.h"
#include "tools/replay/space.h"
#include "tools/replay/wire.h"

#define LIEN_REPLAY_DEVICES_MAX 64

struct lien_replay_worker {
	int sock;
	struct lien_replay_image *image;
	const struct lien_replay_allocation *allocations;
	const struct lien_replay_op *ops;

	struct lien_replay_names names;
	struct lien_replay_space space;
	bool nccl; /* the stand-in libnccl is present */
	int devices;
	int current; /* actual device whose context is current; -1: none */
	CUcontext contexts[LIEN_REPLAY_DEVICES_MAX];

	uint64_t change;   /* number of the pattern in rewritable memory */
	uint64_t *written; /* per allocation: how much of it this owner wrote in that pattern */
	void *buffer;	   /* for copies */

	char text[sizeof(((struct lien_replay_message *)0)->text)];
};

/* serve.c: runs a worker after exec: its parent sends commands over sock. Returns an exit status.
 */
int lien_replay_worker_main(int number, int sock);

/* Sets .text. Returns -EIO. */
int lien_replay_wrong(struct lien_replay_worker *w, const char *format, ...)
	__attribute__((__format__(__printf__, 2, 3)));

/* Increments progress; -ECANCELED when told to stop. */
int lien_replay_progress(struct lien_replay_worker *w);

/* Calls a driver function, from inside libnccl if the flags say so and the stand-in exists. */
CUresult lien_replay_call(
	struct lien_replay_worker *w, uint32_t flags, void *fn, const long args[6]);
#define LIEN_REPLAY_CALL(w, flags, name, ...)                                                      \
	lien_replay_call(w, flags, (void *)lien_replay_driver.name, (const long[6]){__VA_ARGS__})

/* Returns the device that stands for a recorded one: this machine may have fewer. */
int lien_replay_device(const struct lien_replay_worker *w, int recorded);

/* Makes the primary context of an actual device current; retains it the first time. */
int lien_replay_context(struct lien_replay_worker *w, int device);

/* issue.c: issues one op. */
int lien_replay_issue(struct lien_replay_worker *w, const struct lien_replay_op *op);

/* issue_comm.c: issues one of NCCL's, through its table. Does nothing without the stand-in
 * libnccl. */
int lien_replay_issue_comm(struct lien_replay_worker *w, const struct lien_replay_op *op);

/* unwind.c: gives everything back, the latest first. */
int lien_replay_unwind(struct lien_replay_worker *w);

/* contents.c: writes the part of an allocation that this owner has not written yet and that this
 * mapping can reach. */
int lien_replay_fill(struct lien_replay_worker *w, struct lien_replay_mapping *mapping);

/* Rewrites all memory that it owns. Send to every worker, owner or not. */
int lien_replay_change(struct lien_replay_worker *w, uint64_t change);

/* Compares every mapping. */
int lien_replay_verify(struct lien_replay_worker *w, struct lien_replay_checked *checked);

/* Returns how much of the mapping has known contents and can be read here. */
uint64_t lien_replay_verifiable(
	const struct lien_replay_worker *w, const struct lien_replay_mapping *mapping);

#endif
