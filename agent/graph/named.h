/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a request may name, collected once, in order: so a request that names much costs one walk
 * over the graph and a lookup for each name.
 */
#ifndef LIEN_NAMED_H
#define LIEN_NAMED_H

#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/graph/devices.h"
#include "agent/graph/graph.h"

/*
 * The groups of the communicators that the viewer sees, sorted, each once, for lien_u64_find().
 * The caller frees them. -ENOMEM.
 */
int lien_groups_seen(struct lien_graph *graph, const struct lien_viewer *viewer, uint64_t **groups,
	unsigned *count);

struct lien_named_gpu {
	char text[LIEN_UUID_TEXT];
	struct lien_uuid uuid;
	bool chosen; /* the caller's; false */
};

/*
 * The devices of the processes that the viewer sees, sorted by text, each text once. The caller
 * frees them. -ENOMEM.
 */
int lien_gpus_seen(struct lien_graph *graph, const struct lien_viewer *viewer,
	struct lien_named_gpu **gpus, unsigned *count);
/* Returns how many begin with the text, and the first of them. Nothing begins with "". */
unsigned lien_gpus_find(
	const struct lien_named_gpu *gpus, unsigned count, const char *text, unsigned *first);

static inline int lien_uuid_cmp(const void *a, const void *b)
{
	return memcmp(((const struct lien_uuid *)a)->bytes, ((const struct lien_uuid *)b)->bytes,
		sizeof(((const struct lien_uuid *)a)->bytes));
}

static inline bool lien_uuids_find(
	const struct lien_uuid *sorted, unsigned count, const struct lien_uuid *uuid)
{
	return count && bsearch(uuid, sorted, count, sizeof(*uuid), lien_uuid_cmp);
}

/*
 * Errors about names that nothing has: each lists what there is. One line, and only what the viewer
 * sees; viewer NULL: root.
 */

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
