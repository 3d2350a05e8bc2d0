// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/images.h"

#include <stdlib.h>
#include <string.h>

static int by_pid(const void *a, const void *b)
{
	const struct lien_probe_image *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

int lien_images_read(struct lien_images *images, const struct bpf_link *iterator)
{
	void *found;
	int err;

	lien_images_free(images);
	err = lien_iterator_read(iterator, sizeof(images->image[0]), &found, &images->count);
	images->image = found;
	if (images->count)
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
