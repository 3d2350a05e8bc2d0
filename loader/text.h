/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_LOADER_TEXT_H
#define LIEN_LOADER_TEXT_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Reads the beginning of a small file of the kernel's as text, without its last newline. Returns 0,
 * or -errno, and the text is empty. */
static inline int lien_text_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), err;
	ssize_t n;

	*text = '\0';
	if (fd < 0)
		return -errno;
	n = read(fd, text, size - 1);
	err = n < 0 ? -errno : 0;
	close(fd);
	n -= n > 0 && text[n - 1] == '\n';
	text[n < 0 ? 0 : n] = '\0';
	return err;
}

#endif
