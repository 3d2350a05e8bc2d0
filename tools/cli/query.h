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

struct lien_nodes_view;

struct lien_query {
	const char *command;   /* "lien ps", for messages */
	const char *socket;    /* NULL: the default */
	struct lien_from from; /* a recording to query instead */
	unsigned timeout_ms;   /* for everything; 0: no limit */
	unsigned pending_ms;   /* how long to wait for the rest of a result that is "pending" */
	unsigned retry_ms;     /* how long to repeat requests that were refused for the moment */
	lien_client_progress_fn progress; /* called with NULL when the reply has arrived */
	void *progress_arg;
	int wake_fd;		/* with .wake, as for lien_client_on_wake() */
	int (*wake)(void *arg); /* NULL: none; prints why it gives up */
	void *wake_arg;
	struct lien_nodes_view
		*nodes; /* query these instead, if its options want nodes; NULL: never */
	const struct lien_usage *usage; /* with .nodes: of the command */
	int *code; /* set to the exit code if there is no result; NULL: not wanted */
};

/* For requests that the agent answers at once, without waiting for a job. */
#define LIEN_QUERY_MS 60000

/*
 * Takes ownership of request. Returns the result, always an object and owned by the caller, or NULL
 * after a message.
 */
json_t *lien_query(const struct lien_query *query, json_t *request);

/* Is there such a process? Otherwise prints the agent's error, which lists those that there are. */
bool lien_query_process(const struct lien_query *query, pid_t pid);

/* Adds "pids", if there are any. */
void lien_query_add_pids(json_t *request, const struct lien_pids *pids);

#endif
