/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a replay writes into memory: 64-bit words that depend on the allocation, the word's place in
 * it, and the number of the change (0 at first), so that neither another allocation's bytes, nor
 * bytes at another place, nor old ones pass for right.
 */
#ifndef LIEN_REPLAY_PATTERN_H
#define LIEN_REPLAY_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* Names the pattern of one allocation. */
uint64_t lien_replay_pattern(uint64_t allocation, uint64_t change);

/* The word at a byte offset (a multiple of 8) of the allocation. */
uint64_t lien_replay_pattern_word(uint64_t pattern, uint64_t offset);

/* Writes what belongs at [offset, offset + bytes); offset is a multiple of 8. */
void lien_replay_pattern_fill(void *buffer, uint64_t pattern, uint64_t offset, size_t bytes);

/* Compares. Returns bytes when all is right, else where in the buffer the first wrong word (or the
 * rest of one, at the end) begins. */
size_t lien_replay_pattern_check(
	const void *buffer, uint64_t pattern, uint64_t offset, size_t bytes);

#endif
