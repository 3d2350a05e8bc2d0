// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <control/memory/items.h>

#define PIECE (2ull << 20)

static struct lien_items items;

static int setup(void **state)
{
	(void)state;
	memset(&items, 0, sizeof(items));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(items.item);
	return 0;
}

/* The first mapping of an allocation that has `mappings`. */
static struct lien_wire_item first(uint64_t token, unsigned mappings)
{
	return (struct lien_wire_item){
		.token = token,
		.va = token << 24,
		.bytes = PIECE,
		.allocation_bytes = PIECE,
		.flags = LIEN_WIRE_OWNED,
		.mappings = mappings,
	};
}

static void add(struct lien_wire_item wire)
{
	assert_int_equal(lien_items_add(&items, &wire, 1, 0), 0);
}

/* All mappings of an allocation, the last one first. */
static void add_all(uint64_t token, unsigned mappings)
{
	struct lien_wire_item wire = first(token, mappings);

	for (wire.index = mappings; wire.index-- > 0;)
		add(wire);
}

static void seal(void)
{
	assert_int_equal(lien_items_seal(&items), 0);
}

static void set_state(uint64_t token, enum lien_item_state state)
{
	struct lien_item *item = lien_items_find(&items, token);

	assert_non_null(item);
	item->state = state;
}

static void test_order(void **state)
{
	struct lien_item *item = NULL;
	uint64_t token = 0;

	(void)state;
	assert_int_equal(lien_items_seal(&items), 0);
	assert_null(lien_items_next(&items, NULL));
	assert_null(lien_items_find(&items, 1));
	assert_false(lien_items_any(&items, ~0u));
	add_all(3, 2);
	add_all(1, 1);
	add_all(2, 4);
	seal();
	assert_int_equal(items.count, 7);
	while ((item = lien_items_next(&items, item))) {
		assert_int_equal(item->wire.token, ++token);
		assert_int_equal(item->wire.index, 0);
		for (unsigned i = 0; i < item->wire.mappings; i++) {
			assert_int_equal(item[i].wire.token, token);
			assert_int_equal(item[i].wire.index, i);
		}
		assert_ptr_equal(lien_items_find(&items, token), item);
	}
	assert_int_equal(token, 3);
	assert_null(lien_items_find(&items, 0));
	assert_null(lien_items_find(&items, 4));
}

static void test_imports(void **state)
{
	struct lien_wire_item wire = first(5, 2);

	(void)state;
	wire.flags = LIEN_WIRE_IMPORTED;
	wire.bytes = PIECE / 2; /* an import need not map all of it */
	add(wire);
	wire.index = 1;
	add(wire);
	wire = first(6, 1);
	wire.flags |= LIEN_WIRE_SHARED;
	wire.places = LIEN_WIRE_PLACES;
	add(wire);
	wire = first(7, 2);
	add(wire);
	wire.index = 1;
	wire.bytes = PIECE / 2; /* an alias of a part */
	add(wire);
	seal();
}

static void expect_nonsense(void)
{
	assert_int_equal(lien_items_seal(&items), -EINVAL);
	free(items.item);
	memset(&items, 0, sizeof(items));
}

#define NONSENSE(change)                                                                           \
	do {                                                                                       \
		struct lien_wire_item wire = first(5, 2);                                          \
		add_all(4, 1);                                                                     \
		add_all(6, 1);                                                                     \
		wire.index = 1;                                                                    \
		add(wire);                                                                         \
		wire.index = 0;                                                                    \
		change;                                                                            \
		add(wire);                                                                         \
		expect_nonsense();                                                                 \
	} while (0)

/* An allocation whose first mapping is the library's to make. */
static void expect_scratch(unsigned mappings, uint64_t handle, bool sane)
{
	struct lien_wire_item wire = first(5, mappings);

	if (mappings > 1) {
		wire.index = 1;
		add(wire);
	}
	wire.va = wire.index = 0;
	wire.handles = handle != 0;
	wire.handle[0].value = handle;
	add(wire);
	assert_int_equal(lien_items_seal(&items), sane ? 0 : -EINVAL);
	free(items.item);
	memset(&items, 0, sizeof(items));
}

static void test_nonsense(void **state)
{
	(void)state;
	NONSENSE(wire.index = 1);		    /* twice, and none is the first */
	NONSENSE(wire.index = 2);		    /* out of range */
	NONSENSE(wire.mappings = 0);		    /* a walk would not end */
	NONSENSE(wire.mappings = 1);		    /* do not agree */
	NONSENSE(wire.mappings = 3);		    /* one is missing */
	NONSENSE(wire.mappings = ~0u);		    /* many are */
	NONSENSE(wire.token = 7);		    /* all of both are missing */
	NONSENSE(wire.flags = 0);		    /* whose is it? */
	NONSENSE(wire.flags |= LIEN_WIRE_IMPORTED); /* both's? */
	NONSENSE(wire.flags = LIEN_WIRE_IMPORTED);  /* not the same in each */
	NONSENSE(wire.flags |= LIEN_WIRE_SHARED);
	NONSENSE(wire.bytes = 0);
	NONSENSE(wire.bytes = PIECE / 2); /* the first one must map all of it */
	NONSENSE(wire.bytes = 2 * PIECE); /* more than there is */
	NONSENSE(wire.allocation_bytes = PIECE / 2);
	NONSENSE(wire.places = LIEN_WIRE_PLACES + 1);
	NONSENSE(wire.allocation_bytes = wire.bytes = 2 * PIECE); /* not the same in each */
	NONSENSE(wire.handles = LIEN_WIRE_HANDLES + 1);
	NONSENSE(wire.handles = 1; wire.handle[0].references = LIEN_WIRE_REFERENCES_MAX + 1);
	NONSENSE(wire.handles = 2; wire.handle[0].references = wire.handle[1].references = ~0u);
	NONSENSE(wire.va = 0; wire.places = 1); /* it is the library's to choose */
	NONSENSE(wire.va = 0; wire.bytes = PIECE / 2);
	NONSENSE(wire.va = 0; wire.index = 1);
	expect_scratch(1, 0, false); /* by what should it be mapped? */
	expect_scratch(1, 7, true);
	expect_scratch(2, 0, true);
	add_all(5, 2);
	add_all(5, 2);
	expect_nonsense();
	add_all(5, 1);
	add_all(5, 1);
	expect_nonsense();
	add(first(5, 2));
	expect_nonsense();
}

static void test_states(void **state)
{
	(void)state;
	for (unsigned i = 1; i <= 4; i++)
		add_all(i, i);
	seal();
	assert_true(lien_items_any(&items, LIEN_ITEMS_UNTOUCHED));
	assert_false(lien_items_any(&items, ~LIEN_ITEMS_UNTOUCHED));
	set_state(2, LIEN_ITEM_SAVED);
	set_state(3, LIEN_ITEM_AWAY);
	set_state(4, LIEN_ITEM_BACK);
	assert_true(lien_items_any(&items, 1 << LIEN_ITEM_SAVED));
	assert_true(lien_items_any(&items, 1 << LIEN_ITEM_BACK));
	lien_items_forget(&items, 1 << LIEN_ITEM_SAVED, 0);
	assert_int_equal(items.count, 1 + 3 + 4);
	assert_null(lien_items_find(&items, 2));
	assert_int_equal(lien_items_find(&items, 3)->state, LIEN_ITEM_AWAY);
	lien_items_forget(&items, LIEN_ITEMS_UNTOUCHED, 0);
	assert_int_equal(items.count, 3 + 4);
	/* What comes in later stands beside what is away. */
	add_all(1, 2);
	add_all(9, 1);
	seal();
	assert_int_equal(lien_items_find(&items, 3)->state, LIEN_ITEM_AWAY);
	assert_int_equal(lien_items_find(&items, 9)->state, LIEN_ITEM_STAGED);
	lien_items_forget(&items, LIEN_ITEMS_UNTOUCHED, 0);
	assert_int_equal(items.count, 3 + 4);
	lien_items_forget(&items, ~0u, 0);
	assert_int_equal(items.count, 0);
}

static void test_shared(void **state)
{
	static const struct {
		enum lien_item_state state;
		int awaited; /* if others import it */
	} states[] = {{LIEN_ITEM_STAGED, 0}, {LIEN_ITEM_SAVED, 1}, {LIEN_ITEM_AWAY, 0},
		{LIEN_ITEM_EMPTY, 0}, {LIEN_ITEM_FILLING, 0}, {LIEN_ITEM_BACK, 0},
		{LIEN_ITEM_LENT, 1}};
	static const uint32_t flags[] = {LIEN_WIRE_OWNED, LIEN_WIRE_OWNED | LIEN_WIRE_SHARED,
		LIEN_WIRE_IMPORTED, LIEN_WIRE_IMPORTED | LIEN_WIRE_SHARED};
	struct lien_wire_item wire;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		wire = first(1, 1);
		wire.flags = flags[i];
		add(wire);
		seal();
		assert_int_equal(lien_item_shared(lien_items_find(&items, 1)), i == 1);
		for (unsigned j = 0; j < sizeof(states) / sizeof(states[0]); j++) {
			set_state(1, states[j].state);
			assert_int_equal(
				lien_item_awaited(items.item), i == 1 && states[j].awaited);
			assert_int_equal(
				lien_items_any_awaited(&items), i == 1 && states[j].awaited);
		}
		lien_items_forget(&items, ~(1u << LIEN_ITEM_LENT), 0);
		assert_int_equal(items.count, 1); /* it is none of the others */
		lien_items_forget(&items, ~0u, 0);
	}
}

/* A bad list is forgotten, whatever is in it, and nothing else: what is away is known here alone.
 */
static void test_forget_nonsense(void **state)
{
	static const unsigned mappings[] = {0, 1, 2, 3, 4, 5, 6, 100, ~0u};

	(void)state;
	for (unsigned i = 0; i < sizeof(mappings) / sizeof(mappings[0]); i++)
		for (uint64_t token = 1; token <= 9; token += 4) {
			struct lien_wire_item wire = first(token, mappings[i]);

			add_all(4, 2);
			add_all(6, 3);
			seal();
			set_state(4, LIEN_ITEM_AWAY);
			set_state(6, LIEN_ITEM_AWAY);
			add_all(7, 2);
			wire.flags = 0;
			add(wire);
			assert_int_equal(lien_items_seal(&items), -EINVAL);
			lien_items_forget(&items, LIEN_ITEMS_UNTOUCHED, 0);
			assert_int_equal(items.count, 5);
			assert_int_equal(lien_items_find(&items, 4)->state, LIEN_ITEM_AWAY);
			assert_int_equal(lien_items_find(&items, 6)->state, LIEN_ITEM_AWAY);
			assert_int_equal(lien_items_find(&items, 6)[2].wire.index, 2);
			lien_items_forget(&items, ~0u, 0);
			assert_int_equal(items.count, 0);
		}
}

/* What is away cannot be staged. */
static void test_staged_twice(void **state)
{
	(void)state;
	for (unsigned mappings = 1; mappings <= 3; mappings++) {
		add_all(4, 1);
		add_all(5, mappings);
		seal();
		set_state(4, LIEN_ITEM_AWAY);
		set_state(5, LIEN_ITEM_AWAY);
		add_all(3, 1);
		add_all(5, mappings);
		assert_int_equal(lien_items_seal(&items), -EINVAL);
		lien_items_forget(&items, LIEN_ITEMS_UNTOUCHED, 0);
		assert_int_equal(items.count, 1 + mappings);
		assert_int_equal(lien_items_find(&items, 5)->state, LIEN_ITEM_AWAY);
		lien_items_forget(&items, ~0u, 0);
	}
}

/* An agent that dies between two messages of a list leaves it unsealed; its successor asks what is
 * away, and begins anew. */
static void test_unsealed(void **state)
{
	struct lien_item *item = NULL;
	unsigned n = 0;

	(void)state;
	add_all(4, 2);
	seal();
	set_state(4, LIEN_ITEM_AWAY);
	add(first(1, 0));
	add(first(9, 3));
	add(first(2, 2));
	while ((item = lien_items_next(&items, item)) && ++n < 10)
		assert_true(item->wire.token == 4 || item->state != LIEN_ITEM_AWAY);
	assert_true(n < 10);
	assert_true(lien_items_any(&items, 1 << LIEN_ITEM_AWAY));
	lien_items_forget(&items, LIEN_ITEMS_UNTOUCHED, 0);
	assert_int_equal(items.count, 2);
	assert_int_equal(lien_items_find(&items, 4)->state, LIEN_ITEM_AWAY);
}

static void test_many(void **state)
{
	struct lien_wire_item *wire = calloc(10000, sizeof(*wire));
	struct lien_item *item = NULL;
	unsigned n = 0;

	(void)state;
	/* 5,000 allocations with two mappings each, shuffled. */
	for (unsigned i = 0; i < 10000; i++) {
		unsigned at = i * 7919u % 10000;

		wire[at] = first(1 + i / 2, 2);
		wire[at].index = i % 2;
	}
	for (unsigned i = 0; i < 10000; i += 100)
		assert_int_equal(lien_items_add(&items, wire + i, 100, 0), 0);
	free(wire);
	seal();
	while ((item = lien_items_next(&items, item))) {
		assert_int_equal(item->wire.token, ++n);
		item->state = n % 4;
	}
	assert_int_equal(n, 5000);
	for (unsigned i = 1; i <= 5000; i++)
		assert_int_equal(lien_items_find(&items, i)->wire.token, i);
	lien_items_forget(&items, LIEN_ITEMS_UNTOUCHED, 0);
	assert_int_equal(items.count, 5000);
	for (item = NULL, n = 0; (item = lien_items_next(&items, item)); n++)
		assert_true(item->state >= LIEN_ITEM_AWAY);
	assert_int_equal(n, 2500);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_order),
		TEST(test_imports),
		TEST(test_nonsense),
		TEST(test_states),
		TEST(test_shared),
		TEST(test_forget_nonsense),
		TEST(test_staged_twice),
		TEST(test_unsealed),
		TEST(test_many),
	};

	return cmocka_run_group_tests_name("items", tests, NULL, NULL);
}
