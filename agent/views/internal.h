/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of several answers, shared by the views' own files. All return new references. */
#ifndef LIEN_VIEWS_INTERNAL_H
#define LIEN_VIEWS_INTERNAL_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "agent/views/views.h"

/* Appends what json_pack() makes of this. */
static inline void lien_view_add(json_t *list, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	json_array_append_new(list, json_vpack_ex(NULL, 0, format, args));
	va_end(args);
}

/* "0x7f00": addresses and handles do not fit JSON's numbers. */
static inline json_t *lien_view_hex(uint64_t value)
{
	return json_sprintf("0x%" PRIx64, value);
}

/* Names a communicator's group by the start of the unique id, which is NCCL's random magic. */
static inline json_t *lien_view_group(const struct lien_comm *comm)
{
	return json_sprintf("%016" PRIx64, lien_comm_group(comm));
}

/* A communicator, its use, and its memory. */
struct lien_comm_entry {
	struct lien_process *process;
	const struct lien_comm *comm;
	const struct lien_probe_traffic *traffic; /* NULL: not used so far, or not counted */
	uint64_t exact, inferred, host, host_inferred, offloaded;
};

struct lien_comm_entries {
	const struct lien_viewer *viewer;
	struct lien_comm_entry *entry;
	size_t count;
	/* Entries for communicators that are counted, but were made before they could be seen. */
	struct lien_comm *unseen;
	size_t unseen_count;
	bool counted; /* a communicator that is not counted was not used */
	uint64_t now_ns;
};

/* Fills in the entries of what entries->viewer sees, sorted for lien_comm_entry(). Sorts `counted`
 * as a side effect. 0, or -1: out of memory. lien_comms_free() in any case. */
int lien_comms_gather(struct lien_comm_entries *entries, struct lien_graph *graph,
	struct lien_counted *counted, size_t count);
static inline void lien_comms_free(struct lien_comm_entries *entries)
{
	free(entries->entry);
	free(entries->unseen);
}

struct lien_comm_entry *lien_comm_entry(
	const struct lien_comm_entries *entries, const struct lien_comm *comm);

json_t *lien_view_left(const struct lien_left *left, unsigned count);
/* Returns the GPU that device memory lies on; NULL: its owner's ordinals are not known. */
static inline const struct lien_uuid *lien_allocation_gpu(const struct lien_allocation *allocation)
{
	const struct lien_ordinals *ordinals =
		allocation->owner ? allocation->owner->ordinals : NULL;
	int ordinal = allocation->prop.location_id;

	return ordinals && ordinal >= 0 && (unsigned)ordinal < ordinals->count
		       ? &ordinals->uuid[ordinal]
		       : NULL;
}

/*
 * Returns the name of the row of `mem` by an aspect that `sample` is part of. By rank, `process`
 * has it; NULL: it has ended. The caller frees; NULL: out of memory.
 */
char *lien_mem_words(enum lien_mem_by by, const struct lien_allocation *sample,
	struct lien_process *process, const struct lien_node *node);

#endif
