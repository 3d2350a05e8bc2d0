/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A recording: a gzip stream of a header, its origin, and then lien_event records, closed by a
 * LIEN_EVENT_END.
 *
 * It is written in place, so what an agent recorded before it was killed can be read up to its last
 * flush (an explicit one, or the automatic one about once a second while records come in). Such a
 * recording reads like a whole one, except for -ENODATA in place of the end.
 *
 * A journal (agent/journal/journal.h) is an uncompressed recording, and reads the same way: a
 * record of size 0 or the end of the file ends its records. It has no origin.
 *
 * Both begin with a snapshot (lien/state.h) when there was something before them. Version 2, whose
 * snapshots were made-up calls, can still be read.
 *
 * Nothing in a file is trusted: every record that was read has passed lien_event_valid().
 */
#ifndef LIEN_RECORDING_H
#define LIEN_RECORDING_H

#include <stdbool.h>
#include <stdint.h>

#include <lien/event.h>

#ifndef __must_check
#define __must_check __attribute__((__warn_unused_result__))
#endif

#define LIEN_RECORDING_VERSION 3
#define LIEN_RECORDING_OLDEST  2 /* that can be read */
#define LIEN_RECORDING_MAGIC   "LIENREC"

/* The beginning of a recording. */
struct lien_recording_header {
	char magic[8];
	uint32_t version;
	uint32_t flags;	  /* a reader refuses flags that it does not know */
	uint64_t created; /* ns of CLOCK_REALTIME; in a journal its number */
};

#define LIEN_RECORDING_HAS_ORIGIN 1 /* a flag: the origin follows the header */

struct lien_recording_origin {
	uint64_t clock; /* CLOCK_MONOTONIC, which events have, when it was created */
	char host[64];
};

_Static_assert(sizeof(struct lien_recording_header) == 24, "recording header layout");
_Static_assert(sizeof(struct lien_recording_origin) == 72, "recording origin layout");

struct lien_recording;

/* Creates or truncates path (mode 0600). -errno of open(2); -ENOMEM. */
int lien_recording_create(const char *path, struct lien_recording **out) __must_check;

/*
 * Adds a record. -EINVAL for one that is not valid, or an END (closing writes that). A full disk
 * may show up here (-ENOSPC), or only at flush or close, because writes are buffered. After a
 * failure the recording stays failed, and each later call returns the same error.
 */
int lien_recording_write(struct lien_recording *rec, const struct lien_event *ev) __must_check;

/* Makes everything written so far readable by others. */
int lien_recording_flush(struct lien_recording *rec) __must_check;

/*
 * Opens a recording and reads its header. -EBADMSG: not a recording; -EPROTONOSUPPORT: written by
 * another version of lien; -ENODATA: ends within its header; or -errno of open(2), read(2).
 */
int lien_recording_open(const char *path, struct lien_recording **out) __must_check;

/*
 * Reads the next record into *ev, and zeroes the rest of *ev. 1: there is one; 0: clean end;
 * -ENODATA: cut short, all records before were good; -EBADMSG: damaged; or -errno. Errors persist.
 */
int lien_recording_read(struct lien_recording *rec, struct lien_event *ev) __must_check;

/* Is the last record part of the state with which the recording begins? Such records have the times
 * of what made them, maybe hours before. */
bool lien_recording_is_state(const struct lien_recording *rec);

/* Returns when, in ns of CLOCK_REALTIME, an event with the time t happened; 0: it is of a snapshot.
 * A recording without an origin counts as created when its first event after the state happened.
 * Returns 0 if it is a journal. */
uint64_t lien_recording_time(const struct lien_recording *rec, uint64_t t);

/* Returns the name of the host, printable ASCII; "": not known. */
const char *lien_recording_host(const struct lien_recording *rec);

/* Frees rec (may be NULL). If it was being written, finishes it first, and returns its first error,
 * even one of an earlier write. */
int lien_recording_close(struct lien_recording *rec) __must_check;

#endif
