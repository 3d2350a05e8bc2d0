/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks records that come from outside this process: recordings, the journal, the ring buffer,
 * fuzzers.
 */
#ifndef LIEN_EVENT_CHECK_H
#define LIEN_EVENT_CHECK_H

#include <stdbool.h>

#include <lien/event.h>

/*
 * Returns true when every count, length and string in the record can be relied upon: the size
 * covers the body of its type (it may be larger, as room for later fields), names end inside their
 * fields, and type, flags and .outer are known values. It does not check whether the values make
 * sense together.
 *
 * Reads at most ev->size bytes, all of which must exist. For a buffer of n bytes first check that n
 * >= LIEN_EVENT_HEADER and ev->size <= n.
 */
bool lien_event_valid(const struct lien_event *ev);

/* Returns LIEN_KIND_none for a number that is not a call, or for a call without an event. */
enum lien_kind lien_call_kind(unsigned int call);
/* Does the call release something, and have an event? */
bool lien_call_releases(unsigned int call);
/* Is it a terminated text of 1 to 63 printable ASCII characters? */
bool lien_tag_valid(const char text[LIEN_TAG_BYTES]);
/* Is it the record of a call that made memory, by a thread that had a tag? */
bool lien_event_tagged(const struct lien_event *ev);
/* Returns the enum lien_library of a call, or 0 when the number is not a call. */
int lien_event_library(unsigned int call);

/* Returns the symbol of a call, or NULL when the number is not a call. */
const char *lien_call_name(unsigned int call);

/* Returns true for a call that took effect. ncclInProgress of non-blocking communicators counts as
 * success, because their result is not known at return. An announcement has not succeeded yet. */
bool lien_event_succeeded(const struct lien_event *ev);

#endif
