// SPDX-License-Identifier: BSD-2-Clause
/*
 * Re-reading against a made-up driver: what differs is reported and nothing else, and after the
 * repair nothing differs. LIEN_SEED repeats a run, LIEN_SEQUENCES sets how many random jobs.
 */

#include "agent/plan/plan.h"
#include "agent/reread/emit.h"
#include "events.h"
#include "tests/unit/seeds.h"

#define PID   7
#define SLOTS 32
#define PLAIN 8
#define ROOM  (8 * PIECE) /* of a slot */
#define HEAP  (VA + SLOTS * ROOM)

/* What the driver has: a mapping in a slot, or none (.bytes 0). */
struct slot {
	uint64_t bytes, handle;
	int device;
	unsigned access[2];
};

static struct {
	struct slot slot[SLOTS];
	struct slot plain[PLAIN];
	bool imported[SLOTS]; /* the driver tells no types of handles */
	uint64_t last_handle;
} truth;

static uint32_t random_state;

static unsigned random_below(unsigned n)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % n;
}

static uint64_t va_of(unsigned slot)
{
	return VA + slot * ROOM;
}

static uint64_t plain_va(unsigned slot)
{
	return HEAP + slot * 512; /* one behind the other, as small allocations are */
}

/* The walk of one pass. */
static void answer(struct lien_reread *reread)
{
	const struct lien_wire_range *ranges = reread->wanted.range;
	const unsigned count = reread->wanted.count;
	struct lien_wire_found found;
	unsigned i, j, k;

	for (i = 0; i < count; i++) {
		for (j = 0; ranges[i].kind == LIEN_WIRE_AREA && j < SLOTS; j++) {
			const struct slot *slot = &truth.slot[j];

			if (!slot->bytes || va_of(j) + slot->bytes <= ranges[i].va ||
				va_of(j) >= ranges[i].va + ranges[i].bytes)
				continue;
			found = (struct lien_wire_found){.va = va_of(j),
				.bytes = slot->bytes,
				.handle = slot->handle,
				.kind = LIEN_WIRE_AREA,
				.prop_type = 1,
				.handle_types = !truth.imported[j],
				.location_type = 1,
				.location_id = slot->device};
			for (k = 0; k < 2; k++)
				if (slot->access[k])
					found.place[found.places++] =
						(struct lien_wire_place){1, k, slot->access[k]};
			lien_reread_found(reread, &found, 1);
		}
		for (j = 0; ranges[i].kind == LIEN_WIRE_PLAIN && j < PLAIN; j++)
			if (ranges[i].va == plain_va(j)) {
				found = (struct lien_wire_found){.va = plain_va(j),
					.bytes = truth.plain[j].bytes,
					.kind = LIEN_WIRE_PLAIN};
				found.location_type = found.bytes ? 1 : 0;
				found.location_id = found.bytes ? truth.plain[j].device : 0;
				lien_reread_found(reread, &found, 1);
			}
	}
}

static void drop(struct lien_reread *reread)
{
	lien_reread_clear(reread);
	free(reread);
}

static void tell_it(void *context, struct lien_event *event)
{
	(void)context;
	apply(event);
}

static void learn(struct lien_reread *reread)
{
	struct lien_emitter emitter = {now, tell_it, NULL};

	lien_reread_learn(reread, process(PID), &emitter);
}

/* Runs all passes; touched says at which slots something happens in each of them. */
static struct lien_reread *read_all(const bool *touched)
{
	struct lien_reread *reread;
	unsigned i;
	int more = 1;

	reread = calloc(1, sizeof(*reread));
	lien_reread_want_known(reread, process(PID));
	while (more > 0) {
		lien_reread_begin(reread, process(PID));
		answer(reread);
		for (i = 0; touched && i < SLOTS; i++)
			if (touched[i]) {
				struct lien_event event = EVENT(LIEN_CALL_CU_MEM_MAP, PID,
					.map = {.va = va_of(i), .bytes = ROOM});

				lien_reread_touched(reread, &event);
			}
		more = lien_reread_end(reread, process(PID));
		learn(reread);
	}
	assert_int_equal(more, 0);
	assert_int_equal(reread->open.count, 0);
	return reread;
}

static void repair(struct lien_reread *reread)
{
	struct lien_emitter emitter = {now += 1000, tell_it, NULL};

	lien_reread_repair(reread, graph, process(PID), &emitter);
	now += 1000;
}

/* A handle of the same process that others may share. */
static uint64_t any_handle(void)
{
	unsigned i = random_below(SLOTS);

	return truth.slot[i].bytes && random_below(4) == 0 ? truth.slot[i].handle
							   : ++truth.last_handle;
}

static void fill_slot(struct slot *slot)
{
	unsigned i;

	slot->bytes = PIECE * (1 + random_below(3));
	slot->handle = any_handle();
	slot->device = 0;
	for (i = 0; i < SLOTS; i++) /* an alias is no longer and elsewhere than the first */
		if (&truth.slot[i] != slot && truth.slot[i].bytes &&
			truth.slot[i].handle == slot->handle) {
			slot->bytes = truth.slot[i].bytes;
			slot->device = truth.slot[i].device;
		}
	slot->access[0] = 3;
	slot->access[1] = random_below(2) ? 1 : 0;
}

/* Makes the graph what the driver has. */
static void tell_slot(unsigned i)
{
	const struct slot *slot = &truth.slot[i];
	unsigned k;

	if (!slot->bytes)
		return;
	if (!handle_of(PID, slot->handle))
		create_on(PID, slot->handle, slot->bytes,
			(struct lien_prop){.type = 1,
				.handle_types = 1,
				.location_type = 1,
				.location_id = slot->device,
				.rdma = 1});
	map(PID, va_of(i), slot->bytes, slot->handle);
	for (k = 0; k < 2; k++)
		if (slot->access[k])
			set_access(PID, va_of(i), slot->bytes, k, slot->access[k]);
}

static void start_job(void)
{
	unsigned i;

	memset(&truth, 0, sizeof(truth));
	truth.last_handle = 0x1000;
	started(PID);
	reserve(PID, VA, SLOTS * ROOM);
	for (i = 0; i < SLOTS; i++) {
		if (random_below(3))
			fill_slot(&truth.slot[i]);
		tell_slot(i);
	}
	for (i = 0; i < PLAIN; i++)
		if (random_below(2)) {
			truth.plain[i] = (struct slot){.bytes = 512, .device = random_below(2)};
			alloc(PID, plain_va(i), 512);
		}
}

static bool shared(unsigned slot)
{
	unsigned i;

	for (i = 0; i < SLOTS; i++)
		if (i != slot && truth.slot[i].bytes &&
			truth.slot[i].handle == truth.slot[slot].handle)
			return true;
	return false;
}

/* Something happens that the graph does not hear of. */
static enum lien_difference_kind change_slot(unsigned i)
{
	struct slot *slot = &truth.slot[i];

	if (!slot->bytes) {
		fill_slot(slot);
		return LIEN_DIFFERENCE_MISSING;
	}
	switch (random_below(5)) {
	case 0:
		slot->bytes = 0;
		return LIEN_DIFFERENCE_GONE;
	case 1:
		if (shared(i))
			break;
		slot->bytes += PIECE;
		if (random_below(2))
			slot->handle = ++truth.last_handle;
		return LIEN_DIFFERENCE_SIZE;
	case 2:
		slot->handle = ++truth.last_handle;
		return LIEN_DIFFERENCE_HANDLE;
	case 3:
		if (shared(i))
			break;
		slot->device = 1;
		return LIEN_DIFFERENCE_PROPERTIES;
	}
	slot->access[1] = slot->access[1] ? 0 : 3;
	return LIEN_DIFFERENCE_ACCESS;
}

static enum lien_difference_kind change_plain(unsigned i)
{
	struct slot *slot = &truth.plain[i];

	if (!slot->bytes)
		return 0; /* nobody would ask */
	slot->bytes = random_below(2) ? 0 : 100;
	return slot->bytes ? LIEN_DIFFERENCE_SIZE : LIEN_DIFFERENCE_GONE;
}

static void assert_reported(struct lien_reread *reread, const enum lien_difference_kind *slots,
	const enum lien_difference_kind *plain)
{
	const struct lien_difference *difference = reread->certain.difference;
	const unsigned count = reread->certain.count;
	unsigned i, n = 0;

	for (i = 0; i < SLOTS; i++) {
		if (!slots[i])
			continue;
		assert_true(n < count);
		assert_int_equal(difference[n].va, va_of(i));
		assert_int_equal(difference[n].kind, slots[i]);
		n++;
	}
	for (i = 0; i < PLAIN; i++) {
		if (!plain[i])
			continue;
		assert_true(n < count);
		assert_int_equal(difference[n].va, plain_va(i));
		assert_int_equal(difference[n].kind, plain[i]);
		n++;
	}
	assert_int_equal(count, n);
}

/* Every handle of the made-up driver is mapped, so the graph must have these and no others. */
static void assert_graph_is_truth(void)
{
	unsigned i, mappings = 0, j;
	struct lien_handle *handle;
	struct lien_reread *reread = read_all(NULL);

	assert_int_equal(reread->certain.count, 0);
	drop(reread);
	SPLAY_FOREACH (handle, lien_handle_tree, &process(PID)->handles) {
		for (j = 0; j < SLOTS; j++)
			if (truth.slot[j].bytes && truth.slot[j].handle == handle->value)
				break;
		assert_true(j < SLOTS);
	}
	for (i = 0; i < SLOTS; i++)
		mappings += !!truth.slot[i].bytes;
	for (i = 0; i < PLAIN; i++)
		mappings += !!truth.plain[i].bytes;
	assert_int_equal(lien_graph_stats(graph)->mappings, mappings);
}

static void random_job(void)
{
	const enum lien_difference_kind none[SLOTS] = {0};
	enum lien_difference_kind slots[SLOTS] = {0}, plain[PLAIN] = {0};
	bool touched[SLOTS] = {false};
	struct lien_reread *reread;
	unsigned i;

	start_job();
	reread = read_all(NULL);
	assert_reported(reread, none, none);
	drop(reread);
	for (i = 0; i < PLAIN; i++)
		if (truth.plain[i].bytes)
			assert_int_equal(allocation_at(PID, plain_va(i))->prop.location_id,
				truth.plain[i].device);
	for (i = 0; i < SLOTS; i++) {
		if (random_below(3) == 0)
			slots[i] = change_slot(i);
		touched[i] = random_below(8) == 0;
	}
	for (i = 0; i < PLAIN; i++)
		if (random_below(3) == 0)
			plain[i] = change_plain(i);

	reread = read_all(touched);
	{
		enum lien_difference_kind calm[SLOTS];

		for (i = 0; i < SLOTS; i++)
			calm[i] = touched[i] ? 0 : slots[i];
		assert_reported(reread, calm, plain);
	}
	drop(reread);

	reread = read_all(NULL);
	assert_reported(reread, slots, plain);
	repair(reread);
	drop(reread);
	assert_graph_is_truth();
	assert_int_equal(process(PID)->incomplete & LIEN_INCOMPLETE_SHARE, 0);
}

static void test_random(void **state)
{
	unsigned n = lien_test_sequences(2000), i;

	(void)state;
	random_state = lien_test_seed();
	print_message("LIEN_SEED=%u LIEN_SEQUENCES=%u\n", random_state, n);
	for (i = 0; i < n; i++) {
		random_job();
		ended(PID);
		assert_counts(0, 0, 0);
	}
}

static void one_job(void)
{
	memset(&truth, 0, sizeof(truth));
	started(PID);
	reserve(PID, VA, SLOTS * ROOM);
	truth.slot[0] = (struct slot){PIECE, 0x10, 0, {3, 0}};
	tell_slot(0);
}

static void pass(struct lien_reread *reread, int more)
{
	lien_reread_begin(reread, process(PID));
	answer(reread);
	assert_int_equal(lien_reread_end(reread, process(PID)), more);
}

/* The driver has it before its record comes: seen once, it does not count. */
static void test_seen_once(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	reread = calloc(1, sizeof(*reread));
	lien_reread_want_known(reread, process(PID));
	pass(reread, 1);
	assert_int_equal(reread->certain.count, 0);
	tell_slot(1);
	pass(reread, 0);
	assert_int_equal(reread->certain.count, 0);
	drop(reread);
}

/* What is certain and then changes is not certain any more. */
static void test_changed_again(void **state)
{
	struct lien_event event;
	struct lien_reread *reread;

	(void)state;
	one_job();
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	truth.slot[4] = (struct slot){PIECE, 0x12, 0, {3, 0}};
	reread = calloc(1, sizeof(*reread));
	lien_reread_want_known(reread, process(PID));
	pass(reread, 1);
	event = EVENT(LIEN_CALL_CU_MEM_UNMAP, PID, .range = {va_of(4), PIECE});
	lien_reread_touched(reread, &event);
	pass(reread, 1);
	assert_int_equal(reread->certain.count, 1);
	event = EVENT(LIEN_CALL_CU_MEM_UNMAP, PID, .range = {va_of(1), PIECE});
	lien_reread_touched(reread, &event);
	truth.slot[1].bytes = truth.slot[4].bytes = 0;
	pass(reread, 1);
	assert_int_equal(reread->certain.count, 0);
	pass(reread, 0);
	drop(reread);
}

/* As programs do it: create, map, release. The handle goes with the mapping. */
static void test_mapped_without_references(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	release(PID, 0x10);
	truth.slot[0].bytes = 0;
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	assert_counts(1, 0, 0);
}

/* An unmap that was entered may have happened. */
static void test_pending_touches(void **state)
{
	struct lien_event entry;
	struct lien_reread *reread;

	(void)state;
	one_job();
	truth.slot[0].bytes = 0;
	entry = entry_of(EVENT(LIEN_CALL_CU_MEM_UNMAP, PID, .range = {va_of(0), PIECE}));
	apply(&entry);
	reread = read_all(NULL);
	assert_int_equal(reread->certain.count, 0);
	drop(reread);
	/* Its return may be among the events that were lost: then only the driver knows. */
	TELL(LIEN_EVENT_LOST, PID, .lost = {1});
	reread = read_all(NULL);
	assert_int_equal(reread->certain.count, 1);
	drop(reread);
}

static void test_offloaded(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	control_detach(PID, va_of(0), PIECE, 0x10, 1);
	truth.slot[0].bytes = 0;
	reread = read_all(NULL);
	assert_int_equal(reread->certain.count, 0);
	drop(reread);
}

static int apply_to(void *context, const struct lien_event *event)
{
	assert_int_equal(lien_graph_apply(context, event), 0);
	return 0;
}

/* Made while events were lost: its references are not known, so it is not moved, whatever reads a
 * dump of the graph included. */
static void test_found_stays(void **state)
{
	struct lien_reread *reread;
	struct lien_allocation *allocation;
	struct lien_graph *other;
	struct lien_process *again;

	(void)state;
	one_job();
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	truth.plain[0] = (struct slot){.bytes = 512, .device = 1};
	alloc(PID, plain_va(0), 512);
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	allocation = allocation_at(PID, va_of(1));
	assert_ptr_equal(allocation->owner, process(PID));
	assert_non_null(strstr(lien_plan_unmovable(allocation), "re-reading"));
	assert_null(lien_plan_unmovable(allocation_at(PID, va_of(0))));
	assert_int_equal(lien_graph_new(&other), 0);
	lien_graph_dump(graph, apply_to, other);
	again = lien_graph_process(other, PID);
	assert_true(lien_process_mapping(again, va_of(1))->holding->allocation->found);
	assert_false(lien_process_mapping(again, va_of(0))->holding->allocation->found);
	assert_int_equal(
		lien_process_mapping(again, plain_va(0))->holding->allocation->prop.location_id, 1);
	lien_graph_free(other);
}

/* While events were lost memory was freed, and the driver gave its handle's value to other memory,
 * of which less is mapped. That is not taken for what it was. */
static void test_handle_given_again(void **state)
{
	struct lien_allocation *allocation;
	struct lien_reread *reread;

	(void)state;
	memset(&truth, 0, sizeof(truth));
	started(PID);
	reserve(PID, VA, SLOTS * ROOM);
	truth.slot[0] = (struct slot){3 * PIECE, 0x10, 0, {3, 0}};
	tell_slot(0);
	truth.slot[0].bytes = 0;
	truth.slot[2] = (struct slot){PIECE, 0x10, 0, {3, 0}};
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	allocation = allocation_at(PID, va_of(2));
	assert_int_equal(allocation->bytes, PIECE);
	assert_non_null(strstr(lien_plan_unmovable(allocation), "re-reading"));
	assert_graph_is_truth();
}

/* Aliases may be shorter than the allocation, and come first. */
static void test_found_aliases(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	truth.slot[3] = (struct slot){3 * PIECE, 0x11, 0, {3, 0}};
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	assert_ptr_equal(allocation_at(PID, va_of(1)), allocation_at(PID, va_of(3)));
	assert_int_equal(allocation_at(PID, va_of(1))->bytes, 3 * PIECE);
	assert_graph_is_truth();
}

/* It may be another process's: the process stays incomplete. */
static void test_may_be_imported(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	started(PID + 1);
	buffer(PID + 1, 0x77, VA, 2 * PIECE);
	export(PID + 1, 0x77, 5);
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	truth.imported[1] = true;
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	assert_null(allocation_at(PID, va_of(1))->owner);
	assert_int_equal(allocation_at(PID, va_of(1))->origin, LIEN_ORIGIN_IMPORT);
	assert_true(process(PID)->incomplete & LIEN_INCOMPLETE_SHARE);
}

/* A process of which little is known may have exported anything. */
static void test_others_incomplete(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	TELL(LIEN_EVENT_PROCESS, PID + 1, .process = {.complete = 0, .comm = "late"});
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	truth.imported[1] = true;
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	assert_null(allocation_at(PID, va_of(1))->owner);
}

/* What can be handed out was made here, whoever else is there. */
static void test_cannot_be_imported(void **state)
{
	struct lien_reread *reread;

	(void)state;
	one_job();
	TELL(LIEN_EVENT_PROCESS, PID + 1, .process = {.complete = 0, .comm = "late"});
	truth.slot[1] = (struct slot){PIECE, 0x11, 0, {3, 0}};
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	assert_ptr_equal(allocation_at(PID, va_of(1))->owner, process(PID));
}

/* A mapping that goes is no end of what others still import. */
static void test_imports_stay(void **state)
{
	struct lien_reread *reread;
	uint64_t id;

	(void)state;
	one_job();
	id = allocation_at(PID, va_of(0))->id;
	export(PID, 0x10, 5);
	started(PID + 1);
	imported_buffer(PID + 1, 0x20, 5, VA, PIECE);
	truth.slot[0].bytes = 0;
	reread = read_all(NULL);
	repair(reread);
	drop(reread);
	assert_null(mapping_at(PID, va_of(0)));
	assert_null(handle_of(PID, 0x10));
	assert_int_equal(allocation_at(PID + 1, VA)->id, id);
	assert_nothing_odd();
}

static void test_reread_event(void **state)
{
	(void)state;
	one_job();
	TELL(LIEN_EVENT_LOST, PID, .lost = {3});
	process(PID)->incomplete |= LIEN_INCOMPLETE_ODD | LIEN_INCOMPLETE_ARGS;
	TELL(LIEN_EVENT_REREAD, PID, .reread = {.doubts = ~0u});
	assert_int_equal(process(PID)->incomplete, LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_CARDS);
}

/* What cuMemCreate did not make is no memory, and may be the process's alone. */
static void test_objects(void **state)
{
	struct lien_wire_found object = {
		.va = VA, .bytes = ROOM, .handle = 9, .kind = LIEN_WIRE_AREA, .handle_types = 1};
	struct lien_reread *reread;

	(void)state;
	reread = calloc(1, sizeof(*reread));
	lien_reread_found(reread, &object, 1);
	assert_true(reread->objects);
	assert_false(reread->own_objects);
	object.handle_types = 0;
	lien_reread_found(reread, &object, 1);
	assert_true(reread->own_objects);
	drop(reread);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_objects),
		TEST(test_random),
		TEST(test_seen_once),
		TEST(test_changed_again),
		TEST(test_mapped_without_references),
		TEST(test_pending_touches),
		TEST(test_offloaded),
		TEST(test_found_stays),
		TEST(test_handle_given_again),
		TEST(test_found_aliases),
		TEST(test_may_be_imported),
		TEST(test_others_incomplete),
		TEST(test_cannot_be_imported),
		TEST(test_imports_stay),
		TEST(test_reread_event),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
