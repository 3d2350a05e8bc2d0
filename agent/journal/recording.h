/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A recording: a gzip stream of one header and then lien_event records, closed by a LIEN_EVENT_END.
 *
 * It is written in place, so that what an agent recorded before it was killed can be read up to its
 * last flush (by hand, or by itself about once a second while records come in). Such a recording
 * reads like a whole one, but for -ENODATA where the end should be.
 *
 * A journal (agent/journal/journal.h) is a recording that is not compressed, and reads the same
 * way: where its records end there is a record of size 0, or the end of the file.
 *
 * Nothing in a file is trusted: a record that was read has passed lien_event_valid().
 */
#ifndef LIEN_RECORDING_H
#define LIEN_RECORDING_H

#include <stdint.h>

#include <lien/event.h>

#ifndef __must_check
#define __must_check __attribute__((__warn_unused_result__))
#endif

#define LIEN_RECORDING_VERSION 2
#define LIEN_RECORDING_MAGIC   "LIENREC"

/* What a recording begins with. */
struct lien_recording_header {
	char magic[8];
	uint32_t version;
	uint32_t flags; /* none yet: a reader refuses what it does not know */
	uint64_t created;
};

_Static_assert(sizeof(struct lien_recording_header) == 24, "recording header layout");

struct lien_recording;

/* Creates or truncates path (mode 0600). -errno of open(2); -ENOMEM. */
int lien_recording_create(const char *path, struct lien_recording **out) __must_check;

/*
 * Adds a record. -EINVAL for one that is not valid, or an END (closing writes that). A full disk
 * may show up here (-ENOSPC), or only at flush or close: what is written is buffered. After a
 * failure the recording stays failed, and each later call returns the same error.
 */
int lien_recording_write(struct lien_recording *rec, const struct lien_event *ev) __must_check;

/* Makes all that was written so far readable by others. */
int lien_recording_flush(struct lien_recording *rec) __must_check;

/*
 * Opens a recording and reads its header. -EBADMSG: not a recording; -EPROTONOSUPPORT: written by
 * another version of lien; -ENODATA: ends within its header; or -errno of open(2), read(2).
 */
int lien_recording_open(const char *path, struct lien_recording **out) __must_check;

/*
 * Reads the next record into *ev, zeroes after its end. 1: there is one; 0: clean end; -ENODATA:
 * cut short, all records before were good; -EBADMSG: damaged; or -errno. Errors stay.
 */
int lien_recording_read(struct lien_recording *rec, struct lien_event *ev) __must_check;

/* When it was created, ns of CLOCK_REALTIME. */
uint64_t lien_recording_created(const struct lien_recording *rec);

/* Frees rec (may be NULL). Of a recording that was written: ends it first, and returns the first
 * error that it met, be it at an earlier write. */
int lien_recording_close(struct lien_recording *rec) __must_check;

#endif
