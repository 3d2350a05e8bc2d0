/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * BPF iterators: the kernel is asked for all open files, or all processes, and tells those that
 * matter. Loading one takes 30 ms (measured on 6.18), reading it less than one: so they are loaded
 * once and read whenever somebody asks. A copy of the agent may read them, too.
 */
#ifndef LIEN_ITERATOR_H
#define LIEN_ITERATOR_H

#include <stddef.h>

struct files_bpf;
struct bpf_link;

/* All zero: it is not loaded, and reading it is an error. */
struct lien_iterator {
	struct files_bpf *object;
	struct bpf_link *link;
};

/* Open files that are exported memory; shares_fd: the map of the exports. 0; -EOPNOTSUPP: this
 * kernel has no iterators, or does not let us. */
int lien_iterator_load_files(struct lien_iterator *iterator, int shares_fd);
/* Processes. As above. */
int lien_iterator_load_images(struct lien_iterator *iterator);
/* Not loaded is allowed. */
void lien_iterator_free(struct lien_iterator *iterator);

/* All records, of `size` bytes each; *records is for the caller to free(), NULL at an error or when
 * there are none. 0, -errno. */
int lien_iterator_read(
	const struct lien_iterator *iterator, size_t size, void **records, unsigned *count);

#endif
