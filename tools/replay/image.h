/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One process's script in the form that its worker receives: a memfd, mapped by the worker and by
 * the parent, which watches .position to detect a stuck worker.
 */
#ifndef LIEN_REPLAY_IMAGE_H
#define LIEN_REPLAY_IMAGE_H

#include <stdatomic.h>

#include "tools/replay/script.h"

struct lien_replay_image {
	uint64_t bytes; /* of the whole image */
	uint64_t allocation_count, op_count;
	uint64_t devices; /* see struct lien_replay_process */
	int32_t home;
	uint32_t index; /* of the process */
	uint32_t nccl;
	int32_t timeout_ms;	   /* limit of every wait, except for a command */
	_Atomic uint32_t stop;	   /* set by the parent: give up at the next call or copy */
	_Atomic uint64_t position; /* incremented with every call and every copied chunk */
	_Atomic uint64_t calls;	   /* ops done */
};

/* Makes the image of a process. *fd receives the memfd, which the caller must close. -errno. */
int lien_replay_image_make(const struct lien_script *script, size_t process, int timeout_ms,
	struct lien_replay_image **out, int *fd);

/* Maps an image made by another, trusted process. -errno. */
int lien_replay_image_open(int fd, struct lien_replay_image **out);

void lien_replay_image_close(struct lien_replay_image *image);

const struct lien_replay_allocation *lien_replay_image_allocations(
	const struct lien_replay_image *image);
const struct lien_replay_op *lien_replay_image_ops(const struct lien_replay_image *image);

#endif
