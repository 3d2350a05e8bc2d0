// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "agent/graph/internal.h"

#define OBJECTS 5000 /* of several chunks */

struct object {
	void *self;
	uint64_t number;
	char rest[88];
};

static struct object *objects[OBJECTS];

static void get(struct lien_slab *slab, unsigned n)
{
	static const struct object zeroes;

	objects[n] = lien_slab_get(slab);
	assert_non_null(objects[n]);
	assert_memory_equal(objects[n], &zeroes, sizeof(zeroes));
	memset(objects[n], 0xff, sizeof(zeroes));
	objects[n]->self = objects[n];
	objects[n]->number = n;
}

/* Every object is zeroed when it is given out, the second time too, and nobody else's. */
static void test_objects(void **state)
{
	struct lien_slab slab;
	unsigned n;

	(void)state;
	lien_slab_init(&slab, sizeof(struct object));
	for (n = 0; n < OBJECTS; n++)
		get(&slab, n);
	for (n = 0; n < OBJECTS; n += 2)
		lien_slab_put(&slab, objects[n]);
	for (n = 0; n < OBJECTS; n += 2)
		get(&slab, n);
	for (n = 0; n < OBJECTS; n++) {
		assert_ptr_equal(objects[n]->self, objects[n]);
		assert_int_equal(objects[n]->number, n);
		assert_int_equal((uintptr_t)objects[n] % sizeof(void *), 0);
	}
	for (n = 0; n < OBJECTS; n++)
		lien_slab_put(&slab, objects[n]);
	lien_slab_clear(&slab);
	get(&slab, 0); /* it can be used again */
	lien_slab_put(&slab, objects[0]);
	lien_slab_clear(&slab);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_objects),
	};

	return cmocka_run_group_tests_name("slab", tests, NULL, NULL);
}
