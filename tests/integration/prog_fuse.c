// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_fuse DIR UID state LIBRARY CUDA | prog_fuse DIR UID lock CUDA: a process of a user who
 * serves a file system in user space (FUSE) that answers no read, and who uses CUDA.
 *
 * state: the file system is mounted as fusermount3 does it, and lien_control_state of LIBRARY is on
 * a page of it. lock: it is mounted in a user namespace; one thread waits for a page with the lock
 * of its address space, and another one for that lock to change it, so that nobody else gets it.
 *
 * Prints "ready" and waits for the end of its input. The server ends with it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096
#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what))                                                                       \
			fail(#what);                                                               \
	} while (0)

/* Shared with the server: how many reads it has not answered. */
static unsigned *held;
static volatile bool go;
static char *page;

static void fail(const char *what)
{
	fprintf(stderr, "prog_fuse: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	CHECK(fd >= 0 && write(fd, text, strlen(text)) > 0);
	close(fd);
}

/* --- the file system: a folder with one file ---------------------------------------------------
 */

static void answer(int fd, uint64_t unique, int error, const void *body, size_t size)
{
	struct fuse_out_header head = {
		.len = sizeof(head) + size, .error = error, .unique = unique};
	struct iovec parts[] = {{&head, sizeof(head)}, {(void *)body, size}};

	if (writev(fd, parts, size ? 2 : 1) < 0 && errno != ENOENT)
		fail("writev");
}

static struct fuse_attr attributes(uint64_t node)
{
	return (struct fuse_attr){.ino = node,
		.size = node == 1 ? 0 : 16 * PAGE,
		.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0755,
		.nlink = 1,
		.blksize = PAGE};
}

static void serve_one(int fd, const struct fuse_in_header *in, bool fails_once)
{
	struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = PAGE};
	struct fuse_entry_out entry = {.nodeid = 2, .attr = attributes(2), .attr_valid = 1000};
	struct fuse_attr_out attr = {.attr = attributes(in->nodeid), .attr_valid = 1000};
	struct fuse_open_out opened = {.fh = 1};
	static unsigned reads;

	switch (in->opcode) {
	case FUSE_INIT:
		answer(fd, in->unique, 0, &init, sizeof(init));
		break;
	case FUSE_LOOKUP:
		answer(fd, in->unique, 0, &entry, sizeof(entry));
		break;
	case FUSE_GETATTR:
		answer(fd, in->unique, 0, &attr, sizeof(attr));
		break;
	case FUSE_OPEN:
		answer(fd, in->unique, 0, &opened, sizeof(opened));
		break;
	case FUSE_READ:
		/* After a first failure the kernel tries again, and keeps the lock meanwhile. */
		if (fails_once && !reads++)
			answer(fd, in->unique, -EIO, NULL, 0);
		else
			__atomic_fetch_add(held, 1, __ATOMIC_SEQ_CST);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		answer(fd, in->unique, 0, NULL, 0);
		break;
	default:
		answer(fd, in->unique, -ENOSYS, NULL, 0);
	}
}

static void serve(int fd, bool fails_once)
{
	static char request[1 << 17];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "fuse-server");
	while (read(fd, request, sizeof(request)) > 0 || errno == EINTR)
		serve_one(fd, (const void *)request, fails_once);
	_exit(0);
}

static int open_device(const char *dir)
{
	char path[512];
	int fd;

	/* The system's may be root's alone, where no rule of udev has run. */
	snprintf(path, sizeof(path), "%s.device", dir);
	CHECK(!mknod(path, S_IFCHR | 0666, makedev(10, 229)) || errno == EEXIST);
	CHECK(!chmod(path, 0666));
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static void become(int uid)
{
	CHECK(!setgid(uid) && !setuid(uid) && !prctl(PR_SET_DUMPABLE, 1));
}

static void enter_user_namespace(int uid)
{
	char text[32];

	CHECK(!unshare(CLONE_NEWUSER | CLONE_NEWNS));
	write_file("/proc/self/setgroups", "deny");
	snprintf(text, sizeof(text), "0 %d 1", uid);
	write_file("/proc/self/uid_map", text);
	write_file("/proc/self/gid_map", text);
}

static void mount_it(const char *dir, int uid, bool in_namespace)
{
	char device[512], options[128];
	int fd;

	if (in_namespace) {
		close(open_device(dir));
		become(uid);
		enter_user_namespace(uid);
		snprintf(device, sizeof(device), "%s.device", dir);
		fd = open(device, O_RDWR | O_CLOEXEC);
		uid = 0; /* there */
	} else {
		CHECK(!unshare(CLONE_NEWNS));
		CHECK(!mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
		fd = open_device(dir);
	}
	CHECK(fd >= 0);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, uid,
		uid);
	CHECK(!mount("lien", dir, "fuse", MS_NOSUID | MS_NODEV, options));
	if (!in_namespace)
		become(uid);
	if (!fork())
		serve(fd, in_namespace);
	close(fd);
}

static void *map_page(const char *dir, void *at)
{
	char path[512];
	void *mapped;
	int fd;

	snprintf(path, sizeof(path), "%s/file", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	mapped = mmap(at, PAGE, PROT_READ, MAP_PRIVATE | (at ? MAP_FIXED : 0), fd, 0);
	CHECK(mapped != MAP_FAILED);
	close(fd);
	return mapped;
}

/* --- what it does to those who look at it ------------------------------------------------------
 */

static void *touch(void *arg)
{
	(void)arg;
	(void)*(volatile char *)page;
	return NULL;
}

static void *change(void *arg)
{
	(void)arg;
	while (!go)
		usleep(1000);
	mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return NULL;
}

/* Nothing here may need the lock any more: no output through stdio, no new thread. */
static void hold_lock(const char *dir)
{
	pthread_t thread;

	page = map_page(dir, NULL);
	CHECK(!pthread_create(&thread, NULL, change, NULL));
	CHECK(!pthread_create(&thread, NULL, touch, NULL));
	while (!__atomic_load_n(held, __ATOMIC_SEQ_CST))
		usleep(1000);
	go = true;
	usleep(50000);
}

int main(int argc, char **argv)
{
	bool lock = argc == 5 && !strcmp(argv[3], "lock");
	int (*init)(unsigned);
	void *state;
	char byte;

	CHECK(lock || argc == 6);
	held = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	mount_it(argv[1], atoi(argv[2]), lock);
	if (!lock) {
		state = dlopen(argv[4], RTLD_NOW);
		CHECK(state && (state = dlsym(state, "lien_control_state")));
		map_page(argv[1], state);
	}
	init = dlsym(dlopen(argv[argc - 1], RTLD_NOW), "cuInit");
	CHECK(init);
	if (lock)
		hold_lock(argv[1]);
	init(0);
	CHECK(write(STDOUT_FILENO, "ready\n", 6) == 6);
	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
	_exit(0);
}
