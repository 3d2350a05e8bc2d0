/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads one JSON text, strictly (RFC 8259, numbers as written), without changing or copying it. */
#ifndef LIEN_CONTROL_JSON_H
#define LIEN_CONTROL_JSON_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_JSON_DEPTH 16

/* A piece of the text; of a string, what is between the quotes, with its escapes. */
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

/* Returns 0, or -EBADMSG: no JSON, or deeper than LIEN_JSON_DEPTH. `fn` may have been called. */
int lien_json_scan(const char *text, size_t length, lien_json_fn *fn, void *context);

/* Is it this text? */
int lien_json_is(const struct lien_json_piece *piece, const char *text);
/* Returns a number without sign and fraction; anything else is 0. */
uint64_t lien_json_number(const struct lien_json_piece *value);
/* Copies a string without its quotes, for people: what cannot be printed becomes '?'. */
void lien_json_copy(const struct lien_json_piece *value, char *to, size_t size);

#endif
