// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/skipped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "loader/discover/libraries.h"
#include "loader/probes/probes.h"

static bool same(const struct lien_skipped_file *file, const char *path, const struct stat *st)
{
	if (!st->st_ino || !file->inode)
		return st->st_ino == file->inode && !strcmp(file->path, path);
	return file->device == st->st_dev && file->inode == st->st_ino &&
	       file->changed.tv_sec == st->st_ctim.tv_sec &&
	       file->changed.tv_nsec == st->st_ctim.tv_nsec;
}

const struct lien_skipped_file *lien_skipped_find(
	const struct lien_skipped *skipped, const char *path, const struct stat *st)
{
	unsigned i;

	for (i = 0; i < skipped->kept; i++)
		if (same(&skipped->files[i], path, st))
			return &skipped->files[i];
	return NULL;
}

static const char *reason_of(int err)
{
	switch (err) {
	case -ESPIPE:
		return "not a regular file";
	case -ENOEXEC:
		return "not a library of x86-64";
	case -EBADMSG:
		return "damaged: cut off, or its parts are not where its header says";
	case -ENODATA:
		return "exports none of the calls that lien traces";
	case -ETXTBSY:
		return "a process has rewritten some of its functions in memory, as UCX and some "
		       "profilers do, and a probe there would crash it (`lien ps` names it); tried "
		       "again until it has ended";
	case -EWOULDBLOCK:
		return "a process holds a lease on it";
	}
	return strerror(-err);
}

/* Returns true if there is room for another file of this user. */
static bool has_room(const struct lien_skipped *skipped, uint32_t user)
{
	unsigned i, of_user = 0;

	for (i = 0; i < skipped->kept; i++)
		of_user += skipped->files[i].user == user;
	return skipped->kept < LIEN_SKIPPED_MAX &&
	       (!user || user == LIEN_PROBES_SYSTEM || of_user < LIEN_SKIPPED_OF_USER);
}

const struct lien_skipped_file *lien_skipped_add(struct lien_skipped *skipped, const char *path,
	const struct stat *st, int err, uint32_t user)
{
	struct lien_skipped_file *file = &skipped->files[skipped->kept];

	skipped->count++;
	if (!has_room(skipped, user))
		return NULL;
	file->path = lien_library_text(path);
	if (!file->path)
		return NULL;
	skipped->kept++;
	file->user = user;
	file->reason = reason_of(err);
	file->err = err;
	file->device = st->st_dev;
	file->inode = st->st_ino;
	file->changed = st->st_ctim;
	return file;
}

void lien_skipped_remove(struct lien_skipped *skipped, dev_t device, ino_t inode)
{
	struct lien_skipped_file *file = skipped->files;
	unsigned i;

	for (i = skipped->kept; i-- > 0;) {
		if (file[i].device != device || file[i].inode != inode)
			continue;
		free(file[i].path);
		memmove(file + i, file + i + 1, (--skipped->kept - i) * sizeof(*file));
		skipped->count--;
	}
}

void lien_skipped_clear(struct lien_skipped *skipped)
{
	unsigned i;

	for (i = 0; i < skipped->kept; i++)
		free(skipped->files[i].path);
	skipped->kept = skipped->count = 0;
}
