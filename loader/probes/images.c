// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/images.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.skel.h"

static struct files_bpf *load(void)
{
	struct files_bpf *skel = files_bpf__open();
	struct stat pidns;

	if (!skel)
		return NULL;
	bpf_program__set_autoload(skel->progs.lien_files, false);
	bpf_map__set_max_entries(skel->maps.shares, 1); /* of the other iterator */
	if (!stat("/proc/self/ns/pid", &pidns)) {
		skel->rodata->lien_pidns = pidns.st_ino;
		skel->rodata->lien_exec_known = 1;
		if (!files_bpf__load(skel))
			return skel;
	}
	files_bpf__destroy(skel);
	return NULL;
}

static int by_pid(const void *a, const void *b)
{
	const struct lien_probe_image *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

/* How many more there are room for, or -ENOMEM. */
static int make_room(struct lien_images *images, unsigned more)
{
	struct lien_probe_image *grown =
		realloc(images->image, (images->count + more) * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	images->image = grown;
	return more;
}

#define BATCH 512

static int read_all(int fd, struct lien_images *images)
{
	ssize_t size;

	do {
		if (make_room(images, BATCH) < 0)
			return -ENOMEM;
		size = read(fd, images->image + images->count, BATCH * sizeof(images->image[0]));
		if (size > 0)
			images->count += size / sizeof(images->image[0]);
	} while (size > 0 || (size < 0 && errno == EAGAIN));
	return size < 0 ? -errno : 0;
}

int lien_images_read(struct lien_images *images)
{
	struct files_bpf *skel = load();
	struct bpf_link *link;
	int fd, err;

	lien_images_free(images);
	if (!skel)
		return -EOPNOTSUPP;
	link = bpf_program__attach_iter(skel->progs.lien_images, NULL);
	fd = link ? bpf_iter_create(bpf_link__fd(link)) : -1;
	err = fd < 0 ? -EOPNOTSUPP : read_all(fd, images);
	if (fd >= 0)
		close(fd);
	bpf_link__destroy(link);
	files_bpf__destroy(skel);
	if (err)
		lien_images_free(images);
	else
		qsort(images->image, images->count, sizeof(images->image[0]), by_pid);
	return err;
}

const struct lien_probe_image *lien_images_of(const struct lien_images *images, unsigned pid)
{
	struct lien_probe_image key = {.pid = pid};

	return images->count ? bsearch(&key, images->image, images->count, sizeof(key), by_pid)
			     : NULL;
}

unsigned long long lien_images_find(const struct lien_images *images, unsigned pid)
{
	const struct lien_probe_image *found = lien_images_of(images, pid);

	return found ? found->start : 0;
}

void lien_images_free(struct lien_images *images)
{
	free(images->image);
	memset(images, 0, sizeof(*images));
}
