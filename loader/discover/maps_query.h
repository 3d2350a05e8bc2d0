/* SPDX-License-Identifier: BSD-2-Clause */
/* The executable mappings of files, without a line for each other mapping: a process may have tens
 * of thousands of those. */
#ifndef LIEN_MAPS_QUERY_H
#define LIEN_MAPS_QUERY_H

#include <stddef.h>
#include <sys/types.h>

/*
 * fd: an open /proc/PID/maps. Makes lines as that file has them, at most max - 1 bytes; the caller
 * frees the text, also after an error. Returns their length; -ENOTTY: this kernel cannot (before
 * 6.11); -ESRCH: the process has no memory any more; -E2BIG, -ENOMEM, or another -errno.
 */
ssize_t lien_maps_query(int fd, char **text, size_t max);

#endif
