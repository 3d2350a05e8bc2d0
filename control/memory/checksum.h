/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * XXH64 (xxhash.com, seed 0). Detects damage, but not deliberate tampering. One thread computes it
 * faster than it copies memory, without instructions that some processors lack.
 */
#ifndef LIEN_CONTROL_CHECKSUM_H
#define LIEN_CONTROL_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

struct lien_checksum {
	uint64_t lane[4];
	uint64_t bytes;
};

void lien_checksum_begin(struct lien_checksum *sum);
/* Adds the next piece; all but the last must be multiples of 32 bytes. Returns the checksum up to
 * its end. */
uint64_t lien_checksum_add(struct lien_checksum *sum, const void *data, size_t size);

#endif
