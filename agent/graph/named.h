/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a request may name, collected once, in order: so a request that names much costs one walk
 * over the graph and a lookup for each name.
 */
#ifndef LIEN_NAMED_H
#define LIEN_NAMED_H

#include "agent/graph/devices.h"
#include "agent/graph/viewer.h"

/*
 * The groups of the communicators that the viewer sees, sorted, each once, for lien_groups_find().
 * The caller frees them. -ENOMEM.
 */
int lien_groups_seen(struct lien_graph *graph, const struct lien_viewer *viewer, uint64_t **groups,
	unsigned *count);
/* Sorts groups for lien_groups_find(). */
void lien_groups_sort(uint64_t *groups, unsigned count);
bool lien_groups_find(const uint64_t *sorted, unsigned count, uint64_t group);

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

/* For lien_uuids_find(). */
void lien_uuids_sort(struct lien_uuid *uuids, unsigned count);
bool lien_uuids_find(const struct lien_uuid *sorted, unsigned count, const struct lien_uuid *uuid);

#endif
