/* SPDX-License-Identifier: BSD-2-Clause */
/* A file as it was when something was read from it, to see that it has not changed since. Pure. */
#ifndef LIEN_FILE_STATE_H
#define LIEN_FILE_STATE_H

#include <stdbool.h>
#include <sys/stat.h>

struct lien_file_state {
	dev_t device;
	ino_t inode;
	off_t size;
	struct timespec changed;
};

static inline struct lien_file_state lien_file_state_of(const struct stat *st)
{
	return (struct lien_file_state){st->st_dev, st->st_ino, st->st_size, st->st_ctim};
}

static inline bool lien_file_state_is(const struct lien_file_state *state, const struct stat *st)
{
	return state->device == st->st_dev && state->inode == st->st_ino &&
	       state->size == st->st_size && state->changed.tv_sec == st->st_ctim.tv_sec &&
	       state->changed.tv_nsec == st->st_ctim.tv_nsec;
}

#endif
