/* SPDX-License-Identifier: BSD-2-Clause */
/* One request to the agent, or to a recording (tools/cli/offline.h), on behalf of a command: errors
 * are printed here, in one line. */
#ifndef LIEN_TOOLS_QUERY_H
#define LIEN_TOOLS_QUERY_H

#include <stdbool.h>

#include <jansson.h>

#include <lien/client.h>
#include "tools/cli/options.h"
#include "tools/text/complain.h"

struct lien_query {
	const char *command; /* "lien ps", for messages */
	const char *socket;  /* NULL: the default */
	const char *from;    /* a recording to query instead; NULL: query an agent */
	unsigned timeout_ms; /* for everything; 0: no limit */
	unsigned retry_ms;   /* how long to repeat requests that were refused for the moment */
	lien_client_progress_fn progress; /* called with NULL when the reply has arrived */
	void *progress_arg;
};

/* For requests that the agent answers at once, without waiting for a job. */
#define LIEN_QUERY_MS 60000

/*
 * Takes ownership of request. Returns the result, always an object and owned by the caller, or NULL
 * after a message.
 */
json_t *lien_query(const struct lien_query *query, json_t *request);

/* Adds "pids", if there are any. */
void lien_query_add_pids(json_t *request, const struct lien_pids *pids);

#endif
