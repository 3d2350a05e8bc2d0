// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/user.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "loader/discover/status.h"

#define DEPTH_MAX 33 /* nested user namespaces; the kernel allows 32 */

static uint32_t real_user_of(uint32_t pid)
{
	char text[LIEN_STATUS_SIZE];
	const char *uids = lien_status_read(pid, 0, text) ? NULL : lien_status_field(text, "Uid");

	return uids ? strtoul(uids, NULL, 10) : LIEN_USER_GONE;
}

static bool is_ours(int namespace)
{
	struct stat own, st;

	return !stat("/proc/self/ns/user", &own) && !fstat(namespace, &st) &&
	       st.st_dev == own.st_dev && st.st_ino == own.st_ino;
}

uint32_t lien_user_of(uint32_t pid)
{
	uint32_t user = LIEN_USER_GONE;
	int namespace, parent, depth;
	char path[32];
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
	return user != LIEN_USER_GONE ? user : real_user_of(pid);
}
