/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which program each process runs, as the kernel counts: LIEN_START() of include/lien/probe.h; and
 * for whom. Read by an iterator over all processes.
 */
#ifndef LIEN_IMAGES_H
#define LIEN_IMAGES_H

#include <lien/probe.h>

#include "loader/probes/iterator.h"

struct lien_images {
	struct lien_probe_image *image; /* by pid */
	unsigned count;
};

/* Replaces what *images has, which is zero at first. 0; -EOPNOTSUPP: the iterator is not loaded;
 * -errno. */
int lien_images_read(struct lien_images *images, const struct lien_iterator *iterator);
/* NULL: there was no such process. */
const struct lien_probe_image *lien_images_of(const struct lien_images *images, unsigned pid);
/* Its .start; 0: there was no such process. */
unsigned long long lien_images_find(const struct lien_images *images, unsigned pid);
void lien_images_free(struct lien_images *images);

#endif
