// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/journal/journal.h"
#include "agent/journal/recording.h"

#define ROOM_STEP (1u << 20)

struct lien_journal {
	char *path;
	int fd;
	unsigned char *map; /* covers `room` bytes */
	uint64_t room, end; /* bytes: size of the file; offset of the next record */
	uint64_t least;	    /* no snapshot before the journal has grown to this */
	struct lien_recording_header header;
};

static int room_grow(struct lien_journal *journal, uint64_t room)
{
	void *map;

	if (fallocate(journal->fd, 0, journal->room, room - journal->room))
		return -errno;
	map = journal->map ? mremap(journal->map, journal->room, room, MREMAP_MAYMOVE)
			   : mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, journal->fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	journal->map = map;
	journal->room = room;
	return 0;
}

static void journal_free(struct lien_journal *journal)
{
	if (journal->map)
		munmap(journal->map, journal->room);
	if (journal->fd >= 0)
		close(journal->fd);
	free(journal->path);
	free(journal);
}

static struct lien_journal *journal_new(const char *path)
{
	struct lien_journal *journal = calloc(1, sizeof(*journal));

	if (!journal)
		return NULL;
	journal->fd = -1;
	journal->path = strdup(path);
	if (journal->path)
		return journal;
	free(journal);
	return NULL;
}

int lien_journal_create(struct lien_journal **out, const char *path, uint64_t number)
{
	struct lien_journal *journal = journal_new(path);
	int err;

	if (!journal)
		return -ENOMEM;
	/* Not truncated but replaced: a reader may have mapped the old one. */
	unlink(path);
	journal->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	err = journal->fd < 0 ? -errno : room_grow(journal, ROOM_STEP);
	if (err) {
		if (journal->fd >= 0)
			unlink(path);
		journal_free(journal);
		return err;
	}
	memcpy(journal->header.magic, LIEN_RECORDING_MAGIC, sizeof(journal->header.magic));
	journal->header.version = LIEN_RECORDING_VERSION;
	journal->header.created = number;
	journal->end = sizeof(journal->header);
	memcpy(journal->map, &journal->header, sizeof(journal->header));
	*out = journal;
	return 0;
}

/*
 * Accepts only a file of this user, and no link, device or pipe: others may make files in the
 * directory.
 */
static int check_file(const char *path)
{
	struct stat st;

	if (lstat(path, &st))
		return -errno;
	if (S_ISLNK(st.st_mode))
		return -ELOOP;
	return S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_nlink == 1 ? 0 : -EPERM;
}

/* Reads the whole records; journal->end is then where they end. */
static int read_records(struct lien_journal *journal,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	struct lien_recording *recording;
	struct lien_event event;
	int err, closed;

	/* Others cannot replace a file of ours: the directory is ours, or sticky. */
	err = check_file(journal->path);
	if (err)
		return err;
	err = lien_recording_open(journal->path, &recording);
	if (err)
		return err == -ENOENT || err == -EPROTONOSUPPORT ? err : -EBADMSG;
	journal->end = sizeof(journal->header);
	while ((err = lien_recording_read(recording, &event)) == 1) {
		journal->end += event.size;
		err = fn(context, &event);
		if (err < 0)
			break;
	}
	closed = lien_recording_close(recording);
	/* A journal never ends with an END record. */
	if (err == -ENODATA)
		return closed;
	return err ? err : -EBADMSG;
}

static int map_file(struct lien_journal *journal)
{
	struct stat st;
	uint64_t room;
	int err;

	journal->fd = open(journal->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (journal->fd < 0 || fstat(journal->fd, &st))
		return -errno;
	/* The socket may be in a directory where others make files, too. */
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink != 1)
		return -EPERM;
	room = st.st_size;
	if (room < journal->end)
		return -EBADMSG;
	/* Fills holes, and makes room for at least one record. */
	if (room < journal->end + sizeof(struct lien_event))
		room = journal->end + ROOM_STEP;
	err = room_grow(journal, room);
	if (err)
		return err;
	memcpy(&journal->header, journal->map, sizeof(journal->header));
	/* Gzipped recordings can be read too, but they are not journals. */
	if (memcmp(journal->header.magic, LIEN_RECORDING_MAGIC, sizeof(journal->header.magic)))
		return -EBADMSG;
	/* Clears the rest of a half-written record. */
	memset(journal->map + journal->end, 0, sizeof(struct lien_event));
	return 0;
}

int lien_journal_open(struct lien_journal **out, const char *path,
	int (*fn)(void *context, const struct lien_event *), void *context)
{
	struct lien_journal *journal = journal_new(path);
	int err;

	if (!journal)
		return -ENOMEM;
	err = read_records(journal, fn, context);
	if (!err)
		err = map_file(journal);
	if (err) {
		journal_free(journal);
		return err;
	}
	*out = journal;
	return 0;
}

void lien_journal_close(struct lien_journal *journal)
{
	if (!journal)
		return;
	if (ftruncate(journal->fd, journal->end))
		(void)!0; /* the rest reads the same */
	journal_free(journal);
}

int lien_journal_append(struct lien_journal *journal, const struct lien_event *event)
{
	unsigned char *at;
	int err;

	/* A size of 0 always follows the last record. */
	if (journal->room - journal->end < event->size + sizeof(event->size)) {
		err = room_grow(journal, journal->room + ROOM_STEP);
		if (err)
			return err;
	}
	at = journal->map + journal->end;
	/* Writes the size last: a record that has one is complete. */
	memcpy(at + sizeof(event->size), (const char *)event + sizeof(event->size),
		event->size - sizeof(event->size));
	__atomic_store_n((uint32_t *)at, event->size, __ATOMIC_RELEASE);
	journal->end += event->size;
	return 0;
}

bool lien_journal_has(const struct lien_journal *journal, const struct lien_event *event)
{
	const struct lien_event *record;
	uint64_t at;

	for (at = sizeof(journal->header); at < journal->end; at += record->size) {
		record = (const void *)(journal->map + at);
		if (record->size == event->size && !memcmp(record, event, event->size))
			return true;
	}
	return false;
}

static int append_to(void *context, const struct lien_event *event)
{
	return lien_journal_append(context, event);
}

static int replace(struct lien_journal *journal, struct lien_graph *graph)
{
	struct lien_journal *fresh, old = *journal;
	char path[PATH_MAX];
	int err;

	snprintf(path, sizeof(path), "%s.new", journal->path);
	err = lien_journal_create(&fresh, path, journal->header.created);
	if (err)
		return err;
	err = lien_graph_dump(graph, append_to, fresh);
	if (!err && rename(path, journal->path))
		err = -errno;
	if (err) {
		unlink(path);
	} else {
		*journal = *fresh;
		*fresh = old;
		fresh->path = journal->path;
		journal->path = old.path;
		journal->least = 2 * journal->end;
	}
	journal_free(fresh);
	return err;
}

int lien_journal_bound(struct lien_journal *journal, struct lien_graph *graph, uint64_t limit)
{
	int err;

	if (journal->end <= limit || journal->end <= journal->least)
		return 0;
	err = replace(journal, graph);
	if (err)
		journal->least = 2 * journal->end;
	return err;
}

uint64_t lien_journal_number(const struct lien_journal *journal)
{
	return journal->header.created;
}

uint64_t lien_journal_bytes(const struct lien_journal *journal)
{
	return journal->end;
}
