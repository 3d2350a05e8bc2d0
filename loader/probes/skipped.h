/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Files that are named like one of our libraries and cannot be probed, each with the reason:
 * reported once, and kept for `lien status`. Processes choose these names, so there can be any
 * number: the first ones of each user are kept and the rest is counted.
 */
#ifndef LIEN_SKIPPED_H
#define LIEN_SKIPPED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define LIEN_SKIPPED_MAX     64 /* entries kept in all, */
#define LIEN_SKIPPED_OF_USER 8	/* and for one user who is neither root nor the system */

struct lien_skipped_file {
	char *path;
	const char *reason;
	int err;
	dev_t device;
	ino_t inode; /* 0: not even stat() worked */
	struct timespec changed;
	uint32_t user; /* user of the process that mapped it (loader/probes/probes.h) */
};

struct lien_skipped {
	struct lien_skipped_file files[LIEN_SKIPPED_MAX];
	unsigned kept, count; /* count: includes those not kept */
};

/* Returns the entry of the file in its current state, or NULL: it was not skipped, or has changed
 * since. */
const struct lien_skipped_file *lien_skipped_find(
	const struct lien_skipped *skipped, const char *path, const struct stat *st);
/* Returns the new entry, or NULL: no room. Call only for a file that lien_skipped_find() does not
 * know. */
const struct lien_skipped_file *lien_skipped_add(struct lien_skipped *skipped, const char *path,
	const struct stat *st, int err, uint32_t user);
/* The file is probed after all. */
void lien_skipped_remove(struct lien_skipped *skipped, dev_t device, ino_t inode);
void lien_skipped_clear(struct lien_skipped *skipped);

#endif
