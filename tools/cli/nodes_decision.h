/* SPDX-License-Identifier: BSD-2-Clause */
/* The decision of a coordinator, in a file: from then on an offload is carried out. */
#ifndef LIEN_TOOLS_NODES_DECISION_H
#define LIEN_TOOLS_NODES_DECISION_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* Finds the directory and makes it, with its parents: --state, $XDG_STATE_HOME/lien or
 * ~/.local/state/lien. 0, or -errno with the directory in `path`. */
int lien_decision_directory(const char *state, char *path, size_t size);
/* Writes DIRECTORY/ID.json.new, and waits until it is on disk: nothing is decided yet. 0, -errno.
 */
int lien_decision_write(const char *directory, const char *id, const json_t *decision);
/* Names it DIRECTORY/ID.json, and waits until that is on disk. 0, -errno. */
int lien_decision_publish(const char *directory, const char *id);
/* Removes both: the decision has been carried out on all nodes, or mended, or came to nothing. */
void lien_decision_remove(const char *directory, const char *id);
/* Everything is back on these nodes, an array of names: removes what was decided about no others.
 */
void lien_decision_remove_of(const char *directory, const json_t *nodes);

#endif
