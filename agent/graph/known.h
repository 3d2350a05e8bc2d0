/* SPDX-License-Identifier: BSD-2-Clause */
/* Errors about names that nothing has: each lists what there is. One line, and only what the viewer
 * sees; viewer NULL: root. */
#ifndef LIEN_KNOWN_H
#define LIEN_KNOWN_H

#include <stddef.h>

#include "agent/graph/viewer.h"

struct lien_node;

/* Room for any of these lines. */
#define LIEN_KNOWN_SIZE 512

/* Begins with `what` and the pid; NULL: with what an agent knows, the same for a process that does
 * not exist and for one that the viewer does not see. */
void lien_known_processes(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char *what, uint32_t pid, char *text, size_t size);
/* Returns one of the libraries of which the viewer sees no memory, on a device or offloaded; NULL:
 * there is none. Sorts the list. */
const char *lien_known_missing(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char **owners, unsigned count);
void lien_known_owners(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char *owner, char *text, size_t size);
/* Does the viewer see memory, on a device or offloaded, that has one of these tags? */
bool lien_known_any_tag(struct lien_graph *graph, const struct lien_viewer *viewer,
	const char *const *tags, unsigned count);
void lien_known_tags(struct lien_graph *graph, const struct lien_viewer *viewer, const char *tag,
	char *text, size_t size);
/* groups: those that the viewer sees. */
void lien_known_groups(
	const uint64_t *groups, unsigned count, const char *name, char *text, size_t size);
/* Lists nvidia-smi's indices; without NVML, the numbers from 0 on; count 0: none. */
void lien_known_gpus(
	const struct lien_node *node, unsigned count, const char *name, char *text, size_t size);

#endif
