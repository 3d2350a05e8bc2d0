/* SPDX-License-Identifier: BSD-2-Clause */
/* Arrays that grow by doubling. */
#ifndef LIEN_ARRAY_H
#define LIEN_ARRAY_H

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/*
 * Makes room for one more element after the first `count`. `array`: the address of a pointer to
 * elements of `size` bytes; NULL and a *room of 0 are an empty one. Returns 0, or -ENOMEM with the
 * array as it was.
 */
static inline int lien_array_grow(void *array, unsigned count, unsigned *room, size_t size)
{
	const unsigned more = *room ? 2 * *room : 16;
	void *old, *grown;

	if (count < *room)
		return 0;
	memcpy(&old, array, sizeof(old));
	grown = *room <= UINT_MAX / 2 ? reallocarray(old, more, size) : NULL;
	if (!grown)
		return -ENOMEM;
	memcpy(array, &grown, sizeof(grown));
	*room = more;
	return 0;
}

#endif
