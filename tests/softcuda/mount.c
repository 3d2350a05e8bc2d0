/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The devices' memory: one tmpfs each, at <dir>/<number>. The kernel then keeps the accounts: what
 * a process allocated is given back when its last holder is gone, however it died, and statfs() is
 * the same truth for every process. The first root process that initialises CUDA mounts them; they
 * stay until somebody unmounts them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "softcuda.h"

/* <dir> itself may lie on a tmpfs (/run does): a device is one that is another file system. */
static int open_mounted(const char *dir, const char *path)
{
	struct stat st, parent;
	struct statfs fs;
	int fd, err;

	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || stat(dir, &parent) || fstatfs(fd, &fs)) {
		err = -errno;
		goto out_close;
	}
	err = st.st_dev == parent.st_dev ? -ENOENT : fs.f_type != TMPFS_MAGIC ? -EMEDIUMTYPE : 0;
	if (!err)
		return fd;
out_close:
	close(fd);
	return err;
}

/* nr_inodes=0: unlimited. mode=1777: any user may allocate, as on a GPU. */
static int mount_device(const char *path, size_t size, unsigned long flags)
{
	char options[128];

	flags |= MS_NOSUID | MS_NODEV | MS_NOEXEC;
	/* Large pages make touching a device's memory several times faster; not all kernels have
	 * them. For what is smaller the kernel would split them. */
	snprintf(options, sizeof(options), "size=%zu,mode=1777,nr_inodes=0,huge=%s", size,
		SOFT_GRANULARITY < 2ul << 20 ? "never" : "always");
	if (!mount("lien-softcuda", path, "tmpfs", flags, options))
		return 0;
	*strstr(options, ",huge") = 0;
	return mount("lien-softcuda", path, "tmpfs", flags, options) ? -errno : 0;
}

/* The asked size wins only where nothing is allocated: else the accounts of others would change. */
static void resize_if_empty(const char *path, int fd, size_t size)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) || (size_t)fs.f_blocks * fs.f_bsize == size)
		return;
	if (fs.f_bfree == fs.f_blocks)
		mount_device(path, size, MS_REMOUNT);
}

static int make_dirs(const char *dir)
{
	char path[PATH_MAX];
	size_t len = strlen(dir);

	if (len >= sizeof(path))
		return -ENAMETOOLONG;
	memcpy(path, dir, len + 1);
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		mkdir(path, 0755);
		*slash = '/';
	}
	return mkdir(path, 0755) && errno != EEXIST ? -errno : 0;
}

static int prepare_device(const struct soft_config *config, const char *path, bool first_come)
{
	int fd, err;

	fd = open_mounted(config->dir, path);
	if (fd >= 0) {
		if (first_come)
			resize_if_empty(path, fd, config->memory);
		return fd;
	}
	if (fd != -ENOENT)
		return fd;
	if (geteuid())
		return -EPERM;
	if (mkdir(path, 0755) && errno != EEXIST)
		return -errno;
	err = mount_device(path, config->memory, 0);
	return err ? err : open_mounted(config->dir, path);
}

int soft_mount_devices(const struct soft_config *config, int *dirs, char *where, size_t len)
{
	char path[PATH_MAX];
	int lock, err = 0, i;

	snprintf(where, len, "%s", config->dir);
	err = make_dirs(config->dir);
	if (err && access(config->dir, X_OK))
		return err;
	snprintf(path, sizeof(path), "%s/lock", config->dir);
	lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	/* Who may not write it may not mount either, and needs no lock to look. */
	if (lock >= 0)
		while (flock(lock, LOCK_EX) && errno == EINTR)
			;
	for (i = 0; i < config->devices; i++) {
		snprintf(path, sizeof(path), "%s/%d", config->dir, i);
		dirs[i] = prepare_device(config, path, lock >= 0 && !geteuid());
		if (dirs[i] < 0) {
			err = dirs[i];
			snprintf(where, len, "%s", path);
			break;
		}
	}
	if (i == config->devices)
		err = 0;
	else
		while (i--)
			close(dirs[i]);
	if (lock >= 0)
		close(lock);
	return err;
}
