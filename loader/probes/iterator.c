// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/iterator.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.skel.h"

#define BATCH 256 /* records per read */

static int open_object(struct lien_iterator *iterator)
{
	struct files_bpf *object;
	struct stat pidns;

	memset(iterator, 0, sizeof(*iterator));
	if (stat("/proc/self/ns/pid", &pidns))
		return -EOPNOTSUPP;
	object = files_bpf__open();
	if (!object)
		return -EOPNOTSUPP;
	object->rodata->lien_pidns = pidns.st_ino;
	bpf_program__set_autoload(object->progs.lien_files, false);
	bpf_program__set_autoload(object->progs.lien_images, false);
	iterator->object = object;
	return 0;
}

static int load(struct lien_iterator *iterator, struct bpf_program *program)
{
	bpf_program__set_autoload(program, true);
	if (!files_bpf__load(iterator->object))
		iterator->link = bpf_program__attach_iter(program, NULL);
	if (iterator->link)
		return 0;
	lien_iterator_free(iterator);
	return -EOPNOTSUPP;
}

int lien_iterator_load_files(struct lien_iterator *iterator, int shares_fd)
{
	int err = open_object(iterator);

	if (err)
		return err;
	if (bpf_map__reuse_fd(iterator->object->maps.shares, shares_fd)) {
		lien_iterator_free(iterator);
		return -EOPNOTSUPP;
	}
	return load(iterator, iterator->object->progs.lien_files);
}

int lien_iterator_load_images(struct lien_iterator *iterator)
{
	int err = open_object(iterator);

	if (err)
		return err;
	bpf_map__set_max_entries(iterator->object->maps.shares, 1); /* the other iterator's */
	iterator->object->rodata->lien_exec_known = 1;
	return load(iterator, iterator->object->progs.lien_images);
}

void lien_iterator_free(struct lien_iterator *iterator)
{
	bpf_link__destroy(iterator->link);
	files_bpf__destroy(iterator->object);
	memset(iterator, 0, sizeof(*iterator));
}

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
	const struct lien_iterator *iterator, size_t size, void **records, unsigned *count)
{
	int fd, err;

	*records = NULL;
	*count = 0;
	if (!iterator->link)
		return -EOPNOTSUPP;
	fd = bpf_iter_create(bpf_link__fd(iterator->link));
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
