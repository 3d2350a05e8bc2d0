/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Physical memory: one unnamed file per allocation, in the tmpfs of its device (or a memfd for host
 * memory), filled at once by fallocate() so that a full device is found at creation and not at the
 * first touch. The kernel frees the blocks when the last fd and the last mapping are gone.
 *
 * File descriptors. A process may have thousands of allocations while its soft RLIMIT_NOFILE is
 * 1024, and every mapping and every export needs the file. An allocation could be held by a hidden
 * mapping instead: mremap(old_size = 0) makes further mappings of it without an fd, but an export
 * needs an open(), and /proc/self/map_files takes CAP_CHECKPOINT_RESTORE in the initial user
 * namespace, which a job in a container has not, be it root. So: one fd per allocation, the soft
 * limit raised to the hard one at cuInit (NCCL does the same), and the fds kept from
 * number 1024 on where the limit allows, so that the program's own select() and low numbers are
 * left alone. A program that closes all its fds loses them; the real driver does not survive that
 * either.
 *
 * Properties. An importer has to learn what the allocation was created as. A page more in the file
 * would be counted on the device, user xattrs on tmpfs need Linux 6.6, and times move when mapped
 * pages are written. The device is known by the tmpfs (st_dev), the size by the file; what is left
 * are three flags, which are the file's execute bits, the ways in which it may be shared, which are
 * its set-user-ID and set-group-ID bits, and the node of host memory, which is in the memfd's name.
 * The sticky bit says that the file is one of ours.
 *
 * Identity. A tmpfs never gives an inode number out twice, and memfds are files of one tmpfs of the
 * kernel's: so the file's number is the allocation's, in every process.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "softcuda.h"

#define HOST_NAME "lien-softcuda-node-"

#define MODE_OURS	(S_ISVTX | 0666) /* readable to all: whoever is handed the fd may reopen it */
#define MODE_RDMA	S_IXUSR
#define MODE_COMPRESSED S_IXGRP
#define MODE_TILE_POOL	S_IXOTH
#define MODE_FD		S_ISUID
#define MODE_FABRIC	S_ISGID

#define NUMBER_HOST  0xffull
#define NUMBER_SHIFT 48

CUresult soft_result(int error)
{
	switch (error < 0 ? -error : error) {
	case 0:
		return CUDA_SUCCESS;
	case ENOSPC:
	case ENOMEM:
	case EDQUOT:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case EINVAL:
	case EBADF:
		return CUDA_ERROR_INVALID_VALUE;
	case ENODEV:
		return CUDA_ERROR_INVALID_DEVICE;
	default:
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
}

void soft_fd_limit_raise(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* Moves an fd out of the program's way; keeps it where it is when that is not possible. */
static int fd_aside(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, SOFT_FIRST_FD);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static mode_t mode_of_types(unsigned int types)
{
	return (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? MODE_FD : 0) |
	       (types & CU_MEM_HANDLE_TYPE_FABRIC ? MODE_FABRIC : 0);
}

static unsigned int types_of_mode(mode_t mode)
{
	return (mode & MODE_FD ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0) |
	       (mode & MODE_FABRIC ? CU_MEM_HANDLE_TYPE_FABRIC : 0);
}

static bool mode_ok(mode_t mode, CUmemAllocationHandleType type)
{
	return S_ISREG(mode) && (mode & MODE_OURS) == MODE_OURS &&
	       (types_of_mode(mode) & type) == type;
}

static int mark(int fd, const CUmemAllocationProp *prop)
{
	mode_t mode = MODE_OURS | mode_of_types(prop->requestedHandleTypes);

	mode |= prop->allocFlags.gpuDirectRDMACapable ? MODE_RDMA : 0;
	mode |= prop->allocFlags.compressionType ? MODE_COMPRESSED : 0;
	mode |= prop->allocFlags.usage ? MODE_TILE_POOL : 0;
	return fchmod(fd, mode) ? -errno : 0;
}

static int try_create(const CUmemAllocationProp *prop)
{
	char name[64];
	int fd;

	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		fd = openat(soft.device[prop->location.id].dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC,
			0600);
	} else {
		snprintf(name, sizeof(name), HOST_NAME "%d", prop->location.id);
		fd = memfd_create(name, MFD_CLOEXEC);
	}
	return fd < 0 ? -errno : fd;
}

int soft_backing_memfd(const char *name, int suffix, unsigned int types, size_t size)
{
	char full[64];
	int fd, err;

	snprintf(full, sizeof(full), "%s%d", name, suffix);
	fd = memfd_create(full, MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, size) || fchmod(fd, MODE_OURS | mode_of_types(types))) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd_aside(fd);
}

uint64_t soft_backing_number(int fd)
{
	uint64_t where = NUMBER_HOST;
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return 0;
	for (int i = 0; i < soft.config.devices; i++) {
		if (soft.physical[i] == st.st_dev)
			where = i + 1;
	}
	return where << NUMBER_SHIFT | (st.st_ino & ((1ull << NUMBER_SHIFT) - 1));
}

int soft_backing_create(const CUmemAllocationProp *prop, size_t size)
{
	int fd, err;

	fd = try_create(prop);
	if (fd == -EMFILE) {
		soft_fd_limit_raise(); /* the program may have lowered it again */
		fd = try_create(prop);
	}
	if (fd < 0)
		return fd;
	while (fallocate(fd, 0, 0, size)) {
		err = -errno;
		if (err != -EINTR)
			goto out_close;
	}
	err = mark(fd, prop);
	if (err)
		goto out_close;
	return fd_aside(fd);
out_close:
	close(fd);
	return err;
}

static int open_again(int fd, int flags)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, flags | O_CLOEXEC);
	if (again < 0 && errno == EMFILE) {
		soft_fd_limit_raise();
		again = open(path, flags | O_CLOEXEC);
	}
	return again < 0 ? -errno : again;
}

int soft_backing_reopen(int fd)
{
	return open_again(fd, O_RDWR);
}

/* A new struct file, as the driver's exports are: lien tells exports apart by it. None that a
 * driver keeps open itself looks the same. */
int soft_backing_export(int fd)
{
	return open_again(fd, O_RDONLY);
}

/* The rest of a memfd's name behind this one, NULL if it has another or is none. */
static char *memfd_suffix(int fd, const char *name, char *target, size_t len)
{
	char path[64], wanted[64];
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	snprintf(wanted, sizeof(wanted), "/memfd:%s", name);
	got = readlink(path, target, len - 1);
	if (got < 0)
		return NULL;
	target[got] = 0;
	return strncmp(target, wanted, strlen(wanted)) ? NULL : target + strlen(wanted);
}

bool soft_backing_is_memfd(int fd, const char *name, CUmemAllocationHandleType type, size_t least)
{
	char target[128];
	struct stat st;

	return !fstat(fd, &st) && mode_ok(st.st_mode, type) && (size_t)st.st_size >= least &&
	       memfd_suffix(fd, name, target, sizeof(target));
}

/* The location of a file: a visible device's, a host node's; -ENODEV, -EINVAL for a stranger. */
static int location_of(int fd, const struct stat *st, CUmemLocation *location)
{
	char target[128], *node;

	for (int i = 0; i < soft.count; i++) {
		if (soft.physical[soft.device[i].physical] == st->st_dev) {
			*location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, i};
			return 0;
		}
	}
	for (int i = 0; i < soft.config.devices; i++) {
		if (soft.physical[i] == st->st_dev)
			return -ENODEV;
	}
	node = memfd_suffix(fd, HOST_NAME, target, sizeof(target));
	if (!node)
		return -EINVAL;
	*location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, atoi(node)};
	return 0;
}

int soft_backing_import(
	int fd, CUmemAllocationHandleType type, CUmemAllocationProp *prop, size_t *size)
{
	CUmemLocation location;
	struct stat st;
	int copy, err;

	if (fstat(fd, &st))
		return -errno;
	if (!mode_ok(st.st_mode, type) || !st.st_size || st.st_size % SOFT_GRANULARITY)
		return -EINVAL;
	err = location_of(fd, &st, &location);
	if (err)
		return err;
	copy = soft_backing_reopen(fd);
	if (copy < 0)
		return copy;
	*size = st.st_size;
	*prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = types_of_mode(st.st_mode),
		.location = location,
		.allocFlags = {.compressionType = !!(st.st_mode & MODE_COMPRESSED),
			.gpuDirectRDMACapable = !!(st.st_mode & MODE_RDMA),
			.usage = !!(st.st_mode & MODE_TILE_POOL)},
	};
	return fd_aside(copy);
}
