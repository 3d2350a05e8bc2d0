/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Everything that is in a graph, as sorted lines: two graphs are equal when these are.
 */
#ifndef TEST_CANONICAL_H
#define TEST_CANONICAL_H

#include "events.h"

#include "agent/graph/internal.h"

struct lines {
	char **line;
	size_t count, room;
};

__attribute__((format(printf, 2, 3))) static inline void add_line(
	struct lines *lines, const char *format, ...)
{
	va_list arguments;

	if (lines->count == lines->room) {
		lines->room = lines->room ? 2 * lines->room : 64;
		lines->line = realloc(lines->line, lines->room * sizeof(*lines->line));
	}
	va_start(arguments, format);
	assert_true(vasprintf(&lines->line[lines->count++], format, arguments) >= 0);
	va_end(arguments);
}

static inline int line_cmp(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted, each followed by `after`; frees the lines. */
static inline char *join_lines(struct lines *lines, const char *after)
{
	size_t size = 0;
	char *text;
	FILE *file = open_memstream(&text, &size);

	if (lines->count)
		qsort(lines->line, lines->count, sizeof(*lines->line), line_cmp);
	for (size_t i = 0; i < lines->count; i++) {
		fprintf(file, "%s%s", lines->line[i], after);
		free(lines->line[i]);
	}
	free(lines->line);
	fclose(file);
	return text;
}

#define H      "%llx"
#define LLX(x) ((unsigned long long)(x))

static inline uint64_t key_sum(const uint8_t *bytes, size_t n)
{
	uint64_t sum = 14695981039346656037ull;

	while (n--)
		sum = (sum ^ *bytes++) * 1099511628211ull;
	return sum;
}

static inline char *registrations_text(struct lien_registration_tree *list)
{
	struct lien_registration *registration;
	struct lines lines = {0};

	RB_FOREACH (registration, lien_registration_tree, list)
		add_line(&lines, H "+" H "=" H "%s%s", LLX(registration->va),
			LLX(registration->bytes), LLX(registration->handle),
			registration->window ? "w" : "", registration->of_gpu ? "g" : "");
	return join_lines(&lines, ",");
}

static inline void comm_lines(struct lines *lines, struct lien_process *process)
{
	struct lien_comm *comm;
	struct lien_init *init;
	char *text;

	RB_FOREACH (init, lien_init_tree, &process->inits)
		add_line(lines, "process %u makes comm %u by " H, process->pid, init->number,
			LLX(init->scope));
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		text = registrations_text(&comm->registrations);
		add_line(lines,
			"process %u comm " H " %u hash " H " id " H
			" rank %d/%d device %d call %u splits %u "
			"shrinks %u made " H " final %d parent %u [%s]",
			process->pid, LLX(comm->address), comm->number, LLX(comm->hash),
			LLX(key_sum(comm->id, 128)), comm->rank, comm->nranks, comm->device,
			comm->made_by, comm->splits, comm->shrinks, LLX(comm->t_init),
			comm->finalized, comm->parent, text);
		free(text);
	}
}

static inline void process_lines(struct lines *lines, struct lien_process *process)
{
	struct lien_reservation *reservation;
	struct lien_context *context;
	const struct lien_pending *pending;
	struct lien_capture *capture;
	struct lien_library_map *map;
	struct lien_pool *pool;
	unsigned pid = process->pid;
	char *text = registrations_text(&process->cards);

	add_line(lines,
		"process %u start " H
		" uid %u %s cuda %d captured %d device_comm %d incomplete %x first " H
		" parked %u context %u cards %s",
		pid, LLX(process->start), process->uid, process->command, process->cuda,
		process->captured, process->device_comm, process->incomplete, LLX(process->t_first),
		process->parked, process->next_context, text);
	free(text);
	RB_FOREACH (map, lien_library_tree, &process->libraries)
		add_line(lines, "process %u library " H "-" H " at " H " of " H " %u:%u %s " H, pid,
			LLX(map->start), LLX(map->end), LLX(map->offset), LLX(map->inode),
			map->dev_major, map->dev_minor, map->file->text, LLX(map->t_mapped));
	SPLAY_FOREACH (reservation, lien_reservation_tree, &process->reservations)
		add_line(lines, "process %u reserved " H "+" H, pid, LLX(reservation->va),
			LLX(reservation->bytes));
	RB_FOREACH (context, lien_context_tree, &process->contexts)
		add_line(lines, "process %u context " H " %u device %d primary %d", pid,
			LLX(context->value), context->number, context->device, context->primary);
	RB_FOREACH (pool, lien_pool_tree, &process->pools)
		add_line(lines, "process %u pool " H " share " H " device %d imported %d", pid,
			LLX(pool->value), LLX(pool->share), pool->device, pool->imported);
	RB_FOREACH (capture, lien_capture_tree, &process->captures)
		add_line(lines, "process %u capture " H, pid, LLX(capture->stream));
	TAILQ_FOREACH (pending, &process->pending, next)
		add_line(lines, "process %u pending %u of %u flags %x entered " H, pid,
			pending->event.type, pending->event.tid, pending->event.flags,
			LLX(pending->event.t_entry));
	comm_lines(lines, process);
}

static inline void holding_lines(struct lines *lines, const struct lien_holding *holding)
{
	unsigned pid = holding->process->pid, mapped = 0, live = 0;
	const struct lien_access_set *set;
	const struct lien_mapping *mapping;
	const struct lien_handle *handle;
	bool referred = false;

	TAILQ_FOREACH (handle, &holding->handles, of_holding) {
		assert_false(referred && !handle->references);
		referred = handle->references;
		add_line(lines, "handle %u:" H " x%u raw %u to %s%s", pid, LLX(handle->value),
			handle->references, handle->raw,
			handle->raw_to ? handle->raw_to->text : "-",
			handle->imported ? " imported" : "");
	}
	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		mapped++;
		live += !mapping->parked;
		set = lien_mapping_access(mapping);
		add_line(lines, "mapping %u:" H "+" H " access " H "%s opens %u in %u%s%s", pid,
			LLX(mapping->va), LLX(mapping->bytes),
			LLX(set ? key_sum((const uint8_t *)set->access,
					  set->count * sizeof(struct lien_access))
				: 0),
			mapping->opened ? " opened" : "", lien_mapping_opens(mapping),
			mapping->opened ? mapping->context : 0,
			mapping->imported ? " imported" : "", mapping->parked ? " parked" : "");
	}
	assert_int_equal(holding->mapped, mapped);
	assert_int_equal(holding->live, live);
}

static inline char *holders_text(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_share *share;
	struct lines lines = {0};

	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		holding_lines(&lines, holding);
	LIST_FOREACH (share, &allocation->shares, of_allocation)
		add_line(&lines, "share " H " by %u fd %d x%u key " H "%s%s", LLX(share->number),
			share->call, share->fd, share->imports,
			LLX(share->has_key ? key_sum(share->key, LIEN_KEY_BYTES) : 0),
			share->control ? " control" : "", share->stale ? " stale" : "");
	return join_lines(&lines, "; ");
}

static inline char *allocation_text(const struct lien_allocation *allocation)
{
	const struct lien_site *site = allocation->site;
	bool object = allocation->origin == LIEN_ORIGIN_MULTICAST;
	char *text, *holders = holders_text(allocation), file[200] = "";

	if (site)
		snprintf(file, sizeof(file), "%s %s+" H " in " H " %u:%u %u", site->library->text,
			site->file ? site->file->text : "-", LLX(site->offset), LLX(site->inode),
			site->dev_major, site->dev_minor, site->outer);
	assert_true(
		asprintf(&text,
			"allocation %llu by %u of %u " H "%s bytes " H " prop " H " site %s comm %u"
			"%s context %u devices " H " dmabufs %u exports %u awaited %u%s%s%s%s "
			"%u tag %u %s%s: %s",
			LLX(allocation->id), allocation->origin, allocation->owner_pid,
			LLX(allocation->owner_start), allocation->owner ? "" : " dead",
			LLX(allocation->bytes),
			LLX(key_sum((const uint8_t *)&allocation->prop, sizeof(allocation->prop))),
			file, allocation->comm, allocation->comm_inferred ? " inferred" : "",
			object ? 0 : allocation->context, LLX(object ? allocation->devices : 0),
			object ? 0 : allocation->dmabufs, allocation->exports, allocation->awaited,
			allocation->found ? " found" : "", allocation->adopted ? " adopted" : "",
			allocation->open ? " open" : "", allocation->part ? " part" : "",
			allocation->round, allocation->tag ? allocation->tag->uid : 0,
			allocation->tag ? allocation->tag->text : "-",
			allocation->tag_unknown ? " unknown" : "", holders) >= 0);
	free(holders);
	return text;
}

static inline void binding_lines(struct lines *lines, const struct lien_allocation *memory)
{
	const struct lien_binding *binding;
	char *object, *text;

	if (memory->origin == LIEN_ORIGIN_MULTICAST)
		return;
	LIST_FOREACH (binding, &memory->bindings, of_memory) {
		object = allocation_text(binding->object);
		text = allocation_text(memory);
		add_line(lines, "at " H "+" H " on %d of {%s} is " H " of {%s}",
			LLX(binding->offset), LLX(binding->bytes), binding->device, object,
			LLX(binding->memory_offset), text);
		free(object);
		free(text);
	}
}

/* A split under way waits for the same members in both. */
static inline void split_lines(struct lines *lines, struct lien_graph *of)
{
	struct lien_split_member *member;
	struct lien_split *split;

	RB_FOREACH (split, lien_split_tree, &of->splits)
		RB_FOREACH (member, lien_split_rank_tree, &split->members)
			add_line(lines,
				"split %u of %d " H " known %u: %u %u -> %u " H
				" color %d key %d %d",
				split->number, split->nranks, LLX(key_sum(split->id, 128)),
				split->known, member->process->pid,
				member->parent ? member->parent->number : 0,
				member->comm ? member->comm->number : 0,
				LLX(member->comm ? member->comm->address : 0), member->color,
				member->key, member->parent_rank);
}

/* To be freed. */
static inline char *canonical(struct lien_graph *of)
{
	struct lien_allocation *allocation;
	struct lien_process *process;
	struct lines lines = {0};
	char *text;

	for (process = lien_graph_first(of); process; process = lien_graph_next(process))
		process_lines(&lines, process);
	for (allocation = lien_graph_first_allocation(of); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		text = allocation_text(allocation);
		add_line(&lines, "%s", text);
		free(text);
		binding_lines(&lines, allocation);
	}
	split_lines(&lines, of);
	add_line(&lines, "next %llu %u %u", LLX(of->next_id), of->next_comm, of->stats.round);
	return join_lines(&lines, "\n");
}

/* The first line of each that the other does not have. Frees both. */
static inline void assert_same_text(char *ours, char *theirs)
{
	size_t same = 0, line = 0;

	for (; ours[same] && ours[same] == theirs[same]; same++)
		if (ours[same] == '\n')
			line = same + 1;
	if (ours[same] || theirs[same])
		fail_msg("one: %.*s\nthe other: %.*s", (int)strcspn(ours + line, "\n"), ours + line,
			(int)strcspn(theirs + line, "\n"), theirs + line);
	free(ours);
	free(theirs);
}

static inline void assert_same_graphs(struct lien_graph *a, struct lien_graph *b)
{
	assert_same_text(canonical(a), canonical(b));
}

/* A snapshot's records, byte for byte, as sorted lines: the order of lists does not last. */
static inline int dump_line(void *lines, const struct lien_event *ev)
{
	assert_true(lien_event_valid(ev));
	add_line(lines, "%3u %u %u " H, ev->type, ev->pid, ev->size,
		LLX(key_sum((const uint8_t *)ev, ev->size)));
	return 0;
}

static inline void assert_same_dumps(struct lien_graph *a, struct lien_graph *b)
{
	struct lines ours = {0}, theirs = {0};

	assert_int_equal(lien_graph_dump(a, dump_line, &ours), 0);
	assert_int_equal(lien_graph_dump(b, dump_line, &theirs), 0);
	assert_same_text(join_lines(&ours, "\n"), join_lines(&theirs, "\n"));
}

static inline int tell_copy(void *copy, const struct lien_event *ev)
{
	assert_true(lien_event_valid(ev));
	assert_int_equal(lien_graph_apply(copy, ev), 0);
	return 0;
}

/* A new graph made of a dump, equal to the dumped one, and dumping the same. */
static inline struct lien_graph *round_trip(struct lien_graph *of)
{
	struct lien_graph *copy;

	assert_int_equal(lien_graph_new(&copy), 0);
	assert_int_equal(lien_graph_dump(of, tell_copy, copy), 0);
	assert_same_graphs(of, copy);
	assert_same_dumps(of, copy);
	return copy;
}

static inline void assert_round_trip(void)
{
	lien_graph_free(round_trip(graph));
}

#endif
