// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/untyped.h"

#include <lien/cuda_abi.h>

/* These hide no memory from adoption: it reads all that is late, and counts the imports. */
#define READABLE                                                                                   \
	(LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_NCCL |                   \
		LIEN_INCOMPLETE_CARDS | LIEN_INCOMPLETE_SHARE | LIEN_INCOMPLETE_MULTICAST |        \
		LIEN_INCOMPLETE_MULTICAST_OWN)

bool lien_unknown_in(const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;

	if (allocation->origin != LIEN_ORIGIN_IMPORT)
		return false;
	holding = LIST_FIRST(&allocation->holdings);
	mapping = holding && holding->process == process ? LIST_FIRST(&holding->mappings) : NULL;
	return mapping && !mapping->opened;
}

bool lien_untyped(const struct lien_allocation *allocation)
{
	/* Only re-reading tells properties of imports. */
	return allocation->origin == LIEN_ORIGIN_IMPORT && allocation->found &&
	       allocation->prop.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       allocation->prop.location_type == CU_MEM_LOCATION_TYPE_DEVICE;
}

/* Is it an import of unknown owner, by a handle? One that is not mapped counts as well. */
static bool is_import(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding = LIST_FIRST(&allocation->holdings);
	const struct lien_mapping *mapping = holding ? LIST_FIRST(&holding->mappings) : NULL;

	return allocation->origin == LIEN_ORIGIN_IMPORT && holding && !(mapping && mapping->opened);
}

static bool may_be_imported(const struct lien_allocation *allocation)
{
	return allocation->origin == LIEN_ORIGIN_CREATE && lien_allocation_on_device(allocation) &&
	       (allocation->exports || (allocation->found && allocation->prop.handle_types));
}

static bool is_marked(
	const struct lien_adoption *adoption, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;
	const struct lien_wire_adopt *entry;

	holding = allocation->owner ? lien_allocation_holding(allocation, allocation->owner) : NULL;
	if (holding)
		LIST_FOREACH (mapping, &holding->mappings, of_holding) {
			entry = lien_adoption_entry(adoption, allocation->owner->pid, mapping->va);
			if (entry && entry->flags & LIEN_WIRE_ADOPT_OWN)
				return true;
		}
	return false;
}

/* A service that keeps memory for others has handles and maps nothing. The driver does not list
 * handles. */
static bool may_keep_handles(struct lien_process *process)
{
	struct lien_mapping *mapping;
	enum lien_origin origin;

	if (!(process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED)))
		return false;
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		origin = mapping->holding->allocation->origin;
		if (!mapping->opened &&
			(origin == LIEN_ORIGIN_CREATE || origin == LIEN_ORIGIN_IMPORT))
			return false;
	}
	return true;
}

/* Returns true if the process may have memory that is not in the graph. */
static bool hides(const struct lien_adoption *adoption, struct lien_process *process)
{
	const struct lien_adoption_process *part = lien_adoption_process(adoption, process->pid);
	const uint32_t known = READABLE | (part && part->read ? LIEN_INCOMPLETE_REREAD : 0);

	return process->cuda && !process->ended &&
	       (process->incomplete & ~known || may_keep_handles(process));
}

void lien_untyped_plan(struct lien_adoption *adoption, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_process *process;
	unsigned imports = 0;

	if (!adoption->untyped)
		return;
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		adoption->unread |= hides(adoption, process);
	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		imports += is_import(allocation);
		if (allocation->bytes > adoption->unmarked && may_be_imported(allocation) &&
			!is_marked(adoption, allocation))
			adoption->unmarked = allocation->bytes;
	}
	adoption->unread |= imports > adoption->looked;
}
