/* SPDX-License-Identifier: BSD-2-Clause */
/* The requests that clients may send (docs/protocol.md). */
#ifndef LIEN_REQUESTS_H
#define LIEN_REQUESTS_H

#include <jansson.h>

#include "agent/server/client.h"

/*
 * Slow answers, which walk all of a large graph or ask the kernel for all open files, are made by a
 * copy of the agent (fork()), while the agent goes on. The copy has the graph as it was when the
 * request was handled. Each user has one copy at a time, and the user's other requests wait for it,
 * so that no user can fill the machine with copies; root may have several.
 */

/* Answers a request (NULL: not JSON), or begins work that is answered later. */
void lien_request(struct lien_client *client, json_t *request);
/* Reaps the copies. */
void lien_answers_tick(struct lien_agent *agent);
void lien_answers_stop(struct lien_agent *agent);

/*
 * status.c: the agent's own state, figures for a monitoring system, and communicators with what the
 * kernel side counts. NULL: out of memory.
 */
json_t *lien_agent_status(struct lien_agent *agent, const struct lien_viewer *viewer);
json_t *lien_agent_metrics(struct lien_agent *agent, const struct lien_viewer *viewer);
json_t *lien_agent_comms(struct lien_agent *agent, const struct lien_viewer *viewer);
/* Searches for other agents, which the status names. */
void lien_others_tick(struct lien_agent *agent);
/* The host arenas of the client's processes. result: of a release; NULL: none. */
json_t *lien_agent_arena(
	const struct lien_client *client, const struct lien_transaction_result *result);

#endif
