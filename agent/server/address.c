// SPDX-License-Identifier: BSD-2-Clause
#include "agent/server/address.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/core/log.h"

/* Makes the socket's directories, unless they exist. Checks the links among them, which realpath()
 * hides. */
static int make_parents(const char *path)
{
	char part[sizeof(((struct sockaddr_un *)0)->sun_path)], *slash;
	struct stat st;

	strcpy(part, path);
	for (slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (!lstat(part, &st) && S_ISLNK(st.st_mode) && st.st_uid &&
			st.st_uid != geteuid()) {
			lien_log(3,
				"%s on the way to %s is a symbolic link of user %u: give another "
				"--socket",
				part, path, st.st_uid);
			return -EPERM;
		}
		if (mkdir(part, 0755) && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return 0;
}

/*
 * Whoever can write to a directory of the path can replace our socket or journal: only root and
 * this user may. In directories like /tmp, others may only add files.
 */
static int check_parents(const char *path)
{
	char parent[sizeof(((struct sockaddr_un *)0)->sun_path)], real[PATH_MAX], *slash;
	struct stat st;

	strcpy(parent, path);
	slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = '\0';
	if (!realpath(slash ? parent : ".", real))
		return -errno;
	for (;;) {
		if (lstat(real, &st))
			return -errno;
		if ((st.st_uid && st.st_uid != geteuid()) ||
			(st.st_mode & (S_IWGRP | S_IWOTH) && !(st.st_mode & S_ISVTX) &&
				(st.st_mode & S_IWOTH || st.st_gid))) {
			lien_log(3,
				"others could put another socket in the place of %s: the folder %s "
				"belongs to user %u and has mode %04o: give another --socket",
				path, real, st.st_uid, st.st_mode & 07777);
			return -EPERM;
		}
		slash = strrchr(real, '/');
		if (slash == real && !real[1])
			return 0;
		slash[slash == real] = '\0';
	}
}

static int bind_to(int fd, const struct sockaddr_un *address)
{
	struct stat st;
	mode_t mask;
	int err;

	if (!lstat(address->sun_path, &st) && !S_ISSOCK(st.st_mode)) {
		lien_log(3,
			"%s is in the way: it is %s, and no socket: remove it, or give another "
			"--socket",
			address->sun_path, S_ISLNK(st.st_mode) ? "a symbolic link" : "a file");
		return -EEXIST;
	}
	if (!connect(fd, (const void *)address, sizeof(*address))) {
		lien_log(3,
			"an agent listens on %s already: stop it first, or give another --socket",
			address->sun_path);
		return -EADDRINUSE;
	}
	if (errno != ENOENT && errno != ECONNREFUSED) {
		err = -errno;
		lien_log(3, "%s is in the way: %s", address->sun_path, strerror(-err));
		return err;
	}
	if (errno == ECONNREFUSED)
		unlink(address->sun_path); /* left by an agent that was killed */
	/* for everybody: each user is shown only what is theirs */
	mask = umask(0111);
	err = bind(fd, (const void *)address, sizeof(*address)) || listen(fd, 64) ? -errno : 0;
	umask(mask);
	if (err)
		lien_log(3, "cannot listen on %s: %s", address->sun_path, strerror(-err));
	return err;
}

int lien_address_listen(const char *path, int *out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int err;

	if (strlen(path) >= sizeof(address.sun_path)) {
		lien_log(3, "the socket's path is longer than %zu characters: %s",
			sizeof(address.sun_path) - 1, path);
		return -ENAMETOOLONG;
	}
	strcpy(address.sun_path, path);
	err = make_parents(path);
	if (!err)
		err = check_parents(path);
	if (err == -EPERM)
		return err;
	if (err) {
		lien_log(3, "cannot make the directory of %s: %s", path, strerror(-err));
		return err;
	}
	*out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	err = *out < 0 ? -errno : bind_to(*out, &address);
	if (err && *out >= 0)
		close(*out);
	return err;
}
