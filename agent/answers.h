/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Answers that may take long, because they go through all of a large graph, or ask the kernel for
 * all open files: a copy of the agent (fork()) makes them, and the agent goes on meanwhile. The
 * copy has the graph as it was when the request was handled. Each user has one at a time, and the
 * user's other requests wait for it, so that nobody can fill the machine with copies; root has
 * several.
 */
#ifndef LIEN_ANSWERS_H
#define LIEN_ANSWERS_H

#include "agent/requests.h"

/* handle() answers the request at once, and changes nothing but its client. False: there can be no
 * copy now, and the caller is to call it. */
bool lien_answer_start(struct lien_client *client, json_t *request,
	void (*handle)(struct lien_client *client, json_t *request));
/* The client has gone. */
void lien_answer_drop(struct lien_answer *answer);
void lien_answers_tick(struct lien_agent *agent);
void lien_answers_stop(struct lien_agent *agent);

#endif
