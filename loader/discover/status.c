// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/status.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/text.h"

#define DEPTH_MAX 33 /* nested user namespaces; the kernel allows 32 */

int lien_status_read(uint32_t pid, uint32_t tid, char text[LIEN_STATUS_SIZE])
{
	char path[48];

	if (tid)
		snprintf(path, sizeof(path), "/proc/%u/task/%u/status", pid, tid);
	else
		snprintf(path, sizeof(path), "/proc/%u/status", pid);
	return lien_text_read(path, text, LIEN_STATUS_SIZE);
}

const char *lien_status_field(const char *text, const char *field)
{
	size_t length = strlen(field);

	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, field, length) && line[length] == ':')
			return line + length + 1 + strspn(line + length + 1, " \t");
	}
	return NULL;
}

long long lien_status_last(const char *text, const char *field, int base)
{
	const char *value = lien_status_field(text, field);
	size_t length = value ? strcspn(value, "\n") : 0;

	while (length && value[length - 1] != '\t' && value[length - 1] != ' ')
		length--;
	return value ? (long long)strtoull(value + length, NULL, base) : -1;
}

long long lien_status_of(uint32_t pid, uint32_t tid, const char *field, int base)
{
	char text[LIEN_STATUS_SIZE];

	return lien_status_read(pid, tid, text) ? -1 : lien_status_last(text, field, base);
}

static bool is_ours(int namespace)
{
	struct stat own, st;

	return !stat("/proc/self/ns/user", &own) && !fstat(namespace, &st) &&
	       st.st_dev == own.st_dev && st.st_ino == own.st_ino;
}

uint32_t lien_user_of(uint32_t pid)
{
	char path[32], text[LIEN_STATUS_SIZE];
	uint32_t user = LIEN_USER_GONE;
	int namespace, parent, depth;
	const char *uids;
	uid_t owner;

	snprintf(path, sizeof(path), "/proc/%u/ns/user", pid);
	namespace = open(path, O_RDONLY | O_CLOEXEC);
	for (depth = 0; depth < DEPTH_MAX && namespace >= 0 && !is_ours(namespace); depth++) {
		if (!ioctl(namespace, NS_GET_OWNER_UID, &owner))
			user = owner;
		parent = ioctl(namespace, NS_GET_PARENT);
		close(namespace);
		namespace = parent;
	}
	if (namespace >= 0)
		close(namespace);
	if (user != LIEN_USER_GONE)
		return user;
	uids = lien_status_read(pid, 0, text) ? NULL : lien_status_field(text, "Uid");
	return uids ? strtoul(uids, NULL, 10) : LIEN_USER_GONE;
}
