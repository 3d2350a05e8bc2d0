// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/replay/image.h"

int lien_replay_image_make(const struct lien_script *script, size_t process, int timeout_ms,
	struct lien_replay_image **out, int *fd)
{
	const struct lien_replay_process *p = script->processes[process];
	size_t allocations = script->allocation_count * sizeof(*script->allocations);
	size_t ops = p->count * sizeof(*p->ops);
	struct lien_replay_image *image;
	size_t bytes = sizeof(*image) + allocations + ops;
	int err;

	*fd = memfd_create("lien-replay", MFD_CLOEXEC);
	if (*fd < 0)
		return -errno;
	if (ftruncate(*fd, bytes))
		goto fail;
	image = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (image == MAP_FAILED)
		goto fail;
	image->bytes = bytes;
	image->allocation_count = script->allocation_count;
	image->op_count = p->count;
	image->devices = p->devices;
	image->home = p->home;
	image->index = process;
	image->nccl = p->nccl;
	image->timeout_ms = timeout_ms;
	if (allocations)
		memcpy(image + 1, script->allocations, allocations);
	if (ops)
		memcpy((char *)(image + 1) + allocations, p->ops, ops);
	*out = image;
	return 0;
fail:
	err = -errno;
	close(*fd);
	*fd = -1;
	return err;
}

int lien_replay_image_open(int fd, struct lien_replay_image **out)
{
	struct stat st;
	void *image;

	if (fstat(fd, &st))
		return -errno;
	if ((size_t)st.st_size < sizeof(**out))
		return -EINVAL;
	image = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (image == MAP_FAILED)
		return -errno;
	*out = image;
	return 0;
}

void lien_replay_image_close(struct lien_replay_image *image)
{
	if (image)
		munmap(image, image->bytes);
}

const struct lien_replay_allocation *lien_replay_image_allocations(
	const struct lien_replay_image *image)
{
	return (const struct lien_replay_allocation *)(image + 1);
}

const struct lien_replay_op *lien_replay_image_ops(const struct lien_replay_image *image)
{
	return (const struct lien_replay_op *)(lien_replay_image_allocations(image) +
					       image->allocation_count);
}
