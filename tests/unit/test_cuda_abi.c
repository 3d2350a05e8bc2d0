/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Is our cuda_abi.h what the real cuda.h says? Built only where the real one is installed. Numbers
 * and layouts are compared at run time. Prototypes are compared by the compiler: the build cuts
 * them out of our header into cuda_abi_prototypes.h, and a difference is a conflicting declaration.
 */
#define __CUDA_API_VERSION_INTERNAL /* declares the older versions and the _ptsz variants too */
#include <cuda.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "cuda_abi_prototypes.h"

#define FACTS	    real_facts
#define FACTS_COUNT real_count
#include "cuda_abi_facts.h"

static void test_facts(void **state)
{
	unsigned int wrong = 0;

	(void)state;
	assert_int_equal(our_count, real_count);
	for (unsigned int i = 0; i < our_count; i++) {
		assert_string_equal(our_facts[i].name, real_facts[i].name);
		if (our_facts[i].value == real_facts[i].value)
			continue;
		print_error("%s: ours %llu, cuda.h %llu\n", our_facts[i].name, our_facts[i].value,
			real_facts[i].value);
		wrong++;
	}
	assert_int_equal(wrong, 0);
}

static int listed(const char *name)
{
	for (unsigned int i = 0; i < our_count; i++) {
		if (!strcmp(our_facts[i].name, name))
			return 1;
	}
	return 0;
}

/* Both ways: what is listed is in the header (the compiler sees to it) and was found there. */
static unsigned int count_values(void)
{
	unsigned int count = 0;

	/* CUDA_MEMCPY2D and the like are types. */
	for (unsigned int i = 0; i < our_count; i++)
		count += (!strncmp(our_facts[i].name, "CU_", 3) ||
				 !strncmp(our_facts[i].name, "CUDA_", 5)) &&
			 strncmp(our_facts[i].name, "CUDA_MEMCPY", 11);
	return count;
}

/* An enumerator or macro that was added to our header and not to the list is not compared. */
static void test_list_complete(void **state)
{
	FILE *header = fopen(LIEN_CUDA_ABI_PATH, "re");
	unsigned int found = 0, missing = 0;
	char line[256], name[128];

	(void)state;
	assert_non_null(header);
	while (fgets(line, sizeof(line), header)) {
		if (sscanf(line, "\tCU%100[A-Z0-9_] =", name) != 1 &&
			sscanf(line, "\tX(CU%100[A-Z0-9_],", name) != 1 &&
			sscanf(line, "#define CU%100[A-Z0-9_] ", name) != 1)
			continue;
		memmove(name + 2, name, strlen(name) + 1);
		memcpy(name, "CU", 2);
		found++;
		if (listed(name))
			continue;
		print_error("%s is not in cuda_abi_facts.h\n", name);
		missing++;
	}
	fclose(header);
	assert_int_equal(missing, 0);
	assert_int_equal(found, count_values());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_facts),
		cmocka_unit_test(test_list_complete),
	};

	return cmocka_run_group_tests_name("cuda abi", tests, NULL, NULL);
}
