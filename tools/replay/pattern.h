/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Data that a replay writes into memory: 64-bit words that depend on the allocation, the word's
 * offset in it, and the number of the change (0 at first). So bytes of another allocation, from
 * another offset, or from before a change are detected.
 */
#ifndef LIEN_REPLAY_PATTERN_H
#define LIEN_REPLAY_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* Returns the pattern of one allocation. */
uint64_t lien_replay_pattern(uint64_t allocation, uint64_t change);

/* Returns the word at a byte offset (a multiple of 8) of the allocation. */
uint64_t lien_replay_pattern_word(uint64_t pattern, uint64_t offset);

/* Writes the pattern for [offset, offset + bytes); offset is a multiple of 8. */
void lien_replay_pattern_fill(void *buffer, uint64_t pattern, uint64_t offset, size_t bytes);

/* Compares. Returns bytes if all is right, otherwise the place in the buffer where the first wrong
 * word (or partial word, at the end) begins. */
size_t lien_replay_pattern_check(
	const void *buffer, uint64_t pattern, uint64_t offset, size_t bytes);

#endif
