// SPDX-License-Identifier: BSD-2-Clause
/* `mem`, with and without an aspect: which rows there are, and what is counted in them. */
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/views/internal.h"

static const char kind_local[] = "local", kind_exported[] = "exported", kind_dead[] = "dead",
		  kind_device[] = "device", kind_imported[] = "imported",
		  kind_imported_host[] = "imported host";

const char *lien_host_kind(const struct lien_allocation *allocation)
{
	static const char pinned[] = "pinned host", registered[] = "registered host",
			  other[] = "host";

	switch (allocation->origin) {
	case LIEN_ORIGIN_HOST:
		return pinned;
	case LIEN_ORIGIN_REGISTERED:
		return registered;
	case LIEN_ORIGIN_MULTICAST:
		return NULL;
	default:
		return lien_allocation_on_device(allocation) ? NULL : other;
	}
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Rows differ in any of these. Has no padding: it is compared as bytes. Strings are interned. */
struct key {
	uint64_t id[2]; /* what the row is about; of a device, its UUID if it is identified */
	const char *kind, *owner, *tag;
	uint32_t pid;
	int32_t device; /* else the ordinal in process `pid`; -1: not known, or host memory */
	uint32_t identified, inferred;
};

_Static_assert(sizeof(struct key) == 5 * sizeof(uint64_t) + 4 * sizeof(uint32_t),
	"padding is not compared");

struct row {
	struct key key;
	const struct lien_allocation *sample; /* the first one */
	struct lien_process *process;	      /* by rank; NULL: it has ended */
	uint64_t allocations, mappings, bytes, frees, offloaded, inferred;
	char *text; /* by an aspect: its name */
};

struct lefts {
	struct lien_left left[64];
	unsigned count;
};

/* An answer in the making. */
struct mem {
	const struct lien_viewer *viewer;
	enum lien_mem_by by;
	uint32_t pid; /* count only what it owns, or where imports have rows: has; 0: all */
	struct row *row;
	unsigned count;
	struct lien_rows rows;
	/* beside the rows */
	uint64_t bytes, frees, host, arena;
	struct lefts lefts;
};

static bool has_key(const void *row, const void *key)
{
	return !memcmp(&((const struct row *)row)->key, key, sizeof(struct key));
}

/* Finds the row, or adds it. NULL: out of memory. May move the rows. */
static struct row *row_of(
	struct mem *mem, const struct key *key, const struct lien_allocation *sample)
{
	uint64_t words[sizeof(*key) / sizeof(uint64_t)], hash = 0;
	struct row *row;
	unsigned i;

	memcpy(words, key, sizeof(words));
	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		hash = lien_rows_mix(hash, words[i]);
	row = lien_rows_find(&mem->rows, hash, has_key, key, &mem->row, &mem->count, sizeof(*row));
	if (row && !row->sample) {
		row->key = *key;
		row->sample = sample;
	}
	return row;
}

static void mem_free(struct mem *mem)
{
	for (unsigned i = 0; i < mem->count; i++)
		free(mem->row[i].text);
	free(mem->row);
	free(mem->rows.place);
}

/* --- keys ------------------------------------------------------------------------------------- */

/* Without an aspect: who has it, how, and whose it is. */
static bool is_plain(enum lien_mem_by by)
{
	return by == LIEN_MEM_BY_KIND || by == LIEN_MEM_BY_KIND_AND_DEVICE;
}

/* Memory that a process has imported is in a row of that process. */
static bool has_imports(enum lien_mem_by by)
{
	return by == LIEN_MEM_BY_RANK || is_plain(by);
}

static bool identify(struct key *key, const struct lien_allocation *allocation)
{
	const struct lien_uuid *gpu = lien_allocation_gpu(allocation);

	key->identified = gpu != NULL;
	if (gpu)
		memcpy(key->id, gpu->bytes, sizeof(key->id));
	return gpu;
}

/* pid, start: the process that the row is about. */
static struct key key_of(enum lien_mem_by by, const struct lien_allocation *allocation,
	uint32_t pid, uint64_t start, const char *kind)
{
	const bool on_device = lien_allocation_on_device(allocation);
	struct key key = {.kind = kind};
	bool inferred;
	const char *owner = lien_allocation_attributed(allocation, &inferred);

	switch (by) {
	case LIEN_MEM_BY_OWNER:
		key.id[0] = allocation->site ? (uintptr_t)allocation->site->library : 0;
		key.id[1] = inferred;
		break;
	case LIEN_MEM_BY_RANK:
		key.id[0] = pid;
		key.id[1] = start;
		break;
	case LIEN_MEM_BY_COMM:
		key.id[0] = allocation->comm;
		key.id[1] = allocation->comm ? allocation->owner_pid : 0;
		break;
	case LIEN_MEM_BY_DEVICE:
		if (on_device && !identify(&key, allocation)) {
			key.id[0] = (uint64_t)allocation->owner_pid << 32 |
				    (uint32_t)allocation->prop.location_id;
			key.id[1] = allocation->owner_start;
		}
		break;
	case LIEN_MEM_BY_CALLSITE:
		key.id[0] = (uintptr_t)allocation->site;
		break;
	case LIEN_MEM_BY_TAG:
		key.id[0] = (uintptr_t)lien_allocation_tag(allocation);
		key.id[1] = lien_allocation_tag_known(allocation);
		break;
	case LIEN_MEM_BY_KIND:
	case LIEN_MEM_BY_KIND_AND_DEVICE:
		key.pid = pid;
		key.owner = owner;
		key.inferred = inferred;
		key.tag = lien_allocation_tag(allocation);
		key.device = -1;
		/* An importer's ordinal for another process's device is not known. */
		if (by == LIEN_MEM_BY_KIND_AND_DEVICE && on_device && !identify(&key, allocation) &&
			pid == allocation->owner_pid)
			key.device = allocation->prop.location_id;
		break;
	}
	return key;
}

/* --- counting --------------------------------------------------------------------------------- */

static void count_left(
	struct lefts *lefts, const struct lien_allocation *allocation, const char *reason)
{
	unsigned i;

	for (i = 0; i < lefts->count; i++)
		if (lefts->left[i].pid == allocation->owner_pid && lefts->left[i].reason == reason)
			break;
	if (i == sizeof(lefts->left) / sizeof(lefts->left[0]))
		return;
	if (i == lefts->count)
		lefts->left[lefts->count++] = (struct lien_left){.pid = allocation->owner_pid,
			.reason = reason,
			.address = lien_plan_address(allocation)};
	lefts->left[i].allocations++;
	lefts->left[i].bytes += allocation->bytes;
}

/* Counts memory in its owner's row; frees: an offload would free it. */
static bool count_row(struct mem *mem, const struct lien_allocation *allocation, bool frees)
{
	const char *kind = lien_host_kind(allocation);
	const struct lien_holding *holding;
	struct row *row;
	struct key key;

	if (!kind)
		kind = !is_plain(mem->by)    ? kind_device
		       : !allocation->owner  ? kind_dead
		       : allocation->exports ? kind_exported
					     : kind_local;
	key = key_of(mem->by, allocation, allocation->owner_pid, allocation->owner_start, kind);
	row = row_of(mem, &key, allocation);
	if (!row)
		return false;
	row->process = allocation->owner;
	row->allocations++;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (!has_imports(mem->by) || holding->process == allocation->owner)
			row->mappings += holding->mapped;
	if (lien_allocation_offloaded(allocation)) {
		row->offloaded += allocation->bytes;
		return true;
	}
	row->bytes += allocation->bytes;
	if (allocation->comm_inferred && allocation->comm)
		row->inferred += allocation->bytes;
	if (frees)
		row->frees += allocation->bytes;
	return true;
}

static bool count_owned(struct mem *mem, const struct lien_allocation *allocation)
{
	const char *reason = NULL;

	if (!lien_allocation_on_device(allocation)) {
		reason = "host memory";
		mem->host += allocation->bytes;
	} else if (!lien_allocation_offloaded(allocation)) {
		reason = lien_plan_unmovable(allocation);
		if (!reason)
			reason = lien_plan_unreachable_then(allocation->owner);
		if (reason)
			count_left(&mem->lefts, allocation, reason);
		else
			mem->frees += allocation->bytes;
		mem->bytes += allocation->bytes;
	}
	return (is_plain(mem->by) && !allocation->owner_pid) || count_row(mem, allocation, !reason);
}

/* Counts memory in the rows of the other processes that map it. */
static bool count_imports(struct mem *mem, const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;
	const struct lien_mapping *first;
	struct row *row;
	struct key key;

	LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
		struct lien_process *process = holding->process;

		first = LIST_FIRST(&holding->mappings);
		if (!first || process == allocation->owner ||
			!lien_viewer_sees(mem->viewer, process) ||
			(mem->pid && mem->pid != process->pid))
			continue;
		key = key_of(mem->by, allocation, process->pid, process->start,
			lien_host_kind(allocation) ? kind_imported_host : kind_imported);
		row = row_of(mem, &key, allocation);
		if (!row)
			return false;
		row->process = process;
		row->mappings += holding->mapped;
		row->allocations++;
		*(first->parked ? &row->offloaded : &row->bytes) += first->bytes;
	}
	return true;
}

static bool count_all(struct mem *mem, struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	bool own;

	LIEN_FOREACH_ALLOCATION (allocation, graph) {
		if (!lien_allocation_held(allocation) ||
			allocation->origin == LIEN_ORIGIN_MULTICAST)
			continue;
		own = lien_viewer_sees_owner(mem->viewer, allocation) &&
		      (!mem->pid || mem->pid == allocation->owner_pid);
		if (lien_is_arena(allocation))
			mem->arena += own ? allocation->bytes : 0;
		else if ((own && !count_owned(mem, allocation)) ||
			 (has_imports(mem->by) && !count_imports(mem, allocation)))
			return false;
	}
	return true;
}

/* --- answers ---------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
	const struct key *x = &((const struct row *)a)->key, *y = &((const struct row *)b)->key;
	int order;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	order = strcmp(x->owner, y->owner);
	if (!order)
		order = strcmp(x->kind, y->kind);
	if (!order)
		order = (int)x->inferred - (int)y->inferred;
	if (!order)
		order = strcmp(x->tag ? x->tag : "", y->tag ? y->tag : "");
	if (!order)
		order = memcmp(x->id, y->id, sizeof(x->id));
	return order ? order : x->device - y->device;
}

static int by_words(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	return order ? order : strcmp(x->key.kind, y->key.kind);
}

static int by_bytes(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	if (x->offloaded != y->offloaded)
		return x->offloaded > y->offloaded ? -1 : 1;
	return by_words(a, b);
}

static void sort(struct mem *mem, int (*cmp)(const void *a, const void *b))
{
	if (mem->count)
		qsort(mem->row, mem->count, sizeof(mem->row[0]), cmp);
}

/* Destroyed communicators have no name of their own, and users may have equal tags. Expects rows
 * sorted by words. */
static void merge_alike(struct mem *mem)
{
	struct row *to = mem->row, *from;
	unsigned i;

	for (i = 1; i < mem->count; i++) {
		from = &mem->row[i];
		if (by_words(to, from)) {
			*++to = *from;
			continue;
		}
		to->allocations += from->allocations;
		to->mappings += from->mappings;
		to->bytes += from->bytes;
		to->frees += from->frees;
		to->offloaded += from->offloaded;
		to->inferred += from->inferred;
		free(from->text);
	}
	if (mem->count)
		mem->count = to - mem->row + 1;
}

/* Names the rows of an aspect, the largest first. False: out of memory. */
static bool name_rows(struct mem *mem, const struct lien_node *node)
{
	unsigned i;

	for (i = 0; i < mem->count; i++) {
		struct row *row = &mem->row[i];

		row->text = lien_mem_words(mem->by, row->sample, row->process, node);
		if (!row->text)
			return false;
	}
	if (mem->by == LIEN_MEM_BY_COMM || mem->by == LIEN_MEM_BY_TAG) {
		sort(mem, by_words);
		merge_alike(mem);
	}
	sort(mem, by_bytes);
	return true;
}

static json_t *view_row(const struct mem *mem, const struct row *row)
{
	json_t *view;

	if (mem->by == LIEN_MEM_BY_KIND)
		view = json_pack("{s:I, s:s, s:b, s:s, s:s?}", "pid", (json_int_t)row->key.pid,
			"owner", row->key.owner, "owner_inferred", row->key.inferred, "kind",
			row->key.kind, "tag", row->key.tag);
	else
		view = json_pack("{s:s, s:s}", "key", row->text, "kind", row->key.kind);
	json_object_set_new(view, "allocations", json_integer(row->allocations));
	json_object_set_new(view, "mappings", json_integer(row->mappings));
	json_object_set_new(view, "bytes", json_integer(row->bytes));
	json_object_set_new(view, "offload_frees", json_integer(row->frees));
	json_object_set_new(view, "offloaded_bytes", json_integer(row->offloaded));
	if (mem->by == LIEN_MEM_BY_RANK)
		json_object_set_new(view, "pid", json_integer(row->key.id[0]));
	if (mem->by == LIEN_MEM_BY_COMM)
		json_object_set_new(view, "inferred_bytes", json_integer(row->inferred));
	return view;
}

static const char *const names[] = {
	[LIEN_MEM_BY_OWNER] = "owner",
	[LIEN_MEM_BY_RANK] = "rank",
	[LIEN_MEM_BY_COMM] = "comm",
	[LIEN_MEM_BY_DEVICE] = "device",
	[LIEN_MEM_BY_CALLSITE] = "callsite",
	[LIEN_MEM_BY_TAG] = "tag",
	[LIEN_MEM_BY_KIND] = NULL,
};

int lien_mem_by_parse(const char *name, enum lien_mem_by *by)
{
	for (*by = 0; names[*by]; ++*by)
		if (!strcmp(name, names[*by]))
			return 0;
	return -1;
}

/* The processes whose memory must be read first. */
static json_t *view_unread(struct lien_graph *graph, const struct lien_viewer *viewer, uint32_t pid)
{
	struct lien_process *process;
	json_t *list = json_array();

	LIEN_FOREACH_PROCESS (process, graph)
		if (lien_plan_unread(process) && lien_viewer_sees(viewer, process) &&
			(!pid || pid == process->pid))
			json_array_append_new(list, json_integer(process->pid));
	return list;
}

json_t *lien_view_mem(struct lien_graph *graph, const struct lien_viewer *viewer,
	enum lien_mem_by by, uint32_t pid, const struct lien_node *node)
{
	struct mem mem = {.viewer = viewer, .by = by, .pid = pid};
	bool done = count_all(&mem, graph);
	json_t *list, *view = NULL;
	unsigned i;

	if (by == LIEN_MEM_BY_KIND)
		sort(&mem, by_key);
	else
		done = done && name_rows(&mem, node);
	if (done) {
		list = json_array();
		for (i = 0; i < mem.count; i++)
			json_array_append_new(list, view_row(&mem, &mem.row[i]));
		view = json_pack("{s:s*, s:o, s:I, s:I, s:I, s:I, s:o*, s:o}", "by", names[by],
			"rows", list, "bytes", (json_int_t)mem.bytes, "offload_frees",
			(json_int_t)mem.frees, "host_bytes", (json_int_t)mem.host, "arena_bytes",
			(json_int_t)mem.arena, "left",
			by == LIEN_MEM_BY_KIND ? lien_view_left(mem.lefts.left, mem.lefts.count)
					       : NULL,
			"unread", view_unread(graph, viewer, pid));
	}
	mem_free(&mem);
	return view;
}

/* Lists memory whose owner has exited, by owner: its importers keep it alive. */
json_t *lien_view_dead(struct lien_graph *graph, const struct lien_viewer *viewer)
{
	struct lien_allocation *allocation;
	json_t *list = json_array();
	struct mem mem = {.by = LIEN_MEM_BY_KIND};
	unsigned i;

	LIEN_FOREACH_ALLOCATION (allocation, graph)
		if (!allocation->owner && allocation->owner_pid &&
			lien_allocation_held(allocation) && lien_allocation_on_device(allocation) &&
			lien_viewer_sees_owner(viewer, allocation))
			count_row(&mem, allocation, false);
	sort(&mem, by_key);
	for (i = 0; i < mem.count; i++)
		lien_view_add(list, "{s:I, s:s, s:I, s:I}", "pid", (json_int_t)mem.row[i].key.pid,
			"owner", mem.row[i].key.owner, "allocations",
			(json_int_t)mem.row[i].allocations, "bytes", (json_int_t)mem.row[i].bytes);
	mem_free(&mem);
	return list;
}

static json_t *view_gpu(const struct row *row, const struct lien_node *node)
{
	const struct lien_uuid *gpu = lien_allocation_gpu(row->sample);
	const struct lien_node_device *device;
	char text[LIEN_UUID_TEXT];

	if (!row->key.identified)
		return json_null();
	device = node ? lien_node_find(node, gpu) : NULL;
	lien_uuid_print(device ? &device->uuid : gpu, text);
	return json_string(text);
}

json_t *lien_view_mem_devices(
	struct lien_graph *graph, const struct lien_viewer *viewer, const struct lien_node *node)
{
	struct mem mem = {.viewer = viewer, .by = LIEN_MEM_BY_KIND_AND_DEVICE};
	json_t *list = count_all(&mem, graph) ? json_array() : NULL;
	const struct lien_process *process;
	const struct key *key;
	unsigned i;

	sort(&mem, by_key);
	for (i = 0; list && i < mem.count; i++) {
		key = &mem.row[i].key;
		/* an exited owner's pid may be another process's by now */
		process = key->kind == kind_dead ? NULL : lien_graph_process(graph, key->pid);
		lien_view_add(list, "{s:I, s:s?, s:o, s:o, s:s, s:b, s:s, s:s?, s:I, s:I}", "pid",
			(json_int_t)key->pid, "command", process ? process->command : NULL, "gpu",
			view_gpu(&mem.row[i], node), "device",
			key->device < 0 ? json_null() : json_integer(key->device), "owner",
			key->owner, "owner_inferred", key->inferred, "kind", key->kind, "tag",
			key->tag, "bytes", (json_int_t)mem.row[i].bytes, "offloaded_bytes",
			(json_int_t)mem.row[i].offloaded);
	}
	mem_free(&mem);
	return list;
}

/* Returns the entry of a GPU in a list; adds it if necessary. */
static json_t *entry_of(json_t *list, json_t *gpu)
{
	json_t *entry;
	size_t i;

	json_array_foreach (list, i, entry)
		if (json_equal(json_object_get(entry, "gpu"), gpu))
			return entry;
	entry = json_pack("{s:O, s:i, s:i}", "gpu", gpu, "bytes", 0, "offloaded_bytes", 0);
	json_array_append_new(list, entry);
	return entry;
}

static void add(json_t *entry, const json_t *row, const char *name)
{
	json_object_set_new(entry, name,
		json_integer(json_integer_value(json_object_get(entry, name)) +
			     json_integer_value(json_object_get(row, name))));
}

json_t *lien_view_mem_node(struct lien_graph *graph, const struct lien_node *node)
{
	json_t *rows = lien_view_mem_devices(graph, NULL, node), *row, *entry;
	json_t *list = rows ? json_array() : NULL;
	const char *kind;
	size_t i;

	json_array_foreach (rows, i, row) {
		kind = json_string_value(json_object_get(row, "kind"));
		if (strcmp(kind, kind_local) && strcmp(kind, kind_exported) &&
			strcmp(kind, kind_dead))
			continue;
		entry = entry_of(list, json_object_get(row, "gpu"));
		add(entry, row, "bytes");
		add(entry, row, "offloaded_bytes");
	}
	json_decref(rows);
	return list;
}
