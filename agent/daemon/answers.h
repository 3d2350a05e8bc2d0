/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Slow answers, which walk all of a large graph or ask the kernel for all open files, are made by a
 * copy of the agent (fork()), while the agent goes on. The copy has the graph as it was when the
 * request was handled. Each user has one copy at a time, and the user's other requests wait for it,
 * so that no user can fill the machine with copies; root may have several.
 */
#ifndef LIEN_ANSWERS_H
#define LIEN_ANSWERS_H

#include "agent/server/client.h"

/* handle() must answer the request at once, and change nothing but its client. Returns false if no
 * copy can be made now: the caller then calls handle() itself. */
bool lien_answer_start(struct lien_client *client, json_t *request,
	void (*handle)(struct lien_client *client, json_t *request));
void lien_answers_tick(struct lien_agent *agent);
void lien_answers_stop(struct lien_agent *agent);

#endif
