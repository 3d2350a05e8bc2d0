// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/environ.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/discover/untrusted.h"

/* A process can claim that its environment is as long as its memory. */
#define ENVIRON_MAX (1u << 20)

char *lien_environ_read(uint32_t pid, size_t *size)
{
	char path[32], *text = malloc(ENVIRON_MAX + 1);
	ssize_t n;

	*size = 0;
	if (!text)
		return NULL;
	snprintf(path, sizeof(path), "/proc/%u/environ", pid);
	n = lien_untrusted_read(path, text, ENVIRON_MAX + 1);
	if (n < 0) {
		free(text);
		return NULL;
	}
	*size = n;
	return text;
}

const char *lien_environ_variable(const char *text, size_t size, const char *name)
{
	size_t length = strlen(name);
	const char *at;

	for (at = text; at && at < text + size; at += strlen(at) + 1)
		if (!strncmp(at, name, length) && at[length] == '=')
			return at + length + 1;
	return NULL;
}
