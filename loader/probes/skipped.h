/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Files that are called like one of our libraries and cannot be probed, each with the reason: told
 * once, and kept for `lien status`. Processes choose these names, so there are as many as they
 * like: the first ones of each user are kept and the rest is counted.
 */
#ifndef LIEN_SKIPPED_H
#define LIEN_SKIPPED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#define LIEN_SKIPPED_MAX     64 /* that are kept, */
#define LIEN_SKIPPED_OF_USER 8	/* and of one user who is neither root nor the system */

struct lien_skipped_file {
	char *path;
	const char *reason;
	int err;
	dev_t device;
	ino_t inode; /* 0: it could not even be looked at */
	struct timespec changed;
	uint32_t user; /* whose process mapped it (loader/probes/probes.h) */
};

struct lien_skipped {
	struct lien_skipped_file files[LIEN_SKIPPED_MAX];
	unsigned kept, count; /* also those that are not kept */
};

/* The file as it is now, or NULL: it was not skipped, or has been changed since. */
const struct lien_skipped_file *lien_skipped_find(
	const struct lien_skipped *skipped, const char *path, const struct stat *st);
/* The new entry, or NULL: there is no room. Only for what lien_skipped_find() does not know. */
const struct lien_skipped_file *lien_skipped_add(struct lien_skipped *skipped, const char *path,
	const struct stat *st, int err, uint32_t user);
void lien_skipped_clear(struct lien_skipped *skipped);

#endif
