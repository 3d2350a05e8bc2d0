/* SPDX-License-Identifier: BSD-2-Clause */
/* 64-bit FNV-1a, to tell one version of something from another. */
#ifndef LIEN_HASH_H
#define LIEN_HASH_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_HASH_START 0xcbf29ce484222325ull

/* Extends a hash with these bytes. */
static inline uint64_t lien_hash(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *byte = data;

	while (size--)
		hash = (hash ^ *byte++) * 0x100000001b3ull;
	return hash;
}

#endif
