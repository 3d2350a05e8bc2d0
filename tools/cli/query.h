/* SPDX-License-Identifier: BSD-2-Clause */
/* One request to the agent, or to a recording (tools/cli/offline.h), as the commands make it:
 * errors are printed here, in one line. */
#ifndef LIEN_TOOLS_QUERY_H
#define LIEN_TOOLS_QUERY_H

#include <stdbool.h>

#include <jansson.h>

#include <lien/client.h>
#include "tools/cli/options.h"

struct lien_query {
	const char *command; /* "lien ps", for messages */
	const char *socket;  /* NULL: the usual one */
	const char *from;    /* a recording that answers instead; NULL: an agent does */
	unsigned timeout_ms; /* for all of it; 0: none */
	unsigned retry_ms;   /* what was refused for a reason that passes is tried again */
	lien_client_progress_fn progress; /* called with NULL when the reply is there */
	void *progress_arg;
};

/* What the agent answers at once: no wait for a job is in it. */
#define LIEN_QUERY_MS 60000

/*
 * Takes request over. Returns the result, always an object and the caller's, or NULL after a
 * message.
 */
json_t *lien_query(const struct lien_query *query, json_t *request);

/* "pids", if there are any. */
void lien_query_add_pids(json_t *request, const struct lien_pids *pids);

/* One line "COMMAND: message" on stderr, whatever characters are in it. Returns LIEN_EXIT_FAILURE.
 */
int lien_complain(const char *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
