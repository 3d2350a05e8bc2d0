// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/maps.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* The kernel copies whole buckets; -ENOSPC: the next one has more entries than there is room for.
 */
#define ENTRIES 64

struct walk {
	const struct bpf_map *map;
	unsigned char *keys, *values;
	uint32_t room;
	uint32_t at; /* the kernel's position: a bucket */
	bool begun;
};

static int make_room(struct walk *walk, uint32_t room)
{
	unsigned char *keys = realloc(walk->keys, (size_t)room * bpf_map__key_size(walk->map));
	unsigned char *values = NULL;

	if (keys)
		walk->keys = keys;
	values = realloc(walk->values, (size_t)room * bpf_map__value_size(walk->map));
	if (values)
		walk->values = values;
	if (!keys || !values)
		return -ENOMEM;
	walk->room = room;
	return 0;
}

/* Reads some entries; returns 1 after the last ones. */
static int read_some(struct walk *walk, uint32_t *count)
{
	uint32_t all = bpf_map__max_entries(walk->map);
	int err;

	do {
		*count = walk->room;
		err = bpf_map_lookup_batch(bpf_map__fd(walk->map), walk->begun ? &walk->at : NULL,
			&walk->at, walk->keys, walk->values, count, NULL);
		if (err == -ENOSPC)
			err = walk->room < all ? make_room(walk, 2 * walk->room) : -EFBIG;
		else
			break;
	} while (!err);
	walk->begun = true;
	return err == -ENOENT ? 1 : err;
}

int lien_map_each(const struct bpf_map *map, lien_map_fn *fn, void *context)
{
	size_t key_size = bpf_map__key_size(map), value_size = bpf_map__value_size(map);
	struct walk walk = {.map = map};
	int result = 0, end;
	uint32_t count, i;

	end = make_room(&walk, ENTRIES);
	while (!end && !result) {
		end = read_some(&walk, &count);
		for (i = 0; end >= 0 && i < count && !result; i++)
			result =
				fn(context, walk.keys + i * key_size, walk.values + i * value_size);
	}
	free(walk.keys);
	free(walk.values);
	return result ? result : end < 0 ? end : 0;
}

/* --- iterators -------------------------------------------------------------------------------- */

#define BATCH 256 /* records per read */

static int read_all(int fd, size_t size, void **records, unsigned *count)
{
	ssize_t n;
	char *more;

	do {
		more = realloc(*records, (*count + BATCH) * size);
		if (!more)
			return -ENOMEM;
		*records = more;
		n = read(fd, more + *count * size, BATCH * size);
		if (n > 0)
			*count += n / size;
		/* EAGAIN: the kernel passed many entries without a record. */
	} while (n > 0 || (n < 0 && errno == EAGAIN));
	return n < 0 ? -errno : 0;
}

int lien_iterator_read(
	const struct bpf_link *iterator, size_t size, void **records, unsigned *count)
{
	int fd, err;

	*records = NULL;
	*count = 0;
	fd = bpf_iter_create(bpf_link__fd(iterator));
	if (fd < 0)
		return fd;
	err = read_all(fd, size, records, count);
	close(fd);
	if (err || !*count) {
		free(*records);
		*records = NULL;
		*count = 0;
	}
	return err;
}
