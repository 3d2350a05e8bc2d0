// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/adoption.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <lien/cuda_abi.h>
#include "agent/graph/pids.h"

/* Did this process import it from an unknown owner? */
static bool unknown_in(const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_holding *holding;
	const struct lien_mapping *mapping;

	if (allocation->origin != LIEN_ORIGIN_IMPORT)
		return false;
	holding = LIST_FIRST(&allocation->holdings);
	mapping = holding && holding->process == process ? LIST_FIRST(&holding->mappings) : NULL;
	return mapping && !mapping->opened;
}

/* Has the process memory from before the agent, made or imported? */
static bool concerned(struct lien_process *process)
{
	struct lien_mapping *mapping;

	if (process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_ADOPTED))
		return true;
	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (mapping->holding->allocation->found ||
			unknown_in(mapping->holding->allocation, process))
			return true;
	return false;
}

static bool open_question(struct lien_process *process)
{
	const struct lien_allocation *allocation;
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		allocation = mapping->holding->allocation;
		if (unknown_in(allocation, process) || allocation->open ||
			(allocation->found && !allocation->adopted &&
				!lien_allocation_by_address(allocation)))
			return true;
	}
	return false;
}

unsigned lien_adoption_pids(
	struct lien_graph *graph, const uint32_t *pids, unsigned count, uint32_t *all)
{
	struct lien_process *process;
	uint32_t *sorted = lien_pids_sorted(pids, count);
	unsigned n = 0;
	bool any = !sorted; /* out of memory for the check: assume that there is something to ask */

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process)) {
		if (!process->cuda || process->ended || !concerned(process) ||
			process->presence != LIEN_CONTROL_READY)
			continue;
		all[n++] = process->pid;
		any = any || lien_pids_find(sorted, count, process->pid) || open_question(process);
	}
	free(sorted);
	return any ? n : 0;
}

/* Returns a device that can read it, and also write it if any can. -1: none. */
static int device_of(const struct lien_mapping *mapping, bool write)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	const struct lien_access *access;
	int device = -1;
	unsigned i;

	for (i = 0; set && i < set->count; i++) {
		access = &set->access[i];
		if (access->location_type != CU_MEM_LOCATION_TYPE_DEVICE || !access->flags)
			continue;
		if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return access->location_id;
		if (!write)
			device = access->location_id;
	}
	return device;
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
	const struct lien_process *process, const struct lien_mapping *mapping)
{
	uint32_t flags = 0;

	if (lien_allocation_by_address(allocation) || mapping->parked ||
		allocation->origin == LIEN_ORIGIN_MULTICAST)
		return 0;
	if (unknown_in(allocation, process))
		return LIEN_WIRE_ADOPT_LOOK | (allocation->adopted ? 0 : LIEN_WIRE_ADOPT_COUNT);
	if (allocation->found && !allocation->adopted && allocation->owner == process)
		flags |= LIEN_WIRE_ADOPT_COUNT;
	if (handed_out(allocation, process) && device_of(mapping, true) >= 0 &&
		!on_card(mapping, process))
		flags |= LIEN_WIRE_ADOPT_OWN;
	return flags;
}

static int entry_add(
	struct lien_adoption_process *process, const struct lien_mapping *mapping, uint32_t flags)
{
	unsigned room = process->room ? 2 * process->room : 64;
	struct lien_wire_adopt *entry, *grown;
	int device = device_of(mapping, false);

	if (process->count == process->room) {
		grown = realloc(process->entries, room * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		process->entries = grown;
		process->room = room;
	}
	entry = &process->entries[process->count++];
	memset(entry, 0, sizeof(*entry));
	entry->va = mapping->va;
	entry->steps = mapping->bytes / LIEN_WIRE_STEP;
	entry->device = device;
	entry->flags = device < 0 ? flags & LIEN_WIRE_ADOPT_COUNT : flags;
	if (device_of(mapping, true) < 0)
		entry->flags |= LIEN_WIRE_ADOPT_READ_ONLY;
	if (flags & LIEN_WIRE_ADOPT_OWN &&
		getrandom(entry->mark, sizeof(entry->mark), 0) != sizeof(entry->mark))
		return -EIO;
	return 0;
}

/* Returns the possible access through it: 2 read and write, 1 read, 0 none. */
static int reach(const struct lien_mapping *mapping)
{
	return (device_of(mapping, false) >= 0) + (device_of(mapping, true) >= 0);
}

/* Returns the mapping that stands for an allocation in a process: the one with the best access, to
 * be marked or read; the lowest of these. */
static const struct lien_mapping *standing_for(const struct lien_holding *holding)
{
	const struct lien_mapping *mapping, *best = NULL;
	int reaches, most = -1;

	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		reaches = reach(mapping);
		if (reaches < most || (reaches == most && mapping->va > best->va))
			continue;
		best = mapping;
		most = reaches;
	}
	return best;
}

static int by_address(const void *a, const void *b)
{
	const struct lien_wire_adopt *x = a, *y = b;

	return (x->va > y->va) - (x->va < y->va);
}

static int plan_process(struct lien_adoption *adoption, struct lien_adoption_process *part,
	struct lien_process *process)
{
	const struct lien_allocation *allocation;
	const struct lien_mapping *standing;
	struct lien_mapping *mapping;
	uint32_t flags;
	bool marked_once;
	int err = 0;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
		if (err || mapping != LIST_FIRST(&mapping->holding->mappings))
			continue; /* once per allocation, not for each mapping */
		allocation = mapping->holding->allocation;
		standing = standing_for(mapping->holding);
		flags = questions(allocation, process, standing);
		marked_once = handed_out(allocation, process) && allocation->round;
		if (!flags && !marked_once)
			continue;
		err = entry_add(part, standing, flags);
		if (err)
			continue;
		flags = part->entries[part->count - 1].flags;
		adoption->marked += (flags & LIEN_WIRE_ADOPT_OWN) != 0;
		adoption->looked += (flags & LIEN_WIRE_ADOPT_LOOK) != 0;
	}
	if (part->count)
		qsort(part->entries, part->count, sizeof(part->entries[0]), by_address);
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

static int by_pid(const void *a, const void *b)
{
	const struct lien_adoption_process *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

int lien_adoption_plan(struct lien_graph *graph, const uint32_t *pids, unsigned count,
	const uint32_t *all, unsigned all_count, struct lien_adoption *adoption)
{
	struct lien_adoption_process *part;
	struct lien_process *process;
	uint32_t *sorted;
	unsigned i;
	int err = 0;

	memset(adoption, 0, sizeof(*adoption));
	sorted = lien_pids_sorted(pids, count);
	adoption->processes = calloc(all_count + 1, sizeof(*adoption->processes));
	if (!adoption->processes || !sorted) {
		free(sorted);
		lien_adoption_clear(adoption);
		return -ENOMEM;
	}
	for (i = 0; i < all_count && !err; i++) {
		process = lien_graph_process(graph, all[i]);
		if (!process)
			continue;
		part = &adoption->processes[adoption->count++];
		part->pid = process->pid;
		part->uid = process->uid;
		part->start = process->start;
		part->read = lien_pids_find(sorted, count, process->pid);
		err = plan_process(adoption, part, process);
	}
	free(sorted);
	if (adoption->count)
		qsort(adoption->processes, adoption->count, sizeof(adoption->processes[0]), by_pid);
	look_for_outsiders(adoption, graph);
	adoption->marks = adoption->marked && !adoption->outsider;
	if (err)
		lien_adoption_clear(adoption);
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

struct lien_adoption_process *lien_adoption_process(
	const struct lien_adoption *adoption, uint32_t pid)
{
	const struct lien_adoption_process key = {.pid = pid};

	return adoption->count
		       ? bsearch(&key, adoption->processes, adoption->count, sizeof(key), by_pid)
		       : NULL;
}

int lien_adoption_open(
	struct lien_adoption_process *process, const uint8_t bytes[LIEN_WIRE_MARK_BYTES])
{
	uint8_t(*grown)[LIEN_WIRE_MARK_BYTES] =
		realloc(process->open, (process->open_count + 1) * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	process->open = grown;
	memcpy(grown[process->open_count++], bytes, sizeof(*grown));
	return 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

struct mark {
	const struct lien_wire_adopt *entry;
	struct lien_process *owner;
	bool open;     /* an open descriptor exports it */
	bool disputed; /* another owner found this mark in memory that it claims */
};

struct answers {
	struct lien_adoption *adoption;
	struct lien_graph *graph;
	struct lien_emitter *emitter;
	uint32_t round;	    /* 0: nothing was compared */
	struct mark *marks; /* sorted by their bytes */
	unsigned count;
};

static int by_mark(const void *a, const void *b)
{
	const struct mark *x = a, *y = b;

	return memcmp(x->entry->mark, y->entry->mark, sizeof(x->entry->mark));
}

static void collect_marks(struct answers *answers)
{
	const struct lien_adoption *adoption = answers->adoption;
	const struct lien_adoption_process *part;
	struct lien_process *process;
	unsigned i, j;

	answers->marks = calloc(adoption->marked + 1, sizeof(*answers->marks));
	for (i = 0; answers->marks && adoption->marks && i < adoption->count; i++) {
		part = &adoption->processes[i];
		process = lien_graph_process(answers->graph, part->pid);
		for (j = 0; process && j < part->count; j++)
			if (part->entries[j].flags & LIEN_WIRE_ADOPT_OWN)
				answers->marks[answers->count++] =
					(struct mark){.entry = &part->entries[j], .owner = process};
	}
	if (answers->count)
		qsort(answers->marks, answers->count, sizeof(answers->marks[0]), by_mark);
}

static struct mark *mark_seen(
	const struct answers *answers, const uint8_t bytes[LIEN_WIRE_MARK_BYTES])
{
	struct lien_wire_adopt seen = {0};
	const struct mark key = {.entry = &seen};

	memcpy(seen.mark, bytes, sizeof(seen.mark));
	return answers->count ? bsearch(&key, answers->marks, answers->count, sizeof(key), by_mark)
			      : NULL;
}

static void note_open(struct answers *answers)
{
	const struct lien_adoption_process *part;
	struct mark *mark;
	unsigned i, j;

	for (i = 0; i < answers->adoption->count; i++) {
		part = &answers->adoption->processes[i];
		for (j = 0; j < part->open_count; j++) {
			mark = mark_seen(answers, part->open[j]);
			if (!mark)
				continue;
			mark->open = true;
			answers->adoption->open++;
		}
	}
}

static void find_disputes(struct answers *answers)
{
	const struct lien_wire_adopt *entry;
	struct mark *other;
	unsigned i;

	for (i = 0; i < answers->count; i++) {
		entry = answers->marks[i].entry;
		if (!memcmp(entry->bytes, entry->mark, sizeof(entry->mark)))
			continue;
		answers->marks[i].disputed = true;
		other = mark_seen(answers, entry->bytes);
		if (other)
			other->disputed = true;
	}
}

static struct lien_allocation *allocation_at(struct lien_process *process, uint64_t va)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);

	return mapping && mapping->va == va ? mapping->holding->allocation : NULL;
}

static struct lien_handle *handle_of(
	const struct lien_allocation *allocation, const struct lien_process *process)
{
	const struct lien_holding *holding = lien_allocation_holding(allocation, process);

	return holding ? TAILQ_LAST(&holding->handles, lien_handle_list) : NULL;
}

/*
 * Returns the handle that was asked about: a process may have several, from imports of its own
 * memory.
 */
static struct lien_handle *meant(const struct lien_wire_adopt *entry, struct lien_process *process)
{
	struct lien_allocation *allocation = allocation_at(process, entry->va);
	struct lien_handle key = {.value = entry->handle}, *handle;

	if (!allocation || !(entry->flags & LIEN_WIRE_ADOPT_COUNT))
		return allocation ? handle_of(allocation, process) : NULL;
	handle = SPLAY_FIND(lien_handle_tree, &process->handles, &key);
	return handle && handle->holding->allocation == allocation ? handle : NULL;
}

/*
 * Returns the application's references: the counted number, or the graph's if it was not counted.
 */
static uint32_t references_of(const struct lien_wire_adopt *entry, const struct lien_handle *handle)
{
	return entry->flags & LIEN_WIRE_ADOPT_COUNT ? entry->references : handle->references;
}

static void emit_references(struct answers *answers, struct lien_process *process, uint64_t handle,
	uint32_t references, uint32_t round, bool open, bool part)
{
	struct lien_event event = lien_emit_event(answers->emitter, process, LIEN_EVENT_ADOPT);

	event.adopt.handle = handle;
	event.adopt.references = references;
	event.adopt.round = round;
	event.adopt.open = open;
	event.adopt.part = part;
	lien_emit(answers->emitter, &event, LIEN_EVENT_SIZE(adopt));
}

/* An address at which an import is mapped. */
struct place {
	uint64_t va, bytes;
	const struct lien_access_set *access;
};

static struct place *places_of(const struct lien_holding *holding, unsigned *count)
{
	struct place *places = calloc(holding->mapped + 1, sizeof(*places));
	const struct lien_mapping *mapping;

	*count = 0;
	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		if (places)
			places[(*count)++] = (struct place){
				mapping->va, mapping->bytes, lien_mapping_access(mapping)};
	return places;
}

static void emit_taken_away(struct answers *answers, struct lien_process *process,
	const struct place *places, unsigned count, uint64_t value)
{
	struct lien_handle key = {.value = value}, *handle;
	struct lien_event event;
	unsigned i;

	for (i = 0; i < count; i++) {
		event = lien_emit_event(answers->emitter, process, LIEN_CALL_CU_MEM_UNMAP);
		event.range.va = places[i].va;
		event.range.bytes = places[i].bytes;
		lien_emit_given_back(answers->emitter, &event, LIEN_EVENT_SIZE(range));
	}
	handle = SPLAY_FIND(lien_handle_tree, &process->handles, &key);
	if (handle)
		lien_emit_release_all(answers->emitter, handle);
}

/*
 * An application's exports have small numbers; these are in a range of their own, and never repeat.
 */
#define SHARE_FOUND (1ull << 62)

static uint64_t emit_export(struct answers *answers, struct lien_process *owner, uint64_t handle)
{
	struct lien_event event = lien_emit_event(answers->emitter, owner, LIEN_CALL_CU_MEM_EXPORT);

	event.share.handle = handle;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.share = SHARE_FOUND | event.t_entry;
	event.share.fd = -1;
	lien_emit(answers->emitter, &event, LIEN_EVENT_SIZE(share));
	return event.share.share;
}

static void emit_import(struct answers *answers, struct lien_process *process, uint64_t handle,
	uint64_t share, const struct place *places, unsigned count)
{
	struct lien_event event =
		lien_emit_event(answers->emitter, process, LIEN_CALL_CU_MEM_IMPORT);
	unsigned i;

	event.share.handle = handle;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.share = share;
	event.share.fd = -1;
	lien_emit(answers->emitter, &event, LIEN_EVENT_SIZE(share));
	for (i = 0; i < count; i++) {
		event = lien_emit_event(answers->emitter, process, LIEN_CALL_CU_MEM_MAP);
		event.map.va = places[i].va;
		event.map.bytes = places[i].bytes;
		event.map.handle = handle;
		lien_emit(answers->emitter, &event, LIEN_EVENT_SIZE(map));
		if (!places[i].access || places[i].access->count > LIEN_ACCESS_MAX)
			continue;
		event = lien_emit_event(answers->emitter, process, LIEN_CALL_CU_MEM_SET_ACCESS);
		event.access.va = places[i].va;
		event.access.bytes = places[i].bytes;
		event.access.count = places[i].access->count;
		memcpy(event.access.access, places[i].access->access,
			places[i].access->count * sizeof(event.access.access[0]));
		lien_emit(answers->emitter, &event, LIEN_EVENT_SIZE(access));
	}
}

/* Turns an import of unknown owner into an import of the owner's memory. */
static bool emit_match(struct answers *answers, struct lien_process *process,
	const struct lien_wire_adopt *entry, const struct mark *mark)
{
	struct lien_allocation *memory = allocation_at(mark->owner, mark->entry->va);
	struct lien_handle *own = memory ? handle_of(memory, mark->owner) : NULL;
	struct lien_handle *handle = meant(entry, process);
	uint32_t references;
	struct place *places;
	uint64_t value;
	unsigned count;

	if (!own || !handle || memory->owner != mark->owner)
		return false;
	places = places_of(handle->holding, &count);
	if (!places)
		return false;
	value = handle->value;
	references = references_of(entry, handle);
	emit_taken_away(answers, process, places, count, value);
	emit_import(answers, process, value, emit_export(answers, mark->owner, own->value), places,
		count);
	emit_references(answers, process, value, references, memory->round, memory->open, false);
	free(places);
	return true;
}

/* It may belong to anybody: makes it an import of unknown owner. */
static void emit_disputed(struct answers *answers, struct lien_process *process,
	const struct lien_wire_adopt *entry, struct lien_handle *handle)
{
	uint32_t references = references_of(entry, handle);
	uint64_t value = handle->value;
	struct place *places;
	unsigned count;

	answers->adoption->disputed++;
	places = places_of(handle->holding, &count);
	if (!places)
		return;
	emit_taken_away(answers, process, places, count, value);
	emit_import(answers, process, value, 0, places, count);
	emit_references(answers, process, value, references, 0, false, false);
	free(places);
}

/* Owners first: imports are matched with memory that has been adopted. */
static void emit_own(struct answers *answers, const struct lien_adoption_process *part,
	struct lien_process *process)
{
	const struct lien_wire_adopt *entry;
	struct lien_allocation *allocation;
	struct lien_handle *handle;
	const struct mark *own;
	uint32_t round;
	unsigned i;

	for (i = 0; i < part->count; i++) {
		entry = &part->entries[i];
		allocation = allocation_at(process, entry->va);
		handle = meant(entry, process);
		if (!handle || allocation->owner != process)
			continue;
		own = entry->flags & LIEN_WIRE_ADOPT_OWN ? mark_seen(answers, entry->mark) : NULL;
		if (own && own->disputed) {
			emit_disputed(answers, process, entry, handle);
			continue;
		}
		round = allocation->round ? allocation->round : answers->round;
		if (!(entry->flags & LIEN_WIRE_ADOPT_OWN))
			round = 0; /* it cannot be marked any more */
		answers->adoption->counted += (entry->flags & LIEN_WIRE_ADOPT_COUNT) != 0;
		emit_references(answers, process, handle->value, references_of(entry, handle),
			round, own && own->open,
			entry->flags & LIEN_WIRE_ADOPT_COUNT
				? (entry->flags & LIEN_WIRE_ADOPT_PART) != 0
				: allocation->part);
	}
}

static void emit_imports(struct answers *answers, const struct lien_adoption_process *part,
	struct lien_process *process)
{
	const struct lien_wire_adopt *entry;
	struct lien_allocation *allocation;
	const struct mark *mark;
	struct lien_handle *handle;
	uint32_t round;
	unsigned i;

	for (i = 0; i < part->count; i++) {
		entry = &part->entries[i];
		allocation = allocation_at(process, entry->va);
		handle = meant(entry, process);
		if (!handle || !unknown_in(allocation, process) ||
			entry->flags & LIEN_WIRE_ADOPT_OWN) /* disputed */
			continue;
		answers->adoption->counted += (entry->flags & LIEN_WIRE_ADOPT_COUNT) != 0;
		mark = entry->flags & LIEN_WIRE_ADOPT_LOOK && answers->adoption->marks
			       ? mark_seen(answers, entry->bytes)
			       : NULL;
		if (mark && emit_match(answers, process, entry, mark)) {
			answers->adoption->matched++;
			continue;
		}
		round = mark ? 0 : allocation->round;
		if (entry->flags & LIEN_WIRE_ADOPT_LOOK && answers->round && !mark)
			round = answers->round; /* memory that cannot be read was not compared */
		emit_references(answers, process, handle->value, references_of(entry, handle),
			round, false, false);
	}
}

static bool any_unknown(struct lien_process *process)
{
	struct lien_mapping *mapping;

	RB_FOREACH (mapping, lien_mapping_tree, &process->mappings)
		if (mapping->holding->allocation->origin == LIEN_ORIGIN_IMPORT)
			return true;
	return false;
}

static void emit_known(struct answers *answers, const struct lien_adoption_process *part,
	struct lien_process *process)
{
	struct lien_event event = lien_emit_event(answers->emitter, process, LIEN_EVENT_INCOMPLETE);
	uint32_t reasons = process->incomplete;

	if (part->read) {
		reasons &= ~(LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_REREAD);
		reasons |= LIEN_INCOMPLETE_ADOPTED | part->doubts;
	}
	if (!any_unknown(process))
		reasons &= ~LIEN_INCOMPLETE_SHARE;
	event.incomplete.reasons = reasons;
	if (reasons != process->incomplete)
		lien_emit(answers->emitter, &event, LIEN_EVENT_SIZE(incomplete));
}

void lien_adoption_emit(
	struct lien_adoption *adoption, struct lien_graph *graph, struct lien_emitter *emitter)
{
	struct answers answers = {adoption, graph, emitter, 0, NULL, 0};
	void (*const steps[])(struct answers *, const struct lien_adoption_process *,
		struct lien_process *) = {emit_own, emit_imports, emit_known};
	struct lien_process *process;
	unsigned i, step;

	/* If there is nothing to look at, or nothing to mark, everything counts as compared. */
	if (!adoption->outsider)
		answers.round = lien_graph_round(graph) + 1;
	collect_marks(&answers);
	note_open(&answers);
	find_disputes(&answers);
	for (step = 0; answers.marks && step < sizeof(steps) / sizeof(steps[0]); step++)
		for (i = 0; i < adoption->count; i++) {
			process = lien_graph_process(graph, adoption->processes[i].pid);
			if (process && process->start == adoption->processes[i].start)
				steps[step](&answers, &adoption->processes[i], process);
		}
	free(answers.marks);
}
