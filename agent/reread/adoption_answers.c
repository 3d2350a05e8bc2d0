// SPDX-License-Identifier: BSD-2-Clause
/* Turns the answers to an adoption's questions into events. */
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>
#include "agent/reread/adoption.h"

struct mark {
	const struct lien_wire_adopt *entry;
	struct lien_process *owner;
	bool open;     /* an open descriptor exports it */
	bool disputed; /* another owner found this mark in memory that it claims */
	unsigned seen; /* how often it was read, by whom it belongs to or by others */
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

	answers->marks = calloc(adoption->marked + adoption->untyped + 1, sizeof(*answers->marks));
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

static void note_answers(struct answers *answers)
{
	const struct lien_adoption_process *part;
	struct mark *mark;
	unsigned i, j;

	for (i = 0; i < answers->adoption->count; i++) {
		part = &answers->adoption->processes[i];
		for (j = 0; j < part->count; j++) {
			mark = mark_seen(answers, part->entries[j].bytes);
			if (mark)
				mark->seen++;
		}
		for (j = 0; j < part->open_count; j++) {
			mark = mark_seen(answers, part->open[j]);
			if (!mark)
				continue;
			mark->open = true;
			answers->adoption->open++;
		}
	}
}

/* Has this memory types of handles, so that it was made here? */
static bool owns(const struct lien_wire_adopt *entry)
{
	return entry->flags & LIEN_WIRE_ADOPT_OWN && !(entry->flags & LIEN_WIRE_ADOPT_LOOK);
}

static void find_disputes(struct answers *answers)
{
	const struct lien_wire_adopt *entry;
	struct mark *other;
	unsigned i;

	for (i = 0; i < answers->count; i++) {
		entry = answers->marks[i].entry;
		if (!owns(entry) || !memcmp(entry->bytes, entry->mark, sizeof(entry->mark)))
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

static void emit_places(struct answers *answers, struct lien_process *process, uint64_t handle,
	const struct place *places, unsigned count)
{
	struct lien_event event;
	unsigned i;

	for (i = 0; i < count; i++) {
		lien_emit_map(answers->emitter, process, places[i].va, places[i].bytes, handle);
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

/*
 * Gives what a handle refers to another origin: it is taken away, and comes back at the same places
 * as memory that the process has made, or as an import (`own`: of this handle's memory; NULL: of
 * unknown owner). Returns false if out of memory: then it stays as it is.
 */
static bool emit_anew(struct answers *answers, struct lien_process *process,
	const struct lien_wire_adopt *entry, struct lien_handle *handle, bool made,
	const struct lien_handle *own)
{
	const struct lien_holding *holding = handle->holding;
	const struct lien_prop prop = holding->allocation->prop;
	const uint64_t bytes = holding->allocation->bytes;
	const uint32_t references = references_of(entry, handle);
	struct place *places = calloc(holding->mapped + 1, sizeof(*places));
	struct lien_handle key = {.value = handle->value};
	const struct lien_allocation *memory = own ? own->holding->allocation : NULL;
	const struct lien_mapping *mapping;
	unsigned count = 0, i;
	uint32_t round;

	if (!places)
		return false;
	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		places[count++] =
			(struct place){mapping->va, mapping->bytes, lien_mapping_access(mapping)};
	for (i = 0; i < count; i++)
		lien_emit_unmap(answers->emitter, process, places[i].va, places[i].bytes);
	handle = SPLAY_FIND(lien_handle_tree, &process->handles, &key);
	if (handle)
		lien_emit_release_all(answers->emitter, handle);
	if (made)
		lien_emit_create(answers->emitter, process, key.value, bytes, &prop);
	else
		lien_emit_import(answers->emitter, process, key.value,
			own ? emit_export(answers, own->holding->process, own->value) : 0);
	emit_places(answers, process, key.value, places, count);
	round = memory ? memory->round : 0;
	emit_references(answers, process, key.value, references, made ? answers->round : round,
		memory && memory->open, made && entry->flags & LIEN_WIRE_ADOPT_PART);
	free(places);
	return true;
}

/* Returns the handle of the memory that has this mark; NULL: its process does not own it. */
static struct lien_handle *marked(const struct mark *mark)
{
	const struct lien_allocation *memory = allocation_at(mark->owner, mark->entry->va);

	return memory && memory->owner == mark->owner ? handle_of(memory, mark->owner) : NULL;
}

/*
 * Was it made here? Only its own process has read its mark, and nothing that was not compared can
 * be the same memory.
 */
static bool was_made(const struct answers *answers, const struct lien_wire_adopt *entry,
	const struct lien_allocation *allocation, const struct mark *mark)
{
	const struct lien_adoption *adoption = answers->adoption;
	unsigned i;

	for (i = 0; i < adoption->count; i++)
		if (adoption->processes[i].awaits)
			return false;
	return mark && mark->entry == entry && mark->seen == 1 && !mark->open &&
	       !adoption->unread && allocation->bytes > adoption->unmarked &&
	       !(entry->flags & LIEN_WIRE_ADOPT_FABRIC);
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
			answers->adoption->disputed++; /* it may belong to anybody */
			emit_anew(answers, process, entry, handle, false, NULL);
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
	struct lien_handle *handle, *own;
	uint32_t round;
	unsigned i;
	bool owned;

	for (i = 0; i < part->count; i++) {
		entry = &part->entries[i];
		allocation = allocation_at(process, entry->va);
		handle = meant(entry, process);
		if (!handle || !lien_unknown_in(allocation, process) || owns(entry)) /* disputed */
			continue;
		answers->adoption->counted += (entry->flags & LIEN_WIRE_ADOPT_COUNT) != 0;
		mark = entry->flags & LIEN_WIRE_ADOPT_LOOK && answers->adoption->marks
			       ? mark_seen(answers, entry->bytes)
			       : NULL;
		own = mark ? marked(mark) : NULL;
		if (own && emit_anew(answers, process, entry, handle, false, own)) {
			answers->adoption->matched++;
			continue;
		}
		if (was_made(answers, entry, allocation, mark) &&
			emit_anew(answers, process, entry, handle, true, NULL)) {
			answers->adoption->made++;
			continue;
		}
		owned = mark && owns(mark->entry);
		round = owned ? 0 : allocation->round;
		if (entry->flags & LIEN_WIRE_ADOPT_LOOK && answers->round && !owned)
			round = answers->round; /* memory that cannot be read was not compared */
		emit_references(answers, process, handle->value, references_of(entry, handle),
			round, mark && mark->open, false);
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
		answers.round = lien_graph_stats(graph)->round + 1;
	collect_marks(&answers);
	note_answers(&answers);
	find_disputes(&answers);
	for (step = 0; answers.marks && step < sizeof(steps) / sizeof(steps[0]); step++)
		for (i = 0; i < adoption->count; i++) {
			process = lien_graph_process(graph, adoption->processes[i].pid);
			if (process && process->start == adoption->processes[i].start)
				steps[step](&answers, &adoption->processes[i], process);
		}
	free(answers.marks);
}
