/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The program that each process runs, as counted by the kernel (LIEN_START() of
 * include/lien/probe.h), and its account. Read by an iterator over all processes.
 */
#ifndef LIEN_IMAGES_H
#define LIEN_IMAGES_H

#include <lien/probe.h>

#include "loader/probes/iterator.h"

struct lien_images {
	struct lien_probe_image *image; /* sorted by pid */
	unsigned count;
};

/* Replaces the contents of *images, which must be zeroed at first. Returns 0 or -errno. */
int lien_images_read(struct lien_images *images, const struct bpf_link *iterator);
/* Returns NULL if there was no such process. */
const struct lien_probe_image *lien_images_of(const struct lien_images *images, unsigned pid);
/* Returns its .start, or 0 if there was no such process. */
unsigned long long lien_images_find(const struct lien_images *images, unsigned pid);
void lien_images_free(struct lien_images *images);

#endif
