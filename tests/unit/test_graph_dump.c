// SPDX-License-Identifier: BSD-2-Clause
/*
 * A dump, applied to an empty graph, gives an equal one: `lien graph` shows the same but for the
 * numbers of allocations and the order of lists, and what happens afterwards has the same effect.
 */
#include "canonical.h"

#include "agent/graph/graph.h"
#include "agent/plan/plan.h"
#include "agent/views/views.h"

static struct lien_graph *copy;

static int told_again(void *context, const struct lien_event *ev)
{
	assert_true(lien_event_valid(ev));
	assert_int_equal(lien_graph_apply(context, ev), 0);
	return 0;
}

static int dump_teardown(void **state)
{
	lien_graph_free(copy);
	copy = NULL;
	return teardown(state);
}

/* --- equality --------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The elements of a list as texts, in their order. */
static json_t *sorted(const json_t *list)
{
	size_t n = json_array_size(list), i;
	char **texts = calloc(n + 1, sizeof(*texts));
	json_t *out = json_array();

	for (i = 0; i < n; i++)
		texts[i] = json_dumps(
			json_array_get(list, i), JSON_SORT_KEYS | JSON_COMPACT | JSON_ENCODE_ANY);
	qsort(texts, n, sizeof(*texts), by_text);
	for (i = 0; i < n; i++) {
		json_array_append_new(out, json_string(texts[i]));
		free(texts[i]);
	}
	free(texts);
	return out;
}

static char *normal(struct lien_graph *of)
{
	json_t *view = lien_view_graph(of, NULL), *list, *entry;
	char *text;
	size_t i;

	list = json_object_get(view, "allocations");
	json_array_foreach (list, i, entry) {
		json_object_del(entry, "id");
		json_object_set_new(entry, "handles", sorted(json_object_get(entry, "handles")));
		json_object_set_new(entry, "mappings", sorted(json_object_get(entry, "mappings")));
	}
	json_object_set_new(view, "allocations", sorted(list));
	list = json_object_get(view, "communicators");
	json_array_foreach (list, i, entry)
		json_object_set_new(
			entry, "registrations", sorted(json_object_get(entry, "registrations")));
	text = json_dumps(view, JSON_SORT_KEYS | JSON_INDENT(1));
	json_decref(view);
	return text;
}

/* What a plan makes of it: reasons and sizes. */
static char *planned(struct lien_graph *of)
{
	struct lien_selection all = {.owner = NULL};
	char error[300] = "", *text;
	struct lien_plan plan;
	json_t *view, *items;
	unsigned i, j;

	if (lien_plan_offload(of, &all, &plan, error, sizeof(error)))
		return strdup(error);
	view = lien_view_plan(&plan);
	json_object_set_new(view, "left", sorted(json_object_get(view, "left")));
	items = json_array();
	for (i = 0; i < plan.processes_count; i++)
		for (j = 0; j < plan.processes[i].items_count; j++) {
			const struct lien_wire_item *item = &plan.processes[i].items[j];

			json_array_append_new(items,
				json_pack("[I,I,I,I,i,i,I,i,i,i]",
					(json_int_t)plan.processes[i].pid, (json_int_t)item->va,
					(json_int_t)item->bytes, (json_int_t)item->allocation_bytes,
					(int)item->flags, (int)item->handles,
					(json_int_t)item->handle[0].value,
					(int)item->handle[0].references, (int)item->places,
					(int)item->location_id));
		}
	json_object_set_new(view, "items", sorted(items));
	json_decref(items);
	text = json_dumps(view, JSON_SORT_KEYS | JSON_INDENT(1));
	json_decref(view);
	lien_plan_clear(&plan);
	return text;
}

static void assert_equal_graphs(void)
{
	struct lien_process *ours, *theirs;

	assert_same_text(normal(graph), normal(copy));
	assert_same_text(planned(graph), planned(copy));
	assert_same_graphs(graph, copy);
	assert_int_equal(lien_graph_stats(graph)->mappings, lien_graph_stats(copy)->mappings);
	for (ours = lien_graph_first(graph); ours; ours = lien_graph_next(ours)) {
		struct lien_reservation *a, *b;
		struct lien_capture *capture;
		unsigned captures = 0;

		theirs = lien_graph_process(copy, ours->pid);
		assert_non_null(theirs);
		assert_int_equal(theirs->start, ours->start);
		assert_int_equal(theirs->cuda, ours->cuda);
		b = SPLAY_MIN(lien_reservation_tree, &theirs->reservations);
		SPLAY_FOREACH (a, lien_reservation_tree, &ours->reservations) {
			assert_non_null(b);
			assert_int_equal(a->va, b->va);
			assert_int_equal(a->bytes, b->bytes);
			b = SPLAY_NEXT(lien_reservation_tree, &theirs->reservations, b);
		}
		assert_null(b);
		RB_FOREACH (capture, lien_capture_tree, &ours->captures)
			captures++;
		RB_FOREACH (capture, lien_capture_tree, &theirs->captures)
			captures--;
		assert_int_equal(captures, 0);
	}
}

/* Dumps into a new copy, and compares. */
static void dump(void)
{
	struct lien_process *process;

	lien_graph_free(copy);
	assert_int_equal(lien_graph_new(&copy), 0);
	assert_int_equal(lien_graph_dump(graph, told_again, copy), 0);
	for (process = lien_graph_first(graph); process; process = lien_graph_next(process))
		if (lien_graph_process(copy, process->pid))
			lien_graph_process(copy, process->pid)->presence = process->presence;
	assert_equal_graphs();
	assert_same_dumps(graph, copy);
}

/* The same in both from here on. */
static void both(struct lien_event ev)
{
	apply(&ev);
	assert_int_equal(lien_graph_apply(copy, &ev), 0);
}

static void both_release(struct lien_event ev)
{
	both(entry_of(ev));
	both(ev);
}

/* --- cases ------------------------------------------------------------------------------------ */

static void test_nothing(void **state)
{
	(void)state;
	dump();
	started(1);
	library(2, IN_TORCH, "libcuda.so.1");
	TELL(LIEN_EVENT_PROCESS, 3, .process = {.uid = 5, .comm = "late"});
	dump();
	assert_int_equal(lien_graph_process(copy, 3)->incomplete, LIEN_INCOMPLETE_LATE);
	assert_false(lien_graph_process(copy, 2)->cuda);
	assert_string_equal(lien_process_library(lien_graph_process(copy, 2), IN_TORCH)->file->text,
		"libcuda.so.1");
}

static void test_memory(void **state)
{
	(void)state;
	started(1);
	library(1, IN_TORCH, "libtorch_cuda.so");
	create(1, 9, PIECE);
	tell.caller = IN_TORCH + 5;
	buffer(1, 10, VA, PIECE);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	create_on(1, 11, 3 * PIECE, device_prop(3));
	tell.outer = LIEN_CALL_CUDA_MALLOC;
	alloc(1, VA + 90 * PIECE, 12345);
	tell.outer = 0;
	tell.caller = 0;
	reserve(1, VA + PIECE, 4 * PIECE);
	map(1, VA + PIECE, 3 * PIECE, 11);
	set_access(1, VA + PIECE, 3 * PIECE, 3, 3);
	set_access(1, VA + PIECE, 3 * PIECE, 1, 1);
	dump();
	alloc(1, VA + 91 * PIECE, 1);
	dump();
	both_release(EVENT(LIEN_CALL_CU_MEM_UNMAP, 1, .range = {VA + PIECE, 3 * PIECE}));
	both_release(EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {11}));
	both_release(EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {9}));
	both_release(EVENT(LIEN_CALL_CU_MEM_FREE, 1, .range = {VA + 90 * PIECE}));
	both_release(EVENT(LIEN_CALL_CU_MEM_ADDRESS_FREE, 1, .range = {VA + PIECE}));
	assert_equal_graphs();
	assert_int_equal(lien_graph_stats(copy)->allocations, 2);
	assert_int_equal(lien_graph_stats(copy)->odd, 0);
}

/* Makes memory with this text as its tag. */
static void tagged(uint32_t pid, uint64_t handle, const char *tag)
{
	struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = PIECE, .prop = device_prop(0)});

	memcpy(ev.tagged.tag, tag, strnlen(tag, sizeof(ev.tagged.tag)));
	apply(&ev);
}

static const struct lien_allocation *made(uint32_t pid, uint64_t handle)
{
	return lien_handle_find(process(pid), handle)->holding->allocation;
}

static void test_tags(void **state)
{
	char longest[LIEN_TAG_BYTES + 1], name[16];

	(void)state;
	memset(longest, 'x', sizeof(longest));
	longest[LIEN_TAG_BYTES] = 0;
	started(1);
	TELL(LIEN_EVENT_PROCESS, 2, .process = {.uid = 7, .complete = 1});
	create(1, 9, PIECE);
	tagged(1, 10, "weights");
	tagged(1, 11, "\x01");
	tagged(1, 12, longest);
	tagged(1, 13, longest + 1);
	tagged(2, 10, "weights");
	tagged(1, 14, "weights");
	assert_null(lien_allocation_tag(made(1, 9)));
	assert_true(lien_allocation_tag_known(made(1, 9)));
	assert_string_equal(lien_allocation_tag(made(1, 10)), "weights");
	for (unsigned i = 11; i < 13; i++) {
		assert_null(lien_allocation_tag(made(1, i)));
		assert_false(lien_allocation_tag_known(made(1, i)));
	}
	assert_string_equal(lien_allocation_tag(made(1, 13)), longest + 1);
	assert_ptr_equal(made(1, 14)->tag, made(1, 10)->tag);
	assert_ptr_not_equal(made(2, 10)->tag, made(1, 10)->tag);
	dump();
	/* As many as are kept of one user; others have their own. */
	for (unsigned i = 0; i < LIEN_TAGS_MAX; i++) {
		snprintf(name, sizeof(name), "tag %u", i);
		tagged(1, 100 + i, name);
		assert_int_equal(
			lien_allocation_tag(made(1, 100 + i)) != NULL, i < LIEN_TAGS_MAX - 2);
	}
	tagged(1, 15, "weights");
	assert_string_equal(lien_allocation_tag(made(1, 15)), "weights");
	tagged(2, 11, "another");
	assert_string_equal(lien_allocation_tag(made(2, 11)), "another");
	dump();
	/* What has none any more makes room. */
	release(1, 100);
	tagged(1, 16, "one more");
	assert_string_equal(lien_allocation_tag(made(1, 16)), "one more");
	export(1, 10, 5);
	import(2, 20, 5);
	ended(1);
	assert_string_equal(lien_allocation_tag(made(2, 20)), "weights");
	dump();
}

/* References 0 to 3, mapped, as aliases, and not mapped any more. */
static void test_references(void **state)
{
	(void)state;
	started(1);
	for (unsigned i = 0; i < 4; i++) {
		buffer(1, 10 + i, VA + i * 8 * PIECE, PIECE);
		reserve(1, VA + (i * 8 + 1) * PIECE, PIECE);
		map_rw(1, VA + (i * 8 + 1) * PIECE, PIECE, 10 + i);
		for (unsigned n = 1; n < i; n++)
			retain(1, 10 + i, VA + i * 8 * PIECE);
		if (!i)
			release(1, 10);
	}
	dump();
	for (unsigned i = 1; i < 4; i++)
		unmap(1, VA + i * 8 * PIECE, 2 * PIECE);
	dump();
	for (unsigned i = 1; i < 4; i++)
		while (references_of(1, 10 + i) != ~0u)
			both_release(EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {10 + i}));
	both(EVENT(LIEN_CALL_CU_MEM_RETAIN, 1, .retain = {10, VA}));
	assert_equal_graphs();
	assert_int_equal(lien_graph_stats(copy)->odd, 0);
	assert_int_equal(lien_graph_stats(copy)->allocations, 1);
}

/* Some by the driver's own word, some by the control library's. */
static void test_raw_references(void **state)
{
	(void)state;
	started(1);
	started(2);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	tell.flags = LIEN_EVENT_TRANSLATED;
	retain(1, 10, VA);
	buffer(1, 11, VA + PIECE, PIECE);
	import(2, 20, 5);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1, .multicast = {.handle = 12, .bytes = PIECE});
	tell.flags = 0;
	retain(1, 11, VA + PIECE);
	retain(1, 11, VA + PIECE);
	import(2, 21, 5);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 2, .multicast = {.handle = 22, .bytes = PIECE});
	dump();
	assert_equal_graphs();
}

static void shared_by_three(void)
{
	for (unsigned pid = 1; pid <= 3; pid++)
		started(pid);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	buffer(1, 10, VA, PIECE);
	tell.outer = 0;
	export(1, 10, 5);
	export(1, 10, 6);
	imported_buffer(2, 20, 5, VA, PIECE);
	imported_buffer(3, 30, 6, VA, PIECE);
	reserve(3, VA + PIECE, PIECE);
	map_rw(3, VA + PIECE, PIECE, 30);
	release(3, 30);
}

static void test_imports(void **state)
{
	(void)state;
	shared_by_three();
	dump();
	release(1, 10);
	dump();
	unmap(1, VA, PIECE); /* the owner has nothing of it any more */
	dump();
	both_release(EVENT(LIEN_CALL_CU_MEM_UNMAP, 3, .range = {VA, 2 * PIECE}));
	both_release(EVENT(LIEN_CALL_CU_MEM_RELEASE, 2, .release = {20}));
	assert_equal_graphs();
	both_release(EVENT(LIEN_CALL_CU_MEM_UNMAP, 2, .range = {VA, PIECE}));
	assert_equal_graphs();
	assert_int_equal(lien_graph_stats(copy)->allocations, 0);
}

/* A handle only, in the importer. */
static void test_import_not_mapped(void **state)
{
	(void)state;
	shared_by_three();
	export(1, 10, 7);
	import(2, 21, 7);
	dump();
	ended(3);
	dump();
}

/* The owner holds an import of its own memory, exported by itself. */
static void test_own_import(void **state)
{
	(void)state;
	shared_by_three();
	export(1, 10, 7);
	imported_buffer(1, 11, 7, VA + 9 * PIECE, PIECE);
	retain(1, 11, VA + 9 * PIECE);
	dump();
	release(1, 10);
	unmap(1, VA, PIECE);
	dump();
}

static void test_dead_owner(void **state)
{
	(void)state;
	shared_by_three();
	library(1, IN_TORCH, "libtorch_cuda.so");
	tell.caller = IN_TORCH;
	buffer(1, 12, VA + 5 * PIECE, PIECE);
	tell.caller = 0;
	export(1, 12, 9);
	imported_buffer(2, 22, 9, VA + 5 * PIECE, PIECE);
	ended(1);
	dump();
	both_release(EVENT(LIEN_CALL_CU_MEM_UNMAP, 3, .range = {VA, 2 * PIECE}));
	assert_equal_graphs();
}

static void test_unknown_owner(void **state)
{
	(void)state;
	started(2);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	imported_buffer(2, 20, 99, VA, PIECE);
	tell.outer = 0;
	dump();
}

/* The import of what was exported before is yet to come. */
static void test_share_in_flight(void **state)
{
	(void)state;
	started(1);
	started(2);
	started(3);
	buffer(1, 10, VA, PIECE);
	export(1, 10, 5);
	export(1, 10, 6);
	imported_buffer(3, 30, 5, VA, PIECE);
	create(1, 11, PIECE);
	export(1, 11, 7);
	release(1, 11); /* the descriptor alone keeps it */
	dump();
	both(EVENT(LIEN_CALL_CU_MEM_IMPORT, 2, .share = {20, 6, 1, 9}));
	both(EVENT(LIEN_CALL_CU_MEM_IMPORT, 2, .share = {21, 7, 1, 9}));
	assert_equal_graphs();
	assert_int_equal(lien_graph_stats(copy)->unmatched_imports, 0);
}

static void test_fabric(void **state)
{
	(void)state;
	shared_by_three();
	export(1, 10, 0);
	dump();
}

/* Away, in parts, and back. */
static void test_offloaded(void **state)
{
	(void)state;
	shared_by_three();
	buffer(1, 11, VA + 3 * PIECE, PIECE);
	reserve(1, VA + 4 * PIECE, PIECE);
	map_rw(1, VA + 4 * PIECE, PIECE, 11);
	park(3, VA, PIECE);
	dump();
	park(3, VA + PIECE, PIECE);
	dump();
	control_detach(2, VA, PIECE, 20, 1);
	dump();
	control_detach(1, VA, PIECE, 10, 1);
	dump();
	park(1, VA + 4 * PIECE, PIECE);
	dump();
	park(1, VA + 3 * PIECE, PIECE);
	dump();
	control_release(1, 11);
	dump();
	assert_string_equal(lien_process_mapping(lien_graph_process(copy, 2), VA)
				    ->holding->allocation->site->library->text,
		"nccl");
	/* The restore, in both. */
	tell.flags = LIEN_EVENT_CONTROL;
	both(EVENT(LIEN_CALL_CU_MEM_CREATE, 1,
		.create = {.handle = 15, .bytes = PIECE, .prop = device_prop(0)}));
	both(EVENT(LIEN_CALL_CU_MEM_MAP, 1, .map = {VA, PIECE, 0, 15}));
	both(EVENT(LIEN_CALL_CU_MEM_EXPORT, 1, .share = {15, 70, 1, 9}));
	both(EVENT(LIEN_CALL_CU_MEM_IMPORT, 2, .share = {25, 70, 1, 9}));
	both(EVENT(LIEN_CALL_CU_MEM_MAP, 2, .map = {VA, PIECE, 0, 25}));
	tell.flags = 0;
	assert_equal_graphs();
	assert_int_equal(lien_graph_stats(copy)->odd, 0);
	dump();
}

static void test_comms(void **state)
{
	(void)state;
	started(1);
	started(2);
	comm_init(1, 0x100, 0xaa, 0, 2);
	comm_init(2, 0x100, 0xaa, 1, 2);
	comm_init(2, 0x200, 0xbb, 0, 1);
	comm_register(1, 0x100, VA, PIECE, 7);
	window_register(2, 0x100, VA, PIECE, 8);
	comm_register(2, 0x100, VA + PIECE, PIECE, 9);
	buffer(1, 10, VA, PIECE);
	buffer(2, 20, VA, PIECE);
	buffer(2, 21, VA + PIECE, PIECE);
	TELL(LIEN_CALL_IBV_REG_MR, 2, .reg = {0, VA + PIECE, PIECE, 0x500});
	dump();
	both_release(
		EVENT(LIEN_CALL_NCCL_WINDOW_DEREGISTER, 2, .reg = {.comm = 0x100, .handle = 8}));
	both_release(EVENT(LIEN_CALL_IBV_DEREG_MR, 2, .reg = {.handle = 0x500}));
	both_release(EVENT(LIEN_CALL_NCCL_DESTROY, 1, .comm_end = {0x100}));
	assert_equal_graphs();
}

static void test_captures(void **state)
{
	(void)state;
	shared_by_three();
	capture_begin(1, 3);
	capture_begin(1, 4);
	dump();
	both(EVENT(LIEN_CALL_CU_CAPTURE_END, 1, .capture = {3}));
	assert_equal_graphs();
	both(EVENT(LIEN_CALL_CU_CAPTURE_END, 1, .capture = {4}));
	assert_equal_graphs();
}

/* A release is under way, of each kind; it returns, or its name comes back first. */
static void test_pending(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	for (unsigned way = 0; way < 3; way++) {
		uint32_t pid = 10 + way;

		started(pid);
		create(pid, 10, PIECE);
		ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, pid, .release = {10});
		entry = entry_of(ev);
		apply(&entry);
		dump();
		assert_false(TAILQ_EMPTY(&lien_graph_process(copy, pid)->pending));
		ev.result = way == 1 ? CUDA_ERROR_INVALID_VALUE : 0;
		if (way == 2)
			both(EVENT(LIEN_CALL_CU_MEM_CREATE, pid,
				.create = {10, 2 * PIECE, device_prop(0)}));
		both(ev);
		assert_equal_graphs();
		assert_int_equal(lien_graph_stats(copy)->odd, 0);
	}
	/* Its name has come back already: the late return is nothing, in the copy too. */
	started(20);
	create(20, 10, PIECE);
	ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, 20, .release = {10});
	entry = entry_of(ev);
	apply(&entry);
	create(20, 10, 2 * PIECE);
	dump();
	both(ev);
	assert_equal_graphs();
	assert_int_equal(references_of(20, 10), 1);
}

/* What is not known whole is not known whole by the copy either. */
static void test_incomplete(void **state)
{
	(void)state;
	started(1);
	started(2);
	started(3);
	started(4);
	TELL(LIEN_EVENT_LOST, 1, .lost = {41});
	release(2, 99);
	import(3, 30, 99);
	release(3, 30);
	tell.flags = LIEN_EVENT_PARTIAL;
	create(4, 40, PIECE);
	tell.flags = 0;
	started(5);
	TELL(LIEN_EVENT_INCOMPLETE, 5, .incomplete = {LIEN_INCOMPLETE_NCCL});
	started(6);
	TELL(LIEN_EVENT_LOST, 6, .lost = {1});
	TELL(LIEN_EVENT_INCOMPLETE, 6, .incomplete = {0}); /* it has been read again */
	dump();
	for (unsigned pid = 1; pid <= 6; pid++) {
		const struct lien_process *ours = lien_graph_process(graph, pid);
		const struct lien_process *theirs = lien_graph_process(copy, pid);

		assert_int_equal(!ours->incomplete, pid == 6);
		assert_int_equal(theirs->incomplete, ours->incomplete);
		assert_int_equal(theirs->t_first, ours->t_first);
	}
}

static int stops(void *context, const struct lien_event *ev)
{
	(void)ev;
	return --*(int *)context ? 0 : -EPIPE;
}

/* The first refusal ends it, wherever it is. */
static void test_stops(void **state)
{
	int n, left;

	(void)state;
	shared_by_three();
	alloc(1, VA + 9 * PIECE, 5);
	comm_init(1, 0x100, 1, 0, 1);
	comm_register(1, 0x100, VA, 1, 1);
	capture_begin(1, 3);
	park(3, VA, PIECE);
	library(1, IN_TORCH, "liba.so");
	for (n = 1; n < 1000; n++) {
		left = n;
		if (!lien_graph_dump(graph, stops, &left))
			break;
		assert_int_equal(left, 0);
	}
	assert_true(n > 20 && left == 1);
}

/* --- records ---------------------------------------------------------------------------------- */

struct records {
	struct lien_event event[200];
	size_t count;
};

static int keeps(void *context, const struct lien_event *ev)
{
	struct records *records = context;

	assert_true(lien_event_valid(ev) && records->count < COUNT(records->event));
	memcpy(&records->event[records->count++], ev, ev->size);
	return 0;
}

/* A graph with something of every kind. */
static void everything(void)
{
	struct lien_event ev;

	shared_by_three();
	TELL(LIEN_EVENT_LIBRARY, 1,
		.library = {.start = IN_TORCH,
			.length = MIB,
			.offset = 4096,
			.inode = 9,
			.dev_major = 8,
			.dev_minor = 1,
			.name = "libtorch_cuda.so"});
	tell.caller = IN_TORCH + 16;
	alloc(1, VA + 7 * PIECE, MIB);
	tell.caller = 0;
	TELL(LIEN_CALL_CU_CONTEXT_PRIMARY, 2, .context = {.context = 0x66});
	TELL(LIEN_CALL_CU_IPC_GET, 1, .key = {.va = VA + 7 * PIECE, .key = {1}});
	TELL(LIEN_CALL_CU_IPC_OPEN, 2, .key = {.va = VA + 20 * PIECE, .key = {1}, .context = 0x66});
	TELL(LIEN_CALL_CU_CONTEXT_PRIMARY, 1, .context = {.context = 0x77, .device = 1});
	TELL(LIEN_CALL_CU_POOL_CREATE, 1, .pool = {.pool = 0x88, .device = 1});
	capture_begin(1, 3);
	comm_init(1, 0x100, 0xaa, 0, 2);
	comm_init(2, 0x100, 0xaa, 1, 2);
	TELL(LIEN_CALL_NCCL_SPLIT, 1, .comm = {.comm = 0x200, .parent = 0x100, .color = 1});
	comm_register(1, 0x100, VA, PIECE, 7);
	comm_register(1, 0x100, VA, PIECE, 7);
	TELL(LIEN_CALL_IBV_REG_MR, 2, .mr = {0, VA, PIECE, 0x500, "mlx5_0"});
	create(2, 28, PIECE);
	TELL(LIEN_EVENT_ADOPT, 2, .adopt = {.handle = 28, .references = 1, .round = 2, .open = 1});
	create(2, 27, PIECE);
	TELL(LIEN_EVENT_ADOPT, 2, .adopt = {.handle = 27, .references = 1, .round = 2, .part = 1});
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1, .multicast = {.handle = 50, .bytes = PIECE});
	TELL(LIEN_CALL_CU_MULTICAST_BIND, 1,
		.multicast = {.handle = 50, .memory = 10, .bytes = PIECE});
	park(3, VA, PIECE);
	create(2, 29, PIECE);
	TELL(LIEN_EVENT_ADOPT, 2, .adopt = {.handle = 29, .references = 1, .round = 3});
	release(2, 29); /* the last numbers are not in use */
	ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, 2, .release = {20});
	ev = entry_of(ev);
	apply(&ev);
}

/* Makes `copy` of all records but those of one type; how many did not fit. */
static unsigned load_without(const struct records *records, unsigned type)
{
	unsigned refused = 0;

	lien_graph_free(copy);
	assert_int_equal(lien_graph_new(&copy), 0);
	for (size_t i = 0; i < records->count; i++)
		if (records->event[i].type != type)
			refused += lien_graph_apply(copy, &records->event[i]) == -EBADMSG;
	return refused;
}

/* Without its records of one kind, whichever, a snapshot makes another graph. */
static void test_each_record_counts(void **state)
{
	static const struct {
		const char *name;
		unsigned type;
	} types[] = {
#define TYPE(name, number, least) {#name, number},
		LIEN_STATES(TYPE)
#undef TYPE
			{"library", LIEN_EVENT_LIBRARY},
		{"announcement", LIEN_CALL_CU_MEM_RELEASE},
	};
	static struct records records;
	unsigned i, n;

	(void)state;
	everything();
	records.count = 0;
	assert_int_equal(lien_graph_dump(graph, keeps, &records), 0);
	assert_int_equal(load_without(&records, 0), 0);
	assert_same_graphs(graph, copy);
	for (i = 0; i < COUNT(types); i++) {
		char *ours = canonical(graph), *theirs;

		for (n = 0; n < records.count; n++)
			if (records.event[n].type == types[i].type)
				break;
		if (n == records.count)
			fail_msg("no record is a %s", types[i].name);
		load_without(&records, types[i].type);
		theirs = canonical(copy);
		if (!strcmp(ours, theirs))
			fail_msg("nobody misses records of a %s", types[i].name);
		free(ours);
		free(theirs);
	}
}

static struct lien_event *first_of(struct records *records, unsigned type)
{
	for (size_t i = 0; i < records->count; i++)
		if (records->event[i].type == type)
			return &records->event[i];
	fail_msg("no record of type %u", type);
	return NULL;
}

/* Whatever contradicts itself or the records before it is refused and changes nothing. */
static void test_refused(void **state)
{
	static struct records records;
	struct lien_event *ev, was;
	unsigned refused;

	(void)state;
	everything();
#define REFUSED(type_of, change)                                                                   \
	do {                                                                                       \
		records.count = 0;                                                                 \
		assert_int_equal(lien_graph_dump(graph, keeps, &records), 0);                      \
		ev = first_of(&records, LIEN_STATE_##type_of);                                     \
		was = *ev;                                                                         \
		change;                                                                            \
		assert_memory_not_equal(&was, ev, sizeof(was));                                    \
		assert_true(lien_event_valid(ev));                                                 \
		refused = load_without(&records, 0);                                               \
		if (!refused)                                                                      \
			fail_msg("%s is accepted", #change);                                       \
	} while (0)
	REFUSED(process, ev->pid = 2);
	REFUSED(process, ev->pid = 0);
	REFUSED(process, ev->state.process.context = UINT32_MAX);
	REFUSED(reservation, ev->pid = 99);
	REFUSED(context, ev->state.context.number = 0);
	REFUSED(context, ev->state.context.number = UINT32_MAX);
	REFUSED(capture, ev->start++);
	REFUSED(comm, ev->scope = 0);
	REFUSED(comm, ev->outer = LIEN_CALL_CU_MEM_MAP);
	REFUSED(comm, ev->state.comm.number = 0);
	REFUSED(comm, ev->state.comm.number = UINT32_MAX);
	REFUSED(comm, ev->state.comm.parent = UINT32_MAX);
	REFUSED(init, ev->scope &= ~LIEN_SCOPE_INIT);
	REFUSED(init, ev->state.init.number = 0);
	REFUSED(split, ev->state.split.comm = 999);
	REFUSED(split, ev->state.split.parent = 999);
	REFUSED(split, ev->state.split.nranks = 1);
	REFUSED(split, ev->state.split.nranks = -1);
	REFUSED(split, ev->state.split.parent_rank = 2);
	REFUSED(split, ev->state.split.parent_rank = -1);
	REFUSED(site, ev->state.site.number = 2);
	REFUSED(allocation, ev->state.allocation.id = UINT64_MAX);
	REFUSED(allocation, ev->state.allocation.id = 2);
	REFUSED(allocation, ev->state.allocation.origin = 0);
	REFUSED(allocation, ev->state.allocation.origin = LIEN_ORIGIN_COUNT);
	REFUSED(allocation, ev->state.allocation.flags = 0x80);
	REFUSED(allocation, ev->state.allocation.site = 99);
	REFUSED(allocation, ev->state.allocation.comm = UINT32_MAX);
	REFUSED(allocation, ev->state.allocation.context = UINT32_MAX);
	REFUSED(share, ev->state.share.allocation = 99);
	REFUSED(share, ev->state.share.number = 0);
	REFUSED(share, ev->state.share.number |= LIEN_SHARE_BY_KEY);
	REFUSED(share, ev->state.share.flags = LIEN_STATE_KEYED);
	REFUSED(share, ev->state.share.flags = LIEN_STATE_STALE);
	REFUSED(share, ev->state.share.call = LIEN_CALL_CU_MEM_MAP);
	REFUSED(handle, ev->state.handle.allocation = 99);
	REFUSED(handle, ev->state.handle.raw = 99);
	REFUSED(handle, ev->state.handle.value = 50);
	REFUSED(handle, ev->state.handle.flags = 2);
	REFUSED(mapping, ev->state.mapping.allocation = 99);
	REFUSED(mapping, ev->state.mapping.bytes = 0);
	REFUSED(mapping, ev->state.mapping.bytes = UINT64_MAX);
	REFUSED(mapping, ev->state.mapping.flags = 0x80);
	REFUSED(mapping, ev->state.mapping.flags |= LIEN_STATE_OPENED);
	REFUSED(mapping, ev->state.mapping.opens = 1);
	REFUSED(mapping, ev->state.mapping.context = 1);
	REFUSED(registration, ev->state.registration.handle = 0);
	REFUSED(registration, ev->state.registration.comm = 99);
	REFUSED(binding, ev->state.binding.object = 1);
	REFUSED(binding, ev->state.binding.memory = 99);
	REFUSED(end, ev->state.end.allocation = UINT64_MAX);
	REFUSED(end, ev->state.end.comm = UINT32_MAX);
#undef REFUSED
	/* A split makes a communicator once. */
	records.count = 0;
	assert_int_equal(lien_graph_dump(graph, keeps, &records), 0);
	assert_int_equal(load_without(&records, 0), 0);
	was = *first_of(&records, LIEN_STATE_split);
	was.state.split.id[0]++;
	assert_int_equal(lien_graph_apply(copy, &was), -EBADMSG);
	was.state.split.comm = 0;
	assert_int_equal(lien_graph_apply(copy, &was), 0);
}

/* Only what somebody holds is shown, and numbers that are in use are not given out again. */
static void assert_sound(struct lien_graph *of)
{
	struct lien_allocation *allocation;
	struct lien_process *each;
	struct lien_comm *comm;

	for (allocation = lien_graph_first_allocation(of); allocation;
		allocation = lien_graph_next_allocation(allocation))
		assert_true(lien_allocation_held(allocation) && allocation->id <= of->next_id &&
			    allocation->comm <= of->next_comm);
	for (each = lien_graph_first(of); each; each = lien_graph_next(each))
		RB_FOREACH (comm, lien_comm_tree, &each->comms)
			assert_true(comm->number <= of->next_comm);
}

/* Cut short anywhere: what is there is whole, and goes when its processes end. */
static void test_cut_short(void **state)
{
	static struct records records;
	struct lien_event ev;
	size_t i, count;

	(void)state;
	everything();
	ended(1); /* others hold its memory */
	records.count = 0;
	assert_int_equal(lien_graph_dump(graph, keeps, &records), 0);
	for (count = 0; count <= records.count; count++) {
		lien_graph_free(copy);
		assert_int_equal(lien_graph_new(&copy), 0);
		for (i = 0; i < count; i++)
			assert_int_equal(lien_graph_apply(copy, &records.event[i]), 0);
		free(normal(copy));
		free(planned(copy));
		assert_sound(copy);
		for (i = 1; i <= 3; i++) {
			ev = EVENT(LIEN_EVENT_EXIT, i, );
			assert_int_equal(lien_graph_apply(copy, &ev), 0);
		}
		assert_null(lien_graph_first_allocation(copy));
		assert_int_equal(lien_graph_stats(copy)->allocations, 0);
	}
}

/* Access by more locations than one call can name. */
static void test_much_access(void **state)
{
	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	for (unsigned i = 0; i < 40; i++)
		set_access(1, VA, PIECE, i, 1 + 2 * (i % 2));
	dump();
	assert_int_equal(
		lien_mapping_access(lien_process_mapping(lien_graph_process(copy, 1), VA))->count,
		40);
}

/* It has captured, and captures no longer; events were lost during a release. */
static void test_past(void **state)
{
	struct lien_event ev;

	(void)state;
	started(1);
	capture_begin(1, 3);
	capture_end(1, 3);
	create(1, 10, PIECE);
	ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {10});
	ev = entry_of(ev);
	apply(&ev);
	TELL(LIEN_EVENT_LOST, 1, .lost = {1});
	TELL(LIEN_EVENT_REREAD, 1, .reread = {0});
	dump();
	assert_true(lien_graph_process(copy, 1)->captured);
	assert_int_equal(lien_graph_process(copy, 1)->incomplete, 0);
	assert_true(TAILQ_FIRST(&lien_graph_process(copy, 1)->pending)->event.flags &
		    LIEN_EVENT_DOUBTFUL);
}

/* The viewer's own processes, and what they hold of others' memory, whose owners stay unknown. */
static void test_viewer(void **state)
{
	const struct lien_viewer viewer = {.one_user = true, .uid = 5};
	static struct records records;
	const struct lien_allocation *held;

	(void)state;
	shared_by_three();
	buffer(1, 11, VA + 8 * PIECE, PIECE);
	TELL(LIEN_EVENT_PROCESS, 2, .process = {.uid = 5, .complete = 1, .comm = "mine"});
	buffer(2, 22, VA + 9 * PIECE, PIECE);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1, .multicast = {.handle = 50, .bytes = PIECE});
	export(1, 50, 8);
	import(2, 51, 8);
	TELL(LIEN_CALL_CU_MULTICAST_BIND, 2,
		.multicast = {.handle = 51, .memory = 22, .bytes = PIECE});
	records.count = 0;
	assert_int_equal(lien_graph_dump_seen(graph, &viewer, keeps, &records), 0);
	for (size_t i = 0; i < records.count; i++)
		assert_true(!records.event[i].pid || records.event[i].pid == 2);
	assert_int_equal(load_without(&records, 0), 0);
	assert_int_equal(lien_graph_stats(copy)->processes, 1);
	assert_int_equal(lien_graph_stats(copy)->allocations, 3);
	assert_non_null(first_of(&records, LIEN_STATE_binding));
	held = lien_process_mapping(lien_graph_process(copy, 2), VA)->holding->allocation;
	assert_int_equal(held->owner_pid, 0);
	assert_int_equal(held->bytes, PIECE);
	assert_int_equal(held->origin, LIEN_ORIGIN_IMPORT);
	assert_true(LIST_EMPTY(&held->shares));
}

/* --- version 2 -------------------------------------------------------------------------------- */

/* Snapshots used to be calls: an export that has been imported, communicators as they are, and a
 * part of a split. */
static void test_version_2(void **state)
{
	const struct lien_comm *comm;

	(void)state;
	started(1);
	started(2);
	create(1, 10, PIECE);
	tell.flags = LIEN_EVENT_IMPORTED;
	export(1, 10, 5);
	TELL(LIEN_CALL_NCCL_SHRINK, 1,
		.comm = {
			.comm = 0x100, .rank = 0, .nranks = 2, .key = 4, .excluded = 2, .id = {9}});
	TELL(LIEN_CALL_NCCL_SPLIT, 1,
		.comm = {.comm = 0x100, .parent = 0x100, .nranks = LIEN_COMM_AWAITED});
	TELL(LIEN_CALL_NCCL_SPLIT, 1,
		.comm = {.parent = 0x100, .color = -1, .nranks = LIEN_COMM_AWAITED, .excluded = 4});
	tell.flags = 0;
	import(2, 20, 5);
	release(1, 10);
	TELL(LIEN_EVENT_INCOMPLETE, 2, .incomplete = {LIEN_INCOMPLETE_NCCL});
	assert_int_equal(lien_graph_stats(graph)->unmatched_imports, 0);
	assert_int_equal(handle_of(2, 20)->holding->allocation->owner_pid, 1);
	comm = RB_MIN(lien_comm_tree, &process(1)->comms);
	assert_int_equal(comm->rank, 0);
	assert_int_equal(comm->nranks, 2);
	assert_int_equal(comm->splits, 4);
	assert_int_equal(comm->shrinks, 2);
	assert_false(LIST_EMPTY(&process(1)->splits));
	dump();
}

#define DUMP(name) cmocka_unit_test_setup_teardown(name, setup, dump_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		DUMP(test_nothing),
		DUMP(test_memory),
		DUMP(test_tags),
		DUMP(test_references),
		DUMP(test_raw_references),
		DUMP(test_imports),
		DUMP(test_import_not_mapped),
		DUMP(test_own_import),
		DUMP(test_dead_owner),
		DUMP(test_unknown_owner),
		DUMP(test_share_in_flight),
		DUMP(test_fabric),
		DUMP(test_offloaded),
		DUMP(test_comms),
		DUMP(test_captures),
		DUMP(test_pending),
		DUMP(test_incomplete),
		DUMP(test_stops),
		DUMP(test_each_record_counts),
		DUMP(test_refused),
		DUMP(test_cut_short),
		DUMP(test_much_access),
		DUMP(test_past),
		DUMP(test_viewer),
		DUMP(test_version_2),
	};

	return cmocka_run_group_tests_name("graph dump", tests, NULL, NULL);
}
