/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is this record one of ours? For records that come from outside this process: recordings, the
 * journal, the ring buffer, fuzzers.
 */
#ifndef LIEN_EVENT_CHECK_H
#define LIEN_EVENT_CHECK_H

#include <stdbool.h>

#include <lien/event.h>

/*
 * True when every count, length and string in the record can be relied upon: the size holds the
 * body that its type has (it may be larger: room for later fields), names end inside their fields,
 * type, flags and .outer are known ones. Says nothing about whether the values make sense together.
 *
 * Reads no more than ev->size bytes, and those must be there: of a buffer of n bytes check first
 * that n >= LIEN_EVENT_HEADER and ev->size <= n.
 */
bool lien_event_valid(const struct lien_event *ev);

/* LIEN_KIND_none of what is no call, or has no event. */
enum lien_kind lien_call_kind(unsigned int call);
/* Is the call one that gives something back, and has an event? */
bool lien_call_releases(unsigned int call);
/* enum lien_library of a call, or 0 when the number is no call. */
int lien_event_library(unsigned int call);

/* The symbol of a call, or NULL when the number is no call. */
const char *lien_call_name(unsigned int call);

/* True of a call that did what it says. ncclInProgress of non-blocking communicators counts: the
 * result of those is not known at return. An announcement has not succeeded yet. */
bool lien_event_succeeded(const struct lien_event *ev);

#endif
