// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/emit.h"

#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>

/* Kinds of places (CUmemLocationType); the last one stands for all that follow. */
#define LOCATION_TYPES 8

/* An application's exports have small numbers; these are in a range of their own, and never repeat.
 */
#define SHARE_FOUND (1ull << 62)

/* --- made-up calls ---------------------------------------------------------------------------- */

/* Returns an event without a body. */
static struct lien_event event_of(
	struct lien_emitter *emitter, const struct lien_process *process, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.type = type;
	event.flags = LIEN_EVENT_FOUND;
	event.pid = event.tid = process->pid;
	event.start = process->start;
	event.t_entry = event.t_return = ++emitter->now_ns;
	if (type >= LIEN_CALL_CU_INIT)
		event.outer = type;
	return event;
}

/* For calls whose body begins with a range. */
static struct lien_event event_at(struct lien_emitter *emitter, const struct lien_process *process,
	unsigned type, uint64_t va, uint64_t bytes)
{
	struct lien_event event = event_of(emitter, process, type);

	event.range.va = va;
	event.range.bytes = bytes;
	return event;
}

/* `size` as from LIEN_EVENT_SIZE(). */
static void emit(struct lien_emitter *emitter, struct lien_event *event, size_t size)
{
	event->size = size;
	emitter->emit(emitter->context, event);
}

/* Emits a release, with its announcement first. */
static void emit_release(struct lien_emitter *emitter, struct lien_event *event, size_t size)
{
	struct lien_event entry = *event;

	entry.flags |= LIEN_EVENT_ENTRY;
	entry.t_return = 0;
	emit(emitter, &entry, size);
	emit(emitter, event, size);
}

/* Releases every reference to it; the handle may be gone afterwards. */
static void emit_release_all(struct lien_emitter *emitter, struct lien_handle *handle)
{
	const struct lien_process *process = handle->holding->process;
	const uint64_t value = handle->value;
	uint32_t references = handle->references;
	struct lien_event event;

	for (; references; references--) {
		event = event_of(emitter, process, LIEN_CALL_CU_MEM_RELEASE);
		event.release.handle = value;
		emit_release(emitter, &event, LIEN_EVENT_SIZE(release));
	}
}

static void emit_unmap(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t va, uint64_t bytes)
{
	struct lien_event event = event_at(emitter, process, LIEN_CALL_CU_MEM_UNMAP, va, bytes);

	emit_release(emitter, &event, LIEN_EVENT_SIZE(range));
}

static void emit_create(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t handle, uint64_t bytes, struct lien_prop prop)
{
	struct lien_event event = event_of(emitter, process, LIEN_CALL_CU_MEM_CREATE);

	event.create.handle = handle;
	event.create.bytes = bytes;
	event.create.prop = prop;
	emit(emitter, &event, LIEN_EVENT_SIZE(create));
}

/* `share`: of the export; 0: of unknown owner. Exports are given theirs here. Returns it. */
static uint64_t emit_share(struct lien_emitter *emitter, const struct lien_process *process,
	unsigned call, uint64_t handle, uint64_t share)
{
	struct lien_event event = event_of(emitter, process, call);

	event.share.handle = handle;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.share = call == LIEN_CALL_CU_MEM_EXPORT ? SHARE_FOUND | event.t_entry : share;
	event.share.fd = -1;
	emit(emitter, &event, LIEN_EVENT_SIZE(share));
	return event.share.share;
}

static void emit_property(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t va, struct lien_prop prop)
{
	struct lien_event event = event_of(emitter, process, LIEN_EVENT_PROP);

	event.property.va = va;
	event.property.prop = prop;
	emit(emitter, &event, LIEN_EVENT_SIZE(property));
}

/* Sets the access that was found, and none for devices that only the graph has. */
_Static_assert(LIEN_WIRE_PLACES <= LIEN_ACCESS_MAX, "what is found fits an event");

static void emit_access(struct lien_emitter *emitter, struct lien_process *process,
	const struct lien_wire_found *found)
{
	const struct lien_mapping *mapping = lien_process_mapping(process, found->va);
	const struct lien_access_set *set = mapping ? lien_mapping_access(mapping) : NULL;
	struct lien_event event =
		event_at(emitter, process, LIEN_CALL_CU_MEM_SET_ACCESS, found->va, found->bytes);
	unsigned i, j, n;

	for (n = 0; n < found->places; n++)
		event.access.access[n] = (struct lien_access){found->place[n].location_type,
			found->place[n].location_id, found->place[n].flags};
	for (i = 0; set && i < set->count; i++) {
		const struct lien_access *known = &set->access[i];

		for (j = 0; j < found->places; j++)
			if (found->place[j].location_type == known->location_type &&
				found->place[j].location_id == known->location_id)
				break;
		if (j == found->places && n < LIEN_ACCESS_MAX &&
			known->location_type == CU_MEM_LOCATION_TYPE_DEVICE)
			event.access.access[n++] =
				(struct lien_access){known->location_type, known->location_id, 0};
	}
	event.access.count = n;
	if (n)
		emit(emitter, &event, LIEN_EVENT_SIZE(access));
}

/* Maps what was found. */
static void emit_map(struct lien_emitter *emitter, struct lien_process *process,
	const struct lien_wire_found *found)
{
	struct lien_event event =
		event_at(emitter, process, LIEN_CALL_CU_MEM_MAP, found->va, found->bytes);

	event.map.handle = found->handle;
	emit(emitter, &event, LIEN_EVENT_SIZE(map));
	emit_access(emitter, process, found);
}

static struct lien_mapping *mapping_at(struct lien_process *process, uint64_t va)
{
	struct lien_mapping *mapping = lien_process_mapping(process, va);

	return mapping && mapping->va == va ? mapping : NULL;
}

/* --- what a reading found --------------------------------------------------------------------- */

struct repair {
	struct lien_emitter *emitter;
	struct lien_process *process;
	uint64_t exported[LOCATION_TYPES]; /* the most bytes that other processes export together */
	bool others_unknown;		   /* not all exports of other processes are known */
};

static uint64_t *exported_at(struct repair *repair, uint32_t location_type)
{
	return &repair->exported[location_type < LOCATION_TYPES ? location_type
								: LOCATION_TYPES - 1];
}

static void look_at_others(struct repair *repair, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_process *process;
	uint64_t *most;

	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		most = exported_at(repair, allocation->prop.location_type);
		if (allocation->owner != repair->process && allocation->exports &&
			allocation->bytes > *most)
			*most = allocation->bytes;
	}
	LIEN_FOREACH_PROCESS (process, graph)
		repair->others_unknown |=
			process != repair->process && process->cuda &&
			process->incomplete & ~LIEN_INCOMPLETE_NCCL & ~LIEN_INCOMPLETE_CARDS;
}

/*
 * Removes what is no longer there. A handle whose last mapping is gone was probably released as
 * well. If it was not, its next use shows that, while a handle that is kept by mistake would never
 * go. If its value is seen again, it may be other memory: the driver reuses values.
 */
static void take_away(struct repair *repair, const struct lien_difference *difference)
{
	struct lien_mapping *mapping = mapping_at(repair->process, difference->va);
	struct lien_holding *holding = mapping ? mapping->holding : NULL;
	struct lien_handle *handle, *next;
	struct lien_event event;

	if (!mapping)
		return;
	if (holding->allocation->origin == LIEN_ORIGIN_ALLOC) {
		event = event_at(
			repair->emitter, repair->process, LIEN_CALL_CU_MEM_FREE, mapping->va, 0);
		emit_release(repair->emitter, &event, LIEN_EVENT_SIZE(range));
		return;
	}
	handle = holding->mapped == 1 ? TAILQ_FIRST(&holding->handles) : NULL;
	while (handle && !handle->references) /* these stand first, and go with the mapping */
		handle = TAILQ_NEXT(handle, of_holding);
	emit_unmap(repair->emitter, repair->process, mapping->va, mapping->bytes);
	for (; handle; handle = next) { /* what is mapped no more exists by its handles alone */
		next = TAILQ_NEXT(handle, of_holding);
		if (!handle->holding->mapped)
			emit_release_all(repair->emitter, handle);
	}
}

/* Another process whose exports are not all known may have made it. The driver (580) reports no
 * types of handles for imported memory. */
static bool may_be_imported(struct repair *repair, const struct lien_wire_found *found)
{
	return !found->handle_types &&
	       (repair->others_unknown ||
		       *exported_at(repair, found->location_type) >= found->bytes);
}

static struct lien_prop prop_of(const struct lien_wire_found *found)
{
	return (struct lien_prop){
		.type = found->prop_type,
		.handle_types = found->handle_types,
		.location_type = found->location_type,
		.location_id = found->location_id,
		.compression = found->compression,
		.rdma = found->rdma,
		.usage = found->usage,
	};
}

static void put_plain(struct repair *repair, const struct lien_wire_found *found)
{
	struct lien_event event = event_at(
		repair->emitter, repair->process, LIEN_CALL_CU_MEM_ALLOC, found->va, found->bytes);

	event.alloc.device =
		found->location_type == CU_MEM_LOCATION_TYPE_DEVICE ? found->location_id : -1;
	emit(repair->emitter, &event, LIEN_EVENT_SIZE(alloc));
}

static void put_there(struct repair *repair, const struct lien_wire_found *found)
{
	struct lien_handle *handle = lien_handle_find(repair->process, found->handle);
	bool imported = false;

	if (handle && !handle->holding->mapped) {
		emit_release_all(repair->emitter, handle);
		handle = NULL;
	}
	if (!handle) {
		imported = may_be_imported(repair, found);
		if (imported)
			emit_share(repair->emitter, repair->process, LIEN_CALL_CU_MEM_IMPORT,
				found->handle, 0);
		else /* the map of a longer one extends it */
			emit_create(repair->emitter, repair->process, found->handle, found->bytes,
				prop_of(found));
	}
	emit_map(repair->emitter, repair->process, found);
	if (imported) /* adoption may find that it was made here */
		emit_property(repair->emitter, repair->process, found->va, prop_of(found));
}

static void mend(struct repair *repair, const struct lien_difference *difference)
{
	const struct lien_wire_found *found = &difference->found;

	switch (difference->kind) {
	case LIEN_DIFFERENCE_PROPERTIES:
		emit_property(repair->emitter, repair->process, found->va, prop_of(found));
		__attribute__((fallthrough));
	case LIEN_DIFFERENCE_ACCESS:
		if (found->kind == LIEN_WIRE_AREA)
			emit_access(repair->emitter, repair->process, found);
		break;
	default:
		if (found->bytes && found->kind == LIEN_WIRE_PLAIN)
			put_plain(repair, found);
		else if (found->bytes)
			put_there(repair, found);
	}
}

void lien_reread_repair(const struct lien_reread *reread, struct lien_graph *graph,
	struct lien_process *process, struct lien_emitter *emitter)
{
	const struct lien_difference *first = reread->certain.difference, *difference;
	const struct lien_difference *end = first + reread->certain.count;
	struct repair repair = {.emitter = emitter, .process = process};

	look_at_others(&repair, graph);
	for (difference = first; difference < end; difference++)
		if (difference->kind == LIEN_DIFFERENCE_GONE ||
			difference->kind == LIEN_DIFFERENCE_SIZE ||
			difference->kind == LIEN_DIFFERENCE_HANDLE)
			take_away(&repair, difference);
	for (difference = first; difference < end; difference++)
		mend(&repair, difference);
}

void lien_reread_learn(const struct lien_reread *reread, struct lien_process *process,
	struct lien_emitter *emitter)
{
	const struct lien_wire_found *found = reread->found.found;
	struct lien_allocation *allocation;
	struct lien_mapping *mapping;
	struct lien_prop prop;
	unsigned i;

	for (i = 0; i < reread->found.count; i++, found++) {
		mapping = found->kind == LIEN_WIRE_PLAIN ? mapping_at(process, found->va) : NULL;
		allocation = mapping ? mapping->holding->allocation : NULL;
		if (!allocation || !found->bytes || allocation->origin != LIEN_ORIGIN_ALLOC ||
			allocation->prop.location_id >= 0)
			continue;
		prop = allocation->prop;
		prop.location_type = found->location_type;
		prop.location_id = found->location_id;
		emit_property(emitter, process, found->va, prop);
	}
}

/* --- what an adoption found out --------------------------------------------------------------- */

struct mark {
	const struct lien_wire_adopt *entry;
	struct lien_process *owner;
	bool open;     /* an open descriptor exports it */
	bool disputed; /* another owner found this mark in memory that it claims */
	unsigned seen; /* how often it was read, by whom it belongs to or by others */
};

struct answers {
	struct lien_adoption *adoption;
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

static void collect_marks(struct answers *answers, struct lien_graph *graph)
{
	const struct lien_adoption *adoption = answers->adoption;
	const struct lien_adoption_process *part;
	struct lien_process *process;
	unsigned i, j;

	answers->marks = calloc(adoption->marked + adoption->untyped + 1, sizeof(*answers->marks));
	for (i = 0; answers->marks && adoption->marks && i < adoption->count; i++) {
		part = &adoption->processes[i];
		process = lien_graph_process(graph, part->pid);
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

/*
 * Returns the process's handle of what is mapped there: the one that was asked about if it was
 * counted, because a process may have several, from imports of its own memory. NULL: it is gone.
 */
static struct lien_handle *meant(const struct lien_wire_adopt *entry, struct lien_process *process)
{
	const struct lien_mapping *mapping = mapping_at(process, entry->va);
	struct lien_handle *handle;

	if (!mapping || !(entry->flags & LIEN_WIRE_ADOPT_COUNT))
		return mapping ? TAILQ_LAST(&mapping->holding->handles, lien_handle_list) : NULL;
	handle = lien_handle_find(process, entry->handle);
	return handle && handle->holding == mapping->holding ? handle : NULL;
}

/*
 * Returns the application's references: the counted number, or the graph's if it was not counted.
 */
static uint32_t references_of(const struct lien_wire_adopt *entry, const struct lien_handle *handle)
{
	return entry->flags & LIEN_WIRE_ADOPT_COUNT ? entry->references : handle->references;
}

static void emit_adopt(struct answers *answers, const struct lien_process *process, uint64_t handle,
	uint32_t references, uint32_t round, bool open, bool part)
{
	struct lien_event event = event_of(answers->emitter, process, LIEN_EVENT_ADOPT);

	event.adopt.handle = handle;
	event.adopt.references = references;
	event.adopt.round = round;
	event.adopt.open = open;
	event.adopt.part = part;
	emit(answers->emitter, &event, LIEN_EVENT_SIZE(adopt));
}

/* As a reading would find the mapping. More access than fits is left out. */
static struct lien_wire_found found_of(const struct lien_mapping *mapping, uint64_t handle)
{
	const struct lien_access_set *set = lien_mapping_access(mapping);
	struct lien_wire_found found = {
		.va = mapping->va, .bytes = mapping->bytes, .handle = handle};
	unsigned i;

	for (i = 0; set && set->count <= LIEN_WIRE_PLACES && i < set->count; i++)
		found.place[found.places++] = (struct lien_wire_place){set->access[i].location_type,
			set->access[i].location_id, set->access[i].flags};
	return found;
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
	const struct lien_allocation *memory = own ? own->holding->allocation : NULL;
	const struct lien_prop prop = holding->allocation->prop;
	const uint64_t bytes = holding->allocation->bytes, value = handle->value;
	const uint32_t references = references_of(entry, handle);
	struct lien_wire_found *found = calloc(holding->mapped + 1, sizeof(*found));
	struct lien_emitter *emitter = answers->emitter;
	const struct lien_mapping *mapping;
	unsigned count = 0, i;
	uint64_t share = 0;

	if (!found)
		return false;
	LIST_FOREACH (mapping, &holding->mappings, of_holding)
		found[count++] = found_of(mapping, value);
	for (i = 0; i < count; i++)
		emit_unmap(emitter, process, found[i].va, found[i].bytes);
	handle = lien_handle_find(process, value);
	if (handle)
		emit_release_all(emitter, handle);
	if (own)
		share = emit_share(
			emitter, own->holding->process, LIEN_CALL_CU_MEM_EXPORT, own->value, 0);
	if (made)
		emit_create(emitter, process, value, bytes, prop);
	else
		emit_share(emitter, process, LIEN_CALL_CU_MEM_IMPORT, value, share);
	for (i = 0; i < count; i++)
		emit_map(emitter, process, &found[i]);
	emit_adopt(answers, process, value, references,
		made	 ? answers->round
		: memory ? memory->round
			 : 0,
		memory && memory->open, made && entry->flags & LIEN_WIRE_ADOPT_PART);
	free(found);
	return true;
}

/* Returns the handle of the memory that has this mark; NULL: its process does not own it. */
static struct lien_handle *marked(const struct mark *mark)
{
	const struct lien_mapping *mapping = mapping_at(mark->owner, mark->entry->va);

	return mapping && mapping->holding->allocation->owner == mark->owner
		       ? TAILQ_LAST(&mapping->holding->handles, lien_handle_list)
		       : NULL;
}

/*
 * Was it made here? Only its own process has read its mark, and nothing that was not compared can
 * be the same memory.
 */
static bool was_made(const struct answers *answers, const struct lien_wire_adopt *entry,
	const struct lien_allocation *allocation, const struct mark *mark)
{
	return mark && mark->entry == entry && mark->seen == 1 && !mark->open &&
	       !answers->adoption->unread && allocation->bytes > answers->adoption->unmarked &&
	       !(entry->flags & LIEN_WIRE_ADOPT_FABRIC);
}

static void emit_own(struct answers *answers, struct lien_process *process,
	const struct lien_wire_adopt *entry, struct lien_handle *handle)
{
	const struct lien_allocation *allocation = handle->holding->allocation;
	const bool counted = entry->flags & LIEN_WIRE_ADOPT_COUNT;
	uint32_t round = allocation->round ? allocation->round : answers->round;
	const struct mark *own;

	if (allocation->owner != process)
		return;
	own = entry->flags & LIEN_WIRE_ADOPT_OWN ? mark_seen(answers, entry->mark) : NULL;
	if (own && own->disputed) {
		answers->adoption->disputed++; /* it may belong to anybody */
		emit_anew(answers, process, entry, handle, false, NULL);
		return;
	}
	if (!(entry->flags & LIEN_WIRE_ADOPT_OWN))
		round = 0; /* it cannot be marked any more */
	answers->adoption->counted += counted;
	emit_adopt(answers, process, handle->value, references_of(entry, handle), round,
		own && own->open, counted ? entry->flags & LIEN_WIRE_ADOPT_PART : allocation->part);
}

static void emit_import(struct answers *answers, struct lien_process *process,
	const struct lien_wire_adopt *entry, struct lien_handle *handle)
{
	const struct lien_allocation *allocation = handle->holding->allocation;
	struct lien_adoption *adoption = answers->adoption;
	const bool looked = entry->flags & LIEN_WIRE_ADOPT_LOOK;
	uint32_t round = allocation->round;
	const struct mark *mark;
	struct lien_handle *own;

	if (!lien_unknown_in(allocation, process) || owns(entry)) /* disputed */
		return;
	adoption->counted += (entry->flags & LIEN_WIRE_ADOPT_COUNT) != 0;
	mark = looked && adoption->marks ? mark_seen(answers, entry->bytes) : NULL;
	own = mark ? marked(mark) : NULL;
	if (own && emit_anew(answers, process, entry, handle, false, own)) {
		adoption->matched++;
		return;
	}
	if (was_made(answers, entry, allocation, mark) &&
		emit_anew(answers, process, entry, handle, true, NULL)) {
		adoption->made++;
		return;
	}
	if (mark && owns(mark->entry))
		round = 0;
	else if (looked && answers->round)
		round = answers->round; /* memory that cannot be read was not compared */
	emit_adopt(answers, process, handle->value, references_of(entry, handle), round,
		mark && mark->open, false);
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
	struct lien_event event = event_of(answers->emitter, process, LIEN_EVENT_INCOMPLETE);
	uint32_t reasons = process->incomplete;

	if (part->read) {
		reasons &= ~(LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_REREAD);
		reasons |= LIEN_INCOMPLETE_ADOPTED | part->doubts;
	}
	if (!any_unknown(process))
		reasons &= ~LIEN_INCOMPLETE_SHARE;
	event.incomplete.reasons = reasons;
	if (reasons != process->incomplete)
		emit(answers->emitter, &event, LIEN_EVENT_SIZE(incomplete));
}

/* Owners first, then imports, which are matched with memory that has been adopted. */
void lien_adoption_emit(
	struct lien_adoption *adoption, struct lien_graph *graph, struct lien_emitter *emitter)
{
	static void (*const of_entry[])(struct answers *, struct lien_process *,
		const struct lien_wire_adopt *, struct lien_handle *) = {emit_own, emit_import};
	struct answers answers = {.adoption = adoption, .emitter = emitter};
	const struct lien_adoption_process *part;
	struct lien_process *process;
	struct lien_handle *handle;
	unsigned i, j, step;

	/* If there is nothing to look at, or nothing to mark, everything counts as compared. */
	if (!adoption->outsider)
		answers.round = lien_graph_stats(graph)->round + 1;
	collect_marks(&answers, graph);
	note_answers(&answers);
	find_disputes(&answers);
	for (step = 0; answers.marks && step <= 2; step++)
		for (i = 0; i < adoption->count; i++) {
			part = &adoption->processes[i];
			process = lien_graph_living(graph, part->pid, part->start);
			if (process && step == 2)
				emit_known(&answers, part, process);
			for (j = 0; process && step < 2 && j < part->count; j++) {
				handle = meant(&part->entries[j], process);
				if (handle)
					of_entry[step](
						&answers, process, &part->entries[j], handle);
			}
		}
	free(answers.marks);
}
