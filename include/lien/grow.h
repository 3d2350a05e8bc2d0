/* SPDX-License-Identifier: BSD-2-Clause */
/* Arrays that grow by doubling. */
#ifndef LIEN_GROW_H
#define LIEN_GROW_H

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/*
 * Makes room for `count` elements. `array`: the address of a pointer to elements of `size` bytes;
 * NULL and a *room of 0 are an empty one. Returns 0, or -ENOMEM with the array as it was.
 */
static inline int lien_array_reserve(void *array, unsigned count, unsigned *room, size_t size)
{
	unsigned more = *room ? *room : 16;
	void *old, *grown;

	if (count <= *room)
		return 0;
	while (more < count && more <= UINT_MAX / 2)
		more *= 2;
	memcpy(&old, array, sizeof(old));
	grown = more >= count ? reallocarray(old, more, size) : NULL;
	if (!grown)
		return -ENOMEM;
	memcpy(array, &grown, sizeof(grown));
	*room = more;
	return 0;
}

/* Makes room for one more element after the first `count`. */
static inline int lien_array_grow(void *array, unsigned count, unsigned *room, size_t size)
{
	return count < UINT_MAX ? lien_array_reserve(array, count + 1, room, size) : -ENOMEM;
}

#endif
