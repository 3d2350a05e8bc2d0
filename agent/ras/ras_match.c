// SPDX-License-Identifier: BSD-2-Clause
#include "agent/ras/ras_match.h"

#include <string.h>

static uint64_t word(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

static int32_t half(const uint8_t *at)
{
	int32_t value;

	memcpy(&value, at, sizeof(value));
	return value;
}

size_t lien_ras_structure(const void *memory, size_t size)
{
	const uint8_t *bytes = memory;
	uint64_t first;
	size_t at;

	if (size < 2 * sizeof(first))
		return 0;
	first = word(bytes);
	if (!first)
		return 0;
	for (at = sizeof(first); at + sizeof(first) <= size; at += sizeof(first))
		if (word(bytes + at) == first)
			return at + sizeof(first);
	return 0;
}

/* Do the values after the hash match the row's rank and size? */
static bool confirmed(const struct lien_ras_row *row, int32_t rank, int32_t nranks)
{
	return row->nranks > 0 && nranks == row->nranks && rank >= 0 && rank < nranks &&
	       (row->rank < 0 || row->rank == rank);
}

/* The rows that were found; with a second one it is unclear which is meant. */
struct found {
	int row; /* -1: none so far */
	int32_t rank;
	bool several;
};

static void note(struct found *found, int row, int32_t rank)
{
	found->several |= found->row >= 0 && found->row != row;
	found->row = row;
	found->rank = rank;
}

int lien_ras_match(const void *structure, size_t size, const struct lien_ras_row *row,
	unsigned count, int32_t *rank)
{
	struct found sure = {-1, -1, false}, perhaps = {-1, -1, false}, *best;
	const uint8_t *bytes = structure;
	int32_t its_rank, its_size;
	unsigned i;
	size_t at;

	for (at = 0; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t)) {
		for (i = 0; i < count && row[i].hash != word(bytes + at); i++)
			;
		if (i == count || !row[i].hash)
			continue;
		its_rank = size - at >= 16 ? half(bytes + at + 8) : -1;
		its_size = size - at >= 16 ? half(bytes + at + 12) : -1;
		for (; i < count; i++) {
			if (row[i].hash != word(bytes + at))
				continue;
			if (confirmed(&row[i], its_rank, its_size))
				note(&sure, i, its_rank);
			else if (row[i].sure)
				note(&perhaps, i, row[i].rank);
		}
	}
	best = sure.row >= 0 ? &sure : &perhaps;
	*rank = best->rank;
	return best->several ? -1 : best->row;
}

void lien_ras_match_once(int *from, unsigned addresses)
{
	unsigned i, j;
	bool twice;

	for (i = 0; i < addresses; i++) {
		twice = false;
		for (j = i + 1; from[i] >= 0 && j < addresses; j++)
			if (from[j] == from[i]) {
				from[j] = -1;
				twice = true;
			}
		if (twice)
			from[i] = -1;
	}
}
