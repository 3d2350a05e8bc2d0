// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/iterator.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

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
