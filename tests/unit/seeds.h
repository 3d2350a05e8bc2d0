/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the random tests draw from. LIEN_SEED is the first seed (1): the same in every `make check`,
 * another one in each `make check-long`. LIEN_SEQUENCES says how many sequences there are, each
 * with the seed after the one before: LIEN_SEED=N LIEN_SEQUENCES=1 repeats sequence N alone.
 */
#ifndef LIEN_TEST_SEEDS_H
#define LIEN_TEST_SEEDS_H

#include <stdlib.h>

static inline unsigned lien_test_number(const char *name, unsigned otherwise)
{
	const char *value = getenv(name);

	return value && *value ? strtoul(value, NULL, 0) : otherwise;
}

static inline unsigned lien_test_seed(void)
{
	return lien_test_number("LIEN_SEED", 1);
}

static inline unsigned lien_test_sequences(unsigned otherwise)
{
	return lien_test_number("LIEN_SEQUENCES", otherwise);
}

#endif
