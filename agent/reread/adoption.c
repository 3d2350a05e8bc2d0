// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/adoption.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <lien/cuda_abi.h>
#include "agent/graph/array.h"

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

/* Is it an import of unknown owner that its process may have made? Re-reading has found it. */
static bool is_untyped(const struct lien_allocation *allocation)
{
	/* Only re-reading tells properties of imports. */
	return allocation->origin == LIEN_ORIGIN_IMPORT && allocation->found &&
	       allocation->prop.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       allocation->prop.location_type == CU_MEM_LOCATION_TYPE_DEVICE;
}

struct lien_adoption_process *lien_adoption_process(
	const struct lien_adoption *adoption, uint32_t pid)
{
	return adoption->count ? bsearch(&pid, adoption->processes, adoption->count,
					 sizeof(*adoption->processes), lien_pid_cmp)
			       : NULL;
}

/* Returns what a process is asked about an address; NULL: nothing. */
static const struct lien_wire_adopt *entry_of(
	const struct lien_adoption *adoption, uint32_t pid, uint64_t va)
{
	const struct lien_adoption_process *part = lien_adoption_process(adoption, pid);

	return part && part->count ? bsearch(&va, part->entries, part->count,
					     sizeof(*part->entries), lien_u64_cmp)
				   : NULL;
}

/* Has the process memory from before the agent, made or imported? */
static bool concerned(struct lien_process *process)
{
	struct lien_mapping *mapping;

	if (process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED))
		return true;
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (mapping->holding->allocation->found ||
			lien_unknown_in(mapping->holding->allocation, process))
			return true;
	return false;
}

static bool open_question(struct lien_process *process)
{
	const struct lien_allocation *allocation;
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		allocation = mapping->holding->allocation;
		if (lien_unknown_in(allocation, process) || allocation->open ||
			(allocation->found && !allocation->adopted &&
				!lien_allocation_by_address(allocation)))
			return true;
	}
	return false;
}

int lien_adoption_begin(struct lien_graph *graph, const uint32_t *pids, unsigned count,
	struct lien_adoption *adoption)
{
	struct lien_adoption_process *part;
	struct lien_process *process;
	bool any = false;

	memset(adoption, 0, sizeof(*adoption));
	adoption->processes =
		calloc(lien_graph_stats(graph)->processes + 1, sizeof(*adoption->processes));
	if (!adoption->processes)
		return -ENOMEM;
	LIEN_FOREACH_PROCESS (process, graph) {
		if (!process->cuda || process->ended || !concerned(process) ||
			process->presence != LIEN_CONTROL_READY)
			continue;
		part = &adoption->processes[adoption->count++];
		part->pid = process->pid;
		part->uid = process->uid;
		part->start = process->start;
		part->read = count && lien_pids_find(pids, count, process->pid);
		any = any || part->read || open_question(process);
	}
	if (!any)
		adoption->count = 0;
	return 0;
}

/* The mapping that stands for an allocation in a process, to be marked or read. */
struct standing {
	const struct lien_mapping *mapping;
	int device;  /* can read it, and also write it if any can; -1: none */
	bool writes; /* it can */
};

static struct standing reached_by(const struct lien_mapping *mapping)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	struct standing standing = {mapping, -1, false};
	const struct lien_access *access;
	unsigned i;

	for (i = 0; set && i < set->count && !standing.writes; i++) {
		access = &set->access[i];
		if (access->location_type != CU_MEM_LOCATION_TYPE_DEVICE || !access->flags)
			continue;
		standing.device = access->location_id;
		standing.writes = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	return standing;
}

/* The one with the best access; the lowest of these. */
static struct standing standing_for(const struct lien_holding *holding)
{
	struct standing best = reached_by(LIST_FIRST(&holding->mappings)), other;
	const struct lien_mapping *mapping;
	int better;

	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		other = reached_by(mapping);
		better = (other.device >= 0) + other.writes - (best.device >= 0) - best.writes;
		if (better > 0 || (!better && mapping->va < best.mapping->va))
			best = other;
	}
	return best;
}

/* Other processes may have imported it before it was watched. */
static bool handed_out(const struct lien_allocation *allocation, const struct lien_process *process)
{
	return allocation->found && allocation->owner == process && allocation->prop.handle_types;
}

/* A card may send or write it at any time, even at rest. */
static bool on_card(const struct lien_mapping *mapping, const struct lien_process *process)
{
	return process->incomplete & LIEN_INCOMPLETE_CARDS || lien_mapping_card_keeps(mapping);
}

/* Returns what to ask about it in a process; 0: nothing. */
static uint32_t questions(const struct lien_allocation *allocation,
	const struct lien_process *process, const struct standing *standing)
{
	uint32_t flags = 0;
	bool marks;

	if (lien_allocation_by_address(allocation) || standing->mapping->parked ||
		allocation->origin == LIEN_ORIGIN_MULTICAST)
		return 0;
	marks = standing->writes && !on_card(standing->mapping, process);
	if (lien_unknown_in(allocation, process)) {
		if (marks && is_untyped(allocation))
			return LIEN_WIRE_ADOPT_LOOK | LIEN_WIRE_ADOPT_OWN | LIEN_WIRE_ADOPT_COUNT;
		return LIEN_WIRE_ADOPT_LOOK | (allocation->adopted ? 0 : LIEN_WIRE_ADOPT_COUNT);
	}
	if (allocation->found && !allocation->adopted && allocation->owner == process)
		flags |= LIEN_WIRE_ADOPT_COUNT;
	if (marks && handed_out(allocation, process))
		flags |= LIEN_WIRE_ADOPT_OWN;
	return flags;
}

static int entry_add(
	struct lien_adoption_process *process, const struct standing *standing, uint32_t flags)
{
	struct lien_wire_adopt *entry;

	if (lien_array_grow(&process->entries, process->count, &process->room, sizeof(*entry)))
		return -ENOMEM;
	entry = &process->entries[process->count++];
	memset(entry, 0, sizeof(*entry));
	entry->va = standing->mapping->va;
	entry->steps = standing->mapping->bytes / LIEN_WIRE_STEP;
	entry->device = standing->device;
	entry->flags = standing->device < 0 ? flags & LIEN_WIRE_ADOPT_COUNT : flags;
	if (!standing->writes)
		entry->flags |= LIEN_WIRE_ADOPT_READ_ONLY;
	if (flags & LIEN_WIRE_ADOPT_OWN &&
		getrandom(entry->mark, sizeof(entry->mark), 0) != sizeof(entry->mark))
		return -EIO;
	return 0;
}

static int plan_process(struct lien_adoption *adoption, struct lien_adoption_process *part,
	struct lien_process *process)
{
	const struct lien_allocation *allocation;
	struct standing standing;
	struct lien_mapping *mapping;
	uint32_t flags;
	bool marked_once;
	int err = 0;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		if (err || mapping != LIST_FIRST(&mapping->holding->mappings))
			continue; /* once per allocation, not for each mapping */
		allocation = mapping->holding->allocation;
		standing = standing_for(mapping->holding);
		flags = questions(allocation, process, &standing);
		marked_once = handed_out(allocation, process) && allocation->round;
		if (!flags && !marked_once)
			continue;
		err = entry_add(part, &standing, flags);
		if (err)
			continue;
		flags = part->entries[part->count - 1].flags;
		if (flags & LIEN_WIRE_ADOPT_LOOK)
			adoption->untyped += (flags & LIEN_WIRE_ADOPT_OWN) != 0;
		else
			adoption->marked += (flags & LIEN_WIRE_ADOPT_OWN) != 0;
		adoption->looked += (flags & LIEN_WIRE_ADOPT_LOOK) != 0;
	}
	if (part->count)
		qsort(part->entries, part->count, sizeof(part->entries[0]), lien_u64_cmp);
	return err;
}

/*
 * No process may be at work that could see a mark, or that may have imported memory that gets one.
 */
static void look_for_outsiders(struct lien_adoption *adoption, struct lien_graph *graph)
{
	const struct lien_adoption_process *part;
	struct lien_process *process;

	for (process = lien_graph_first(graph); process && !adoption->outsider;
		process = lien_graph_next(process)) {
		if (!process->cuda || process->ended)
			continue;
		part = lien_adoption_process(adoption, process->pid);
		if (process->incomplete & LIEN_INCOMPLETE_LATE ? !part || !part->read
							       : !part && concerned(process))
			adoption->outsider = process->pid;
	}
}

/* These hide no memory from adoption: it reads all that is late, and counts the imports. */
#define READABLE                                                                                   \
	(LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_NCCL |                   \
		LIEN_INCOMPLETE_CARDS | LIEN_INCOMPLETE_SHARE | LIEN_INCOMPLETE_MULTICAST |        \
		LIEN_INCOMPLETE_MULTICAST_OWN)

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
			entry = entry_of(adoption, allocation->owner->pid, mapping->va);
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

static void plan_untyped(struct lien_adoption *adoption, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_process *process;
	unsigned imports = 0;

	if (!adoption->untyped)
		return;
	LIEN_FOREACH_PROCESS (process, graph)
		adoption->unread |= hides(adoption, process);
	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		imports += is_import(allocation);
		if (allocation->bytes > adoption->unmarked && may_be_imported(allocation) &&
			!is_marked(adoption, allocation))
			adoption->unmarked = allocation->bytes;
	}
	adoption->unread |= imports > adoption->looked;
}

int lien_adoption_plan(struct lien_graph *graph, struct lien_adoption *adoption)
{
	const unsigned count = adoption->count;
	struct lien_adoption_process *part;
	struct lien_process *process;
	unsigned i;
	int err = 0;

	for (i = adoption->count = 0; i < count && !err; i++) {
		part = &adoption->processes[i];
		process = lien_graph_living(graph, part->pid, part->start);
		if (!process)
			continue;
		adoption->processes[adoption->count] = *part;
		err = plan_process(adoption, &adoption->processes[adoption->count++], process);
	}
	look_for_outsiders(adoption, graph);
	adoption->marks = (adoption->marked || adoption->untyped) && !adoption->outsider;
	plan_untyped(adoption, graph);
	return err;
}

void lien_adoption_clear(struct lien_adoption *adoption)
{
	unsigned i;

	for (i = 0; i < adoption->count; i++) {
		free(adoption->processes[i].entries);
		free(adoption->processes[i].open);
	}
	free(adoption->processes);
	memset(adoption, 0, sizeof(*adoption));
}

int lien_adoption_open(
	struct lien_adoption_process *process, const uint8_t bytes[LIEN_WIRE_MARK_BYTES])
{
	if (lien_array_grow(&process->open, process->open_count, &process->open_room,
		    sizeof(*process->open)))
		return -ENOMEM;
	memcpy(process->open[process->open_count++], bytes, sizeof(*process->open));
	return 0;
}
