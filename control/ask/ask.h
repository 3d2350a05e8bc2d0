/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Asks the agent something over its socket, as this process's user. For threads of the application;
 * the control thread never asks. Every wait has a limit.
 */
#ifndef LIEN_CONTROL_ASK_H
#define LIEN_CONTROL_ASK_H

#include "control/ask/json.h"

struct lien_asked {
	/* NULL, or called for each value of the result, with a path that begins behind `result`. */
	lien_json_fn *fn;
	void *context;
	int *passed;	/* NULL, or a descriptor that came with the answer is put there, or -1 */
	char code[24];	/* of a failure: the agent's (docs/protocol.md), or "no-agent" */
	char text[600]; /* of a failure: one line */
};

/*
 * Sends one request, a line, and waits at most `limit_ms` for its answer. Returns 0 if it was
 * carried out. Otherwise -ECONNREFUSED: there is no agent, -ETIMEDOUT, -EPROTO, or -EREMOTEIO: the
 * agent refuses; with code and text.
 */
int lien_ask(const char *request, unsigned limit_ms, struct lien_asked *asked);

#endif
