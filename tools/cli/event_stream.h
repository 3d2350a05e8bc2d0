/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's `record` stream, record by record. The agent drops readers that are slower than the
 * events. Failures are reported here, in one line with the command's name.
 */
#ifndef LIEN_TOOLS_EVENT_STREAM_H
#define LIEN_TOOLS_EVENT_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/event.h>

enum lien_follow {
	LIEN_FOLLOW_UNMARKED, /* the present state and later events, as one stream */
	LIEN_FOLLOW_MARKED,   /* a LIEN_EVENT_END between the two */
	LIEN_FOLLOW_NOT,      /* the present state, then a LIEN_EVENT_END, and no more */
};

struct lien_event_stream {
	const char *command; /* "lien record", for messages */
	const char *socket;  /* NULL: the default */
	int fd;
	unsigned char *bytes; /* received; from .at on not yet consumed */
	size_t at, used, capacity;
};

/* Requests the stream; .command and .socket must be set. Returns false after a message; otherwise
 * the caller must close it. */
bool lien_event_stream_open(struct lien_event_stream *stream, enum lien_follow follow);
void lien_event_stream_close(struct lien_event_stream *stream);

/* Call when fd is readable: receives the waiting bytes. Returns false after a message: the stream
 * has ended. */
bool lien_event_stream_receive(struct lien_event_stream *stream);

/*
 * Gets the next received record, zero-filled behind its end. Returns 1: there is one; 0: receive
 * first; -1 after a message: the data is not a record of this version.
 */
int lien_event_stream_next(struct lien_event_stream *stream, struct lien_event *event);

#endif
