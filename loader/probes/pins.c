// SPDX-License-Identifier: BSD-2-Clause
#include <bpf/bpf.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "loader/hash.h"
#include "loader/probes/pins.h"

#define BPFFS "/sys/fs/bpf"
#define ROOT  BPFFS "/lien"

struct lien_pins {
	int fd; /* locked */
	char folder[256];
};

static bool is_bpffs(void)
{
	struct statfs fs;

	return !statfs(BPFFS, &fs) && fs.f_type == BPF_FS_MAGIC;
}

static int make_root(void)
{
	if (!is_bpffs() &&
		mount("bpf", BPFFS, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700"))
		return -errno;
	return mkdir(ROOT, 0700) && errno != EEXIST ? -errno : 0;
}

/*
 * The name is "run_lien_agent_sock-" and a hash of the whole path and its file system: containers
 * have sockets with the same path, and may share the BPF file system.
 */
static int name_folder(char *folder, size_t size, const char *socket)
{
	char real[PATH_MAX], parent[PATH_MAX], *slash;
	const char *last = strrchr(socket, '/');
	struct stat st;
	uint64_t hash;
	int n, i;

	snprintf(parent, sizeof(parent), "%s", socket);
	slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = '\0';
	if (!realpath(slash ? parent : ".", real) || stat(real, &st))
		return -errno;
	hash = lien_hash(LIEN_HASH_START, real, strlen(real));
	hash = lien_hash(hash, last ? last + 1 : socket, strlen(last ? last + 1 : socket));
	hash = lien_hash(hash, &st.st_dev, sizeof(st.st_dev));
	n = snprintf(folder, size, ROOT "/%.64s_%.64s-%016llx", real + 1, last ? last + 1 : socket,
		(unsigned long long)hash);
	for (i = sizeof(ROOT); i < n; i++)
		if (!isalnum((unsigned char)folder[i]) && folder[i] != '-')
			folder[i] = '_';
	return 0;
}

int lien_pins_open(struct lien_pins **out, const char *socket, bool make)
{
	struct lien_pins *pins = calloc(1, sizeof(*pins));
	int err = 0;

	if (!pins)
		return -ENOMEM;
	pins->fd = -1;
	if (make)
		err = make_root();
	if (!err)
		err = name_folder(pins->folder, sizeof(pins->folder), socket);
	if (!err && make && mkdir(pins->folder, 0700) && errno != EEXIST)
		err = -errno;
	if (!err) {
		pins->fd = open(pins->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (pins->fd < 0)
			err = -errno;
		else if (flock(pins->fd, LOCK_EX | LOCK_NB))
			err = errno == EWOULDBLOCK ? -EBUSY : -errno;
	}
	if (err) {
		lien_pins_close(pins);
		return err;
	}
	*out = pins;
	return 0;
}

void lien_pins_close(struct lien_pins *pins)
{
	if (!pins)
		return;
	if (pins->fd >= 0)
		close(pins->fd);
	free(pins);
}

static void path_of(const struct lien_pins *pins, const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s/%s", pins->folder, name);
}

int lien_pins_put(struct lien_pins *pins, const char *name, int fd)
{
	char path[512];

	path_of(pins, name, path, sizeof(path));
	return bpf_obj_pin(fd, path) ? -errno : 0;
}

int lien_pins_get(const struct lien_pins *pins, const char *name)
{
	char path[512];
	int fd;

	path_of(pins, name, path, sizeof(path));
	fd = bpf_obj_get(path);
	return fd < 0 ? -errno : fd;
}

bool lien_pins_has(const struct lien_pins *pins, const char *name)
{
	char path[512];

	path_of(pins, name, path, sizeof(path));
	return !access(path, F_OK);
}

void lien_pins_drop(struct lien_pins *pins, const char *name)
{
	char path[512];

	path_of(pins, name, path, sizeof(path));
	unlink(path);
}

void lien_pins_each(
	struct lien_pins *pins, void (*fn)(void *context, const char *name), void *context)
{
	DIR *folder = opendir(pins->folder);
	struct dirent *entry;

	while (folder && (entry = readdir(folder)))
		if (entry->d_name[0] != '.')
			fn(context, entry->d_name);
	if (folder)
		closedir(folder);
}

static void drop(void *pins, const char *name)
{
	lien_pins_drop(pins, name);
}

void lien_pins_clear(struct lien_pins *pins)
{
	lien_pins_each(pins, drop, pins);
}

void lien_pins_remove(struct lien_pins *pins)
{
	lien_pins_clear(pins);
	rmdir(pins->folder);
	rmdir(ROOT); /* succeeds only when it is empty */
	lien_pins_close(pins);
}

const char *lien_pins_folder(const struct lien_pins *pins)
{
	return pins->folder;
}
