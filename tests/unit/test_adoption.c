// SPDX-License-Identifier: BSD-2-Clause
/* What is asked of processes that ran before the agent, and what the answers do to the graph. */
#include "agent/reread/emit.h"
#include "agent/plan/plan.h"
#include "canonical.h"

#define OWNER	 1
#define IMPORTER 2
#define OTHER	 3
#define VIEW	 (VA + (1ull << 32))

static struct lien_adoption adoption;

static void apply_told(void *context, struct lien_event *event)
{
	assert_ptr_equal(context, &adoption);
	apply(event);
}

static void late(uint32_t pid)
{
	TELL(LIEN_EVENT_PROCESS, pid, .process = {.uid = 1000, .comm = "python3"});
	process(pid)->presence = LIEN_CONTROL_READY;
}

/* As re-reading tells it. */
static void found(uint32_t pid, uint64_t handle, uint64_t va, unsigned types)
{
	struct lien_prop prop = device_prop(0);

	prop.handle_types = types;
	tell.flags = LIEN_EVENT_FOUND;
	create_on(pid, handle, PIECE, prop);
	map_rw(pid, va, PIECE, handle);
	tell.flags = 0;
}

static void found_import(uint32_t pid, uint64_t handle, uint64_t va)
{
	tell.flags = LIEN_EVENT_FOUND;
	TELL(LIEN_CALL_CU_MEM_IMPORT, pid,
		.share = {.handle = handle,
			.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
			.fd = -1});
	map_rw(pid, va, PIECE, handle);
	tell.flags = 0;
}

/* Two that ran before the agent: one owns three, of which the other imported two, one of them twice
 * mapped. */
static void pair(void)
{
	late(OWNER);
	late(IMPORTER);
	for (unsigned i = 0; i < 3; i++)
		found(OWNER, 10 + i, VA + i * PIECE, 1);
	for (unsigned i = 0; i < 2; i++)
		found_import(IMPORTER, 20 + i, VIEW + i * PIECE);
	map_rw(IMPORTER, VIEW + 8 * PIECE, PIECE, 20);
}

static struct lien_wire_adopt *entry_at(uint32_t pid, uint64_t va)
{
	struct lien_adoption_process *part = lien_adoption_process(&adoption, pid);

	for (unsigned i = 0; part && i < part->count; i++)
		if (part->entries[i].va == va)
			return &part->entries[i];
	return NULL;
}

static unsigned plan_adoption(const uint32_t *pids, unsigned count)
{
	lien_adoption_clear(&adoption);
	assert_int_equal(lien_adoption_begin(graph, pids, count, &adoption), 0);
	if (adoption.count)
		assert_int_equal(lien_adoption_plan(graph, &adoption), 0);
	return adoption.count;
}

/* By which the graph knows what is mapped there. */
static uint64_t handle_at(uint32_t pid, uint64_t va)
{
	const struct lien_mapping *mapping = lien_process_mapping(process(pid), va);
	const struct lien_handle *handle;

	assert_non_null(mapping);
	handle = TAILQ_FIRST(&mapping->holding->handles);
	return handle ? handle->value : 0;
}

/* Every process has so many references, and an owner reads its own mark. */
static void answer(uint32_t references)
{
	for (unsigned i = 0; i < adoption.count; i++)
		for (unsigned j = 0; j < adoption.processes[i].count; j++) {
			struct lien_wire_adopt *entry = &adoption.processes[i].entries[j];

			entry->handle = handle_at(adoption.processes[i].pid, entry->va);
			entry->references = references;
			if (entry->flags & LIEN_WIRE_ADOPT_OWN)
				memcpy(entry->bytes, entry->mark, sizeof(entry->bytes));
		}
}

static void reads(uint32_t pid, uint64_t va, uint32_t owner, uint64_t at)
{
	assert_non_null(entry_at(pid, va));
	assert_non_null(entry_at(owner, at));
	memcpy(entry_at(pid, va)->bytes, entry_at(owner, at)->mark, LIEN_WIRE_MARK_BYTES);
}

static void conclude(void)
{
	struct lien_emitter telling = {now += 1000, apply_told, &adoption};

	lien_adoption_emit(&adoption, graph, &telling);
	now = telling.now_ns;
}

static const uint32_t both[] = {OWNER, IMPORTER};

static void adopt_pair(void)
{
	assert_int_equal(plan_adoption(both, 2), 2);
	assert_true(adoption.marks);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	conclude();
}

/* What an offload of everything moves; why what stays does is in `left`. */
static uint64_t movable(struct lien_plan *plan)
{
	const struct lien_selection all = {0};
	char error[300];

	assert_int_equal(lien_plan_offload(graph, &all, plan, error, sizeof(error)), 0);
	return plan->bytes;
}

static void expect_moved(uint64_t bytes, uint64_t left, const char *reason)
{
	struct lien_plan plan;
	uint64_t sum = 0;

	assert_int_equal(movable(&plan), bytes);
	for (unsigned i = 0; i < plan.left_count; i++) {
		sum += plan.left[i].bytes;
		if (reason && !strstr(plan.left[i].reason, reason))
			fail_msg("\"%s\" is not in \"%s\"", reason, plan.left[i].reason);
	}
	assert_int_equal(sum, left);
	lien_plan_clear(&plan);
}

static int adoption_teardown(void **state)
{
	lien_adoption_clear(&adoption);
	return teardown(state);
}

static void test_matched(void **state)
{
	(void)state;
	pair();
	expect_moved(0, 5 * PIECE, NULL);
	adopt_pair();
	assert_int_equal(adoption.counted, 5);
	assert_int_equal(adoption.matched, 2);
	assert_int_equal(adoption.disputed, 0);
	assert_counts(2, 3, 6);
	assert_true(lien_process_whole(process(OWNER)));
	assert_true(lien_process_whole(process(IMPORTER)));
	assert_ptr_equal(lien_process_mapping(process(IMPORTER), VIEW)->holding->allocation,
		lien_process_mapping(process(OWNER), VA)->holding->allocation);
	assert_ptr_equal(
		lien_process_mapping(process(IMPORTER), VIEW + 8 * PIECE)->holding->allocation,
		lien_process_mapping(process(OWNER), VA)->holding->allocation);
	assert_int_equal(references_of(IMPORTER, 20), 1);
	expect_moved(3 * PIECE, 0, NULL);
	assert_int_equal(plan_adoption(NULL, 0), 0); /* nothing is open any more */
}

static void test_references(void **state)
{
	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(3);
	reads(IMPORTER, VIEW, OWNER, VA);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	entry_at(OWNER, VA)->references = 0;
	entry_at(IMPORTER, VIEW)->references = 0;
	conclude();
	assert_int_equal(references_of(OWNER, 10), 0);
	assert_int_equal(references_of(OWNER, 11), 3);
	assert_int_equal(references_of(IMPORTER, 20), 0);
	assert_int_equal(references_of(IMPORTER, 21), 3);
	/* What it never had is given back: not odd, for its beginning was not seen. */
	release(OWNER, 10);
	release(OWNER, 99);
	unmap(OWNER, VA + 70 * PIECE, PIECE);
	assert_int_equal(lien_graph_stats(graph)->odd, 0);
}

/* One import has no owner: it stays, and nothing else does. */
static void test_unmatched(void **state)
{
	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	conclude();
	assert_int_equal(adoption.matched, 1);
	expect_moved(3 * PIECE, PIECE, "its owner is not known");
	/* Another one, of which nobody has asked, may be any of them. */
	TELL(LIEN_CALL_CU_MEM_IMPORT, IMPORTER, .share = {.handle = 30, .handle_type = 1, .fd = 5});
	map_rw(IMPORTER, VIEW + 20 * PIECE, PIECE, 30);
	expect_moved(0, 5 * PIECE, NULL);
	assert_int_equal(plan_adoption(NULL, 0), 2);
	assert_null(entry_at(OWNER, VA + 70 * PIECE));
	assert_int_equal(entry_at(OWNER, VA)->flags, LIEN_WIRE_ADOPT_OWN);
	answer(9);
	reads(IMPORTER, VIEW + 20 * PIECE, OWNER, VA + 2 * PIECE);
	conclude();
	assert_int_equal(references_of(OWNER, 10), 1); /* it was not counted again */
	expect_moved(3 * PIECE, PIECE, "its owner is not known");
}

static void test_outsider(void **state)
{
	static const uint32_t owner[] = {OWNER};

	(void)state;
	pair();
	assert_int_equal(plan_adoption(owner, 1), 2);
	assert_int_equal(adoption.outsider, IMPORTER);
	assert_false(adoption.marks);
	answer(1);
	conclude();
	assert_true(lien_process_whole(process(OWNER)));
	assert_true(process(IMPORTER)->incomplete & LIEN_INCOMPLETE_LATE);
	expect_moved(0, 5 * PIECE, NULL);
	adopt_pair();
	expect_moved(3 * PIECE, 0, NULL);
	/* One that comes to light later, and takes no orders. */
	late(OTHER);
	process(OTHER)->presence = LIEN_CONTROL_NONE;
	expect_moved(0, 3 * PIECE, "`lien attach`");
}

/* What cannot be handed out is nobody else's. */
static void test_not_exportable(void **state)
{
	(void)state;
	late(OWNER);
	late(OTHER);
	found(OWNER, 10, VA, 0);
	assert_int_equal(plan_adoption(both, 1), 2);
	assert_int_equal(adoption.outsider, OTHER);
	assert_int_equal(entry_at(OWNER, VA)->flags, LIEN_WIRE_ADOPT_COUNT);
	answer(1);
	conclude();
	expect_moved(PIECE, 0, NULL);
}

/* Two that say they own the same are both not believed. */
static void test_disputed(void **state)
{
	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	reads(OWNER, VA + 2 * PIECE, OWNER, VA + PIECE);
	conclude();
	assert_int_equal(adoption.disputed, 2);
	TELL(LIEN_CALL_CU_MEM_IMPORT, IMPORTER, .share = {.handle = 30, .handle_type = 1, .fd = 5});
	map_rw(IMPORTER, VIEW + 20 * PIECE, PIECE, 30);
	expect_moved(0, 5 * PIECE, NULL);
}

/* As where the driver tells the types of what was imported, too: nothing is unknown, it seems. */
static void test_disputed_and_nothing_else(void **state)
{
	(void)state;
	late(OWNER);
	late(IMPORTER);
	found(OWNER, 10, VA, 1);
	found(IMPORTER, 20, VIEW, 1);
	map_rw(IMPORTER, VIEW + 4 * PIECE, PIECE, 20);
	found(IMPORTER, 21, VIEW + PIECE, 1);
	assert_int_equal(plan_adoption(both, 2), 2);
	assert_true(adoption.marks);
	answer(2);
	reads(OWNER, VA, IMPORTER, VIEW);
	conclude();
	assert_int_equal(adoption.disputed, 2);
	expect_moved(0, 3 * PIECE, NULL);
	assert_int_equal(plan_adoption(both, 2), 2); /* both are looked at, and are nobody's */
	answer(2);
	conclude();
	assert_int_equal(adoption.disputed, 0);
	expect_moved(PIECE, 2 * PIECE, "its owner is not known");
}

/* What was exported before the agent may have been imported in a call that was lost. */
static void test_imported_in_a_lost_call(void **state)
{
	struct lien_event event;

	(void)state;
	pair();
	adopt_pair();
	expect_moved(3 * PIECE, 0, NULL);
	create_on(OTHER, 40, PIECE, device_prop(0));
	event = EVENT(LIEN_EVENT_INCOMPLETE, OTHER, .incomplete = {LIEN_INCOMPLETE_LOST});
	apply(&event);
	expect_moved(0, 4 * PIECE, NULL);
}

/* Where the driver and the graph do not mean the same, nothing is believed. */
static void test_another_handle(void **state)
{
	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	entry_at(OWNER, VA)->handle++;
	entry_at(IMPORTER, VIEW + PIECE)->handle++;
	conclude();
	assert_int_equal(adoption.matched, 1);
	expect_moved(0, 4 * PIECE, NULL);
}

/* Of several mappings one is asked that can be written, or read; where none can, it is said. */
static void test_access(void **state)
{
	(void)state;
	pair();
	map_rw(OWNER, VA + 40 * PIECE, PIECE, 10);
	set_access(OWNER, VA, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	set_access(IMPORTER, VIEW, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	set_access(IMPORTER, VIEW + 8 * PIECE, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	assert_int_equal(plan_adoption(both, 2), 2);
	assert_null(entry_at(OWNER, VA));
	assert_int_equal(entry_at(OWNER, VA + 40 * PIECE)->flags,
		LIEN_WIRE_ADOPT_COUNT | LIEN_WIRE_ADOPT_OWN);
	assert_null(entry_at(IMPORTER, VIEW));
	assert_int_equal(entry_at(IMPORTER, VIEW + 8 * PIECE)->flags,
		LIEN_WIRE_ADOPT_COUNT | LIEN_WIRE_ADOPT_LOOK | LIEN_WIRE_ADOPT_READ_ONLY);
	answer(1);
	reads(IMPORTER, VIEW + 8 * PIECE, OWNER, VA + 40 * PIECE);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	conclude();
	assert_int_equal(adoption.matched, 2);
	expect_moved(3 * PIECE, 0, NULL);
}

/* An import that no device may read can be of anything that was handed out. */
static void test_not_readable(void **state)
{
	(void)state;
	pair();
	set_access(IMPORTER, VIEW + PIECE, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	assert_int_equal(plan_adoption(both, 2), 2);
	assert_int_equal(entry_at(IMPORTER, VIEW + PIECE)->flags,
		LIEN_WIRE_ADOPT_COUNT | LIEN_WIRE_ADOPT_READ_ONLY);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	conclude();
	assert_int_equal(adoption.matched, 1);
	expect_moved(0, 4 * PIECE, NULL);
	set_access(IMPORTER, VIEW + PIECE, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	assert_int_equal(plan_adoption(NULL, 0), 2);
	answer(1);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	conclude();
	expect_moved(3 * PIECE, 0, NULL);
}

/* What was marked once, and cannot be any more, may be what is imported since; others are marked.
 */
static void test_not_writable_any_more(void **state)
{
	(void)state;
	pair();
	adopt_pair();
	set_access(OWNER, VA + 2 * PIECE, PIECE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ);
	TELL(LIEN_CALL_CU_MEM_IMPORT, IMPORTER, .share = {.handle = 30, .handle_type = 1, .fd = 5});
	map_rw(IMPORTER, VIEW + 20 * PIECE, PIECE, 30);
	assert_int_equal(plan_adoption(NULL, 0), 2);
	assert_int_equal(adoption.outsider, 0);
	assert_true(adoption.marks);
	answer(1);
	conclude();
	expect_moved(2 * PIECE, 2 * PIECE, NULL);
}

/* A process may have imported what it has, too: references are of the handle that was asked. */
static void test_two_handles(void **state)
{
	(void)state;
	pair();
	export(OWNER, 12, 77);
	import(OWNER, 40, 77);
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(3);
	entry_at(OWNER, VA + 2 * PIECE)->handle = 12;
	conclude();
	assert_int_equal(references_of(OWNER, 12), 3);
	assert_int_equal(references_of(OWNER, 40), 1);
}

static void test_maybe_a_window(void **state)
{
	struct lien_event event;

	(void)state;
	pair();
	map_rw(OWNER, VA + 40 * PIECE, PIECE, 12);
	adopt_pair();
	expect_moved(3 * PIECE, 0, NULL);
	event = EVENT(LIEN_EVENT_INCOMPLETE, OWNER,
		.incomplete = {LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_NCCL});
	apply(&event);
	expect_moved(2 * PIECE, PIECE, "as NCCL maps windows");
}

/* What an open descriptor exports stays until it is closed. */
static void test_open_descriptor(void **state)
{
	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	for (unsigned i = 0; i < 2; i++) /* two of one memory, in any process */
		assert_int_equal(lien_adoption_open(lien_adoption_process(&adoption, both[i]),
					 entry_at(OWNER, VA + 2 * PIECE)->mark),
			0);
	assert_int_equal(lien_adoption_open(lien_adoption_process(&adoption, OWNER),
				 (const uint8_t[LIEN_WIRE_MARK_BYTES]){1}),
		0);
	conclude();
	assert_int_equal(adoption.open, 2);
	expect_moved(2 * PIECE, PIECE, "a descriptor");
	assert_int_equal(plan_adoption(NULL, 0), 2);
	answer(1);
	conclude();
	expect_moved(3 * PIECE, 0, NULL);
	assert_int_equal(plan_adoption(NULL, 0), 0);
}

static void test_maybe_multicast(void **state)
{
	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(1);
	reads(IMPORTER, VIEW, OWNER, VA);
	reads(IMPORTER, VIEW + PIECE, OWNER, VA + PIECE);
	lien_adoption_process(&adoption, OWNER)->doubts = LIEN_INCOMPLETE_MULTICAST;
	conclude();
	expect_moved(0, 3 * PIECE, "NVLS");
	buffer(OWNER, 50, VA + 50 * PIECE, PIECE); /* all of this one has been seen */
	expect_moved(PIECE, 3 * PIECE, "NVLS");
}

/* Objects that processes share are bound to memory that can be exported alone. */
static void test_what_cannot_be_bound(void **state)
{
	(void)state;
	late(OWNER);
	found(OWNER, 10, VA, 0);
	found(OWNER, 11, VA + PIECE, 1);
	assert_int_equal(plan_adoption(both, 1), 1);
	lien_adoption_process(&adoption, OWNER)->doubts = LIEN_INCOMPLETE_MULTICAST;
	answer(1);
	conclude();
	expect_moved(PIECE, PIECE, "NVLS");
	assert_true(lien_process_whole(process(OWNER)));
	TELL(LIEN_EVENT_INCOMPLETE, OWNER,
		.incomplete = {LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_MULTICAST |
			       LIEN_INCOMPLETE_MULTICAST_OWN});
	expect_moved(0, 2 * PIECE, "NVLS");
	assert_true(lien_process_whole(process(OWNER)));
}

static void test_fabric(void **state)
{
	(void)state;
	late(OWNER);
	found(OWNER, 10, VA, CU_MEM_HANDLE_TYPE_FABRIC);
	assert_int_equal(plan_adoption(both, 1), 1);
	answer(1);
	conclude();
	expect_moved(0, PIECE, "fabric");
}

/* Re-reading finds memory without handle types. It may be an import. */
static void found_untyped(uint32_t pid, uint64_t handle, uint64_t va)
{
	struct lien_prop prop = device_prop(0);

	prop.handle_types = 0;
	found_import(pid, handle, va);
	TELL(LIEN_EVENT_PROP, pid, .property = {.va = va, .prop = prop});
}

static void two_untyped(void)
{
	late(OWNER);
	late(IMPORTER);
	found_untyped(OWNER, 10, VA);
	found_untyped(IMPORTER, 20, VIEW);
	map_rw(IMPORTER, VIEW + 8 * PIECE, PIECE, 20);
	assert_int_equal(plan_adoption(both, 2), 2);
	assert_int_equal(adoption.untyped, 2);
	answer(2);
}

static void test_untyped(void **state)
{
	(void)state;
	two_untyped();
	assert_int_equal(entry_at(OWNER, VA)->flags,
		LIEN_WIRE_ADOPT_COUNT | LIEN_WIRE_ADOPT_OWN | LIEN_WIRE_ADOPT_LOOK);
	assert_true(adoption.marks);
	conclude();
	assert_int_equal(adoption.made, 2);
	assert_int_equal(references_of(IMPORTER, 20), 2);
	assert_counts(2, 2, 3);
	assert_true(lien_process_whole(process(OWNER)));
	assert_true(lien_process_whole(process(IMPORTER)));
	expect_moved(2 * PIECE, 0, NULL);
	assert_int_equal(plan_adoption(NULL, 0), 0);
}

/* Both read one mark: neither made it, or neither alone has it. */
static void test_untyped_and_shared(void **state)
{
	(void)state;
	two_untyped();
	reads(IMPORTER, VIEW, OWNER, VA);
	conclude();
	assert_int_equal(adoption.made, 0);
	assert_int_equal(adoption.matched, 0);
	expect_moved(0, 2 * PIECE, "others may have it");
	assert_int_equal(plan_adoption(NULL, 0), 2);
	answer(1);
	conclude();
	expect_moved(2 * PIECE, 0, NULL);
}

/* Whatever was not compared, or may still be handed out, may be the same. */
static void test_untyped_in_doubt(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		two_untyped();
		if (i == 0)
			adoption.unread = true; /* a descriptor is on its way */
		if (i == 1)
			entry_at(OWNER, VA)->flags |= LIEN_WIRE_ADOPT_FABRIC;
		if (i == 2) /* something that nobody's mark was found in */
			memset(entry_at(OWNER, VA)->bytes, 1, LIEN_WIRE_MARK_BYTES);
		if (i == 3)
			assert_int_equal(lien_adoption_open(lien_adoption_process(&adoption, OWNER),
						 entry_at(OWNER, VA)->mark),
				0);
		if (i > 3) {
			if (i == 4) { /* an import that is not mapped */
				TELL(LIEN_CALL_CU_MEM_IMPORT, IMPORTER,
					.share = {.handle = 30, .handle_type = 1, .fd = 5});
			} else { /* memory that can be exported, and cannot be marked */
				found(IMPORTER, 30, VIEW + 20 * PIECE, 1);
				set_access(IMPORTER, VIEW + 20 * PIECE, PIECE, 0,
					CU_MEM_ACCESS_FLAGS_PROT_READ);
			}
			assert_int_equal(plan_adoption(both, 2), 2);
			answer(1);
		}
		conclude();
		assert_int_equal(adoption.made, i == 0 || i > 3 ? 0 : 1);
		assert_null(lien_process_mapping(process(OWNER), VA)->holding->allocation->owner);
		adoption_teardown(state);
		setup(state);
	}
}

/* It may have imported some in a call that was lost. */
static void test_untyped_beside_an_odd_one(void **state)
{
	struct lien_event event;

	(void)state;
	create_on(OTHER, 40, PIECE, device_prop(0));
	event = EVENT(LIEN_EVENT_INCOMPLETE, OTHER, .incomplete = {LIEN_INCOMPLETE_LOST});
	apply(&event);
	two_untyped();
	conclude();
	assert_int_equal(adoption.made, 0);
}

static int keep(void *other, const struct lien_event *event)
{
	return lien_graph_apply(other, event);
}

/* The next agent knows it from the journal. */
static void test_dump(void **state)
{
	struct lien_graph *other, *mine = graph;
	char *before, *after;

	(void)state;
	pair();
	assert_int_equal(plan_adoption(both, 2), 2);
	answer(2);
	reads(IMPORTER, VIEW, OWNER, VA);
	conclude();
	before = canonical(graph);
	assert_int_equal(lien_graph_new(&other), 0);
	assert_int_equal(lien_graph_dump(graph, keep, other), 0);
	graph = other;
	process(OWNER)->presence = process(IMPORTER)->presence = LIEN_CONTROL_READY;
	after = canonical(graph);
	assert_string_equal(before, after);
	assert_int_equal(lien_graph_stats(graph)->round, 1);
	expect_moved(3 * PIECE, PIECE, "its owner is not known");
	free(before);
	free(after);
	graph = mine;
	lien_graph_free(other);
}

#define ADOPTION(name) cmocka_unit_test_setup_teardown(name, setup, adoption_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ADOPTION(test_matched),
		ADOPTION(test_references),
		ADOPTION(test_unmatched),
		ADOPTION(test_outsider),
		ADOPTION(test_not_exportable),
		ADOPTION(test_disputed),
		ADOPTION(test_disputed_and_nothing_else),
		ADOPTION(test_imported_in_a_lost_call),
		ADOPTION(test_another_handle),
		ADOPTION(test_access),
		ADOPTION(test_not_readable),
		ADOPTION(test_not_writable_any_more),
		ADOPTION(test_two_handles),
		ADOPTION(test_maybe_a_window),
		ADOPTION(test_open_descriptor),
		ADOPTION(test_maybe_multicast),
		ADOPTION(test_what_cannot_be_bound),
		ADOPTION(test_fabric),
		ADOPTION(test_untyped),
		ADOPTION(test_untyped_and_shared),
		ADOPTION(test_untyped_in_doubt),
		ADOPTION(test_untyped_beside_an_odd_one),
		ADOPTION(test_dump),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
