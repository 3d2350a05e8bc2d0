// SPDX-License-Identifier: BSD-2-Clause
#include <string.h>

#include "tools/replay/pattern.h"

/* Blocks of a constant length, which -O2 turns into vector code. */
#define BLOCK_WORDS 512
#define BLOCK_BYTES (BLOCK_WORDS * sizeof(uint64_t))

/* 2^64 divided by the golden ratio: no two words of an allocation are the same. */
#define STEP 0x9e3779b97f4a7c15ull

uint64_t lien_replay_pattern(uint64_t allocation, uint64_t change)
{
	uint64_t x =
		(allocation + 1) * 0xbf58476d1ce4e5b9ull ^ (change + 1) * 0x94d049bb133111ebull;

	x ^= x >> 31;
	x *= 0xd6e8feb86659fd93ull;
	return x ^ x >> 32;
}

static inline uint64_t word(uint64_t x)
{
	return x ^ x >> 29;
}

uint64_t lien_replay_pattern_word(uint64_t pattern, uint64_t offset)
{
	return word(pattern + offset / sizeof(uint64_t) * STEP);
}

static void make_block(uint64_t *words, uint64_t first)
{
	uint64_t i;

	for (i = 0; i < BLOCK_WORDS; i++) {
		words[i] = word(first);
		first += STEP;
	}
}

void lien_replay_pattern_fill(void *buffer, uint64_t pattern, uint64_t offset, size_t bytes)
{
	uint64_t first = pattern + offset / sizeof(uint64_t) * STEP;
	uint64_t block[BLOCK_WORDS];
	size_t at, n;

	for (at = 0; at < bytes; at += n) {
		n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
		make_block(block, first);
		memcpy((char *)buffer + at, block, n);
		first += BLOCK_WORDS * STEP;
	}
}

size_t lien_replay_pattern_check(
	const void *buffer, uint64_t pattern, uint64_t offset, size_t bytes)
{
	uint64_t first = pattern + offset / sizeof(uint64_t) * STEP;
	uint64_t block[BLOCK_WORDS];
	const char *have = buffer;
	size_t at, n, i, piece;

	for (at = 0; at < bytes; at += n) {
		n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
		make_block(block, first);
		first += BLOCK_WORDS * STEP;
		if (!memcmp(have + at, block, n))
			continue;
		for (i = 0; i < n; i += piece) {
			piece = n - i < sizeof(uint64_t) ? n - i : sizeof(uint64_t);
			if (memcmp(have + at + i, (char *)block + i, piece))
				return at + i;
		}
	}
	return bytes;
}
