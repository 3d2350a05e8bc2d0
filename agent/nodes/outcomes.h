/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Remembers how a node's parts of transactions ended, by their ids, in a file that outlives the
 * agent. A coordinator that lost the node asks for it when it reaches the node again. When there
 * are too many, the oldest of that user are forgotten. Not thread-safe.
 */
#ifndef LIEN_NODES_OUTCOMES_H
#define LIEN_NODES_OUTCOMES_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/nodes/part.h"

#define LIEN_NODES_ID_MAX 64 /* letters, digits, - . _ */

bool lien_nodes_is_id(const char *text);

struct lien_outcomes;

/* Takes over what an earlier agent has left. If path is NULL or cannot be written, everything is
 * kept in memory alone. Returns NULL only when out of memory. */
struct lien_outcomes *lien_outcomes_open(const char *path);
/* `remove`: removes the file, too. */
void lien_outcomes_close(struct lien_outcomes *outcomes, bool remove);
/* Notes that a part is COMMITTED, or how it ended. Returns -errno if it is noted in memory but not
 * in the file, whose earlier lines stay; 0: it is noted, or there is to be no file. */
int lien_outcomes_note(
	struct lien_outcomes *outcomes, const char *id, uint32_t uid, enum lien_part_state state);
/*
 * Returns LIEN_PART_STATES if the id is not known: the part never began here, or dropped nothing. A
 * part that an earlier agent had committed and not ended is BROKEN. one_user: looks only among this
 * user's.
 */
enum lien_part_state lien_outcomes_find(
	const struct lien_outcomes *outcomes, const char *id, bool one_user, uint32_t uid);

#endif
