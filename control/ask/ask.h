/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Asks the agent something over its socket, as this process's user. For threads of the application;
 * the control thread never asks. Every wait has a limit.
 */
#ifndef LIEN_CONTROL_ASK_H
#define LIEN_CONTROL_ASK_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_JSON_DEPTH 16

/* A piece of a JSON text; of a string, what is between the quotes, with its escapes. */
struct lien_json_piece {
	const char *at;
	size_t length;
};

/*
 * Called for each string, number, true, false and null in the text's order, as it is written.
 * path[0..depth): the members that lead to it; of an array's elements, {NULL, index}.
 */
typedef void lien_json_fn(void *context, const struct lien_json_piece *path, unsigned depth,
	const struct lien_json_piece *value);

/* Is it this text? */
int lien_json_is(const struct lien_json_piece *piece, const char *text);
/* Returns a number without sign and fraction; anything else is 0. */
uint64_t lien_json_number(const struct lien_json_piece *value);
/* Copies a string without its quotes, for people: what cannot be printed becomes '?'. */
void lien_json_copy(const struct lien_json_piece *value, char *to, size_t size);

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
