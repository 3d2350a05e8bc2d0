/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's `record` stream, record by record. Whoever reads slower than the events come is let
 * go by the agent. Failures are said here, in one line with the command's name.
 */
#ifndef LIEN_TOOLS_EVENT_STREAM_H
#define LIEN_TOOLS_EVENT_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/event.h>

enum lien_follow {
	LIEN_FOLLOW_UNMARKED, /* the present state, and what follows, as one stream */
	LIEN_FOLLOW_MARKED,   /* a LIEN_EVENT_END between the two */
	LIEN_FOLLOW_NOT,      /* the present state, then a LIEN_EVENT_END, and that is all */
};

struct lien_event_stream {
	const char *command; /* "lien record", for messages */
	const char *socket;  /* NULL: the usual one */
	int fd;
	unsigned char *bytes; /* received; from .at on not taken yet */
	size_t at, used, capacity;
};

/* Asks for the stream; .command and .socket are set. False after a message; else close it. */
bool lien_event_stream_open(struct lien_event_stream *stream, enum lien_follow follow);
void lien_event_stream_close(struct lien_event_stream *stream);

/* When fd is readable: takes what is there. False after a message: the stream has ended. */
bool lien_event_stream_receive(struct lien_event_stream *stream);

/*
 * The next of the records received, zeroes behind its end. 1: there is one; 0: receive first;
 * -1 after a message: what came is no record of this version.
 */
int lien_event_stream_next(struct lien_event_stream *stream, struct lien_event *event);

#endif
