// SPDX-License-Identifier: BSD-2-Clause
/*
 * Finds the functions that the process will be made to call, in its own files, by their exported
 * names.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lien/wire.h>
#include "loader/discover/elf_symbols.h"
#include "loader/inject/inject_internal.h"
#include "loader/discover/libraries.h"
#include "loader/discover/untrusted.h"

#define LIBC_MINOR_MIN 31
#define LIBC_SIZE_MAX  (64 << 20)
#define RTLD_NOW_MODE  2
#define RTLD_DLOPEN    0x80000000u /* added by dlopen() in calls of __libc_dlopen_mode() */

enum part {
	PART_LIBC,
	PART_PTHREAD,
	PART_DL,
	PART_LOADER,
	PART_MUSL,
	PART_CUDA,
	PARTS,
};

/* A mapped file. The addresses are of its executable part; the library's `start` is its
 * beginning. */
struct mapped {
	uint64_t start, end, offset, inode;
	char path[PATH_MAX]; /* opens it */
	unsigned copies;     /* other files of that name */
};

struct layout {
	struct lien_inject *inject;
	struct mapped parts[PARTS];
	struct mapped control;
};

static const char *const allocators[] = {"jemalloc", "tcmalloc", "mimalloc", "tbbmalloc"};

/* How names begin: "libc.so.6", or "libc-2.31.so", the name up to 2.33. */
static const struct {
	const char *begin;
	enum part part;
} names[] = {
	{"libc.so.6", PART_LIBC},
	{"libc-2.", PART_LIBC},
	{"libpthread.so.0", PART_PTHREAD},
	{"libpthread-2.", PART_PTHREAD},
	{"libdl.so.2", PART_DL},
	{"libdl-2.", PART_DL},
	{"ld-musl-", PART_MUSL},
	{"libc.musl-", PART_MUSL},
	{"ld-linux-x86-64.so", PART_LOADER},
	{"ld-2.", PART_LOADER},
};

static enum part part_of(const char *path)
{
	const char *name = strrchr(path, '/');

	name = name ? name + 1 : path;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strncmp(name, names[i].begin, strlen(names[i].begin)))
			return names[i].part;
	return lien_library_of(path) == LIEN_LIB_CUDA ? PART_CUDA : PARTS;
}

static void take(struct layout *layout, struct mapped *mapped, const struct lien_maps_entry *entry)
{
	if (mapped->start) {
		mapped->copies += mapped->inode != entry->inode;
		return;
	}
	mapped->start = entry->start;
	mapped->end = entry->end;
	mapped->offset = entry->offset;
	mapped->inode = entry->inode;
	if (lien_maps_open_path(layout->inject->pid, entry, mapped->path, sizeof(mapped->path)))
		mapped->path[0] = 0;
}

static void add_unsafe(
	struct lien_inject *inject, const struct lien_maps_entry *entry, bool allocator)
{
	if (inject->unsafe_count < LIEN_INJECT_RANGES)
		inject->unsafe[inject->unsafe_count++] =
			(struct lien_inject_range){entry->start, entry->end, allocator};
}

static int look(const struct lien_maps_entry *entry, void *arg)
{
	struct layout *layout = arg;
	enum part part;

	if (lien_library_of(entry->path) == LIEN_LIB_CONTROL)
		take(layout, &layout->control, entry);
	if (!entry->executable)
		return 0;
	part = part_of(entry->path);
	if (part != PARTS)
		take(layout, &layout->parts[part], entry);
	if (part == PART_LOADER)
		add_unsafe(layout->inject, entry, false);
	for (size_t i = 0; i < sizeof(allocators) / sizeof(allocators[0]); i++)
		if (strstr(entry->path, allocators[i]))
			add_unsafe(layout->inject, entry, true);
	return 0;
}

static int look_at_maps(struct lien_inject *inject, struct layout *layout)
{
	int err;

	memset(layout, 0, sizeof(*layout));
	layout->inject = inject;
	inject->unsafe_count = 0;
	err = lien_maps_read(inject->pid, look, layout);
	return err ? lien_inject_fail(inject, err, "cannot read the mappings of process %u: %s",
			     inject->pid, strerror(-err))
		   : 0;
}

/* Returns 0 if the process lacks the function. */
static uint64_t address_of(const struct mapped *mapped, uint64_t file_offset)
{
	if (file_offset < mapped->offset ||
		file_offset - mapped->offset >= mapped->end - mapped->start)
		return 0;
	return mapped->start + (file_offset - mapped->offset);
}

/* Functions to find, and the library that has them up to glibc 2.33; libc has stubs of some. */
struct wanted {
	const char *name;  /* NULL: after the last one */
	uint64_t *address; /* 0: not found yet */
	enum part part;
	uint64_t offset; /* in the library that is searched; 0: not there */
};

static int find_one(void *context, const struct lien_elf_export *export)
{
	struct wanted *wanted;

	for (wanted = context; wanted->name && export->file_offset != UINT64_MAX; wanted++)
		if (!strcmp(wanted->name, export->name) && (!wanted->offset || !export->old))
			wanted->offset = export->file_offset;
	return 0;
}

/* Looks in one library for those that may be there. */
static int find_in(const struct mapped *mapped, enum part part, struct wanted *wanted)
{
	struct stat st;
	int fd, err;

	if (!mapped->start)
		return 0;
	fd = lien_untrusted_open(mapped->path, &st);
	if (fd < 0)
		return fd;
	err = lien_elf_exports(fd, find_one, wanted);
	close(fd);
	for (; wanted->name && !err; wanted++) {
		if ((part == PART_LIBC || part == wanted->part) && wanted->offset &&
			!*wanted->address)
			*wanted->address = address_of(mapped, wanted->offset);
		wanted->offset = 0;
	}
	return err;
}

/* Finds two pieces of libc that have no names: a system call followed by a return, taken from
 * getpid(), and the return from a signal handler, which has the bytes that debuggers look for. */
static int find_pieces(struct lien_inject *inject, const struct mapped *libc, uint64_t getpid_at)
{
	static const unsigned char call[] = {0x0f, 0x05, 0xc3};
	static const unsigned char back[] = {0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05};
	unsigned char head[24], seen[sizeof(back)];
	const char *at;
	struct stat st;
	char *image;
	ssize_t n;
	int fd;

	if (!getpid_at || lien_inject_read(inject, getpid_at, head, sizeof(head)))
		return -ENOENT;
	at = memmem(head, sizeof(head), call, sizeof(call));
	inject->syscall_ret = at ? getpid_at + ((unsigned char *)at - head) : 0;
	fd = lien_untrusted_open(libc->path, &st);
	if (fd < 0)
		return fd;
	image = st.st_size < LIBC_SIZE_MAX ? malloc(st.st_size + 1) : NULL;
	n = image ? pread(fd, image, st.st_size, 0) : -1;
	close(fd);
	if (n > 0) {
		image[n] = '\0';
		/* "GNU C Library (...) stable release version 2.36." */
		at = memmem(image, n, "GNU C Library", 13);
		at = at ? strstr(at, " version 2.") : NULL;
		inject->libc_minor = at && isdigit((unsigned char)at[11]) ? atoi(at + 11) : 0;
		at = memmem(image, n, back, sizeof(back));
		inject->calls.restore_rt = at ? address_of(libc, at - image) : 0;
	}
	free(image);
	if (!inject->syscall_ret || !inject->calls.restore_rt ||
		lien_inject_read(inject, inject->calls.restore_rt, seen, sizeof(seen)) ||
		memcmp(seen, back, sizeof(back)))
		return -ENOENT;
	return 0;
}

static int check_parts(struct lien_inject *inject, const struct mapped *parts)
{
	uint32_t pid = inject->pid;

	if (parts[PART_MUSL].start)
		return lien_inject_fail(inject, -ENOEXEC,
			"process %u has musl as its libc, for which NVIDIA has no driver", pid);
	if (!parts[PART_LIBC].start && !parts[PART_LOADER].start)
		return lien_inject_fail(inject, -ENOEXEC,
			"process %u is a static executable: nothing can be loaded into it", pid);
	if (!parts[PART_LIBC].start)
		return lien_inject_fail(
			inject, -ENOEXEC, "process %u has no glibc (libc.so.6), or not yet", pid);
	if (!parts[PART_CUDA].start)
		return lien_inject_fail(inject, -ENODEV,
			"process %u is not a CUDA process: it has not loaded libcuda.so.1", pid);
	if (parts[PART_LIBC].copies)
		return lien_inject_fail(inject, -ENOEXEC,
			"process %u has two copies of glibc: start it with `lien run`", pid);
	return 0;
}

static int find_functions(struct lien_inject *inject, const struct mapped *parts)
{
	uint64_t getpid_at = 0, old_dlopen = 0, old_dlclose = 0;
	struct lien_inject_calls *calls = &inject->calls;
	struct wanted wanted[] = {
		{"pthread_create", &calls->pthread_create, PART_PTHREAD, 0},
		{"pthread_detach", &calls->pthread_detach, PART_PTHREAD, 0},
		{"dlopen", &calls->dlopen, PART_DL, 0},
		{"dlclose", &calls->dlclose, PART_DL, 0},
		{"dlerror", &calls->dlerror, PART_DL, 0},
		{"__errno_location", &calls->errno_location, PART_LIBC, 0},
		{"munmap", &calls->munmap, PART_LIBC, 0},
		{"getpid", &getpid_at, PART_LIBC, 0},
		{"__libc_dlopen_mode", &old_dlopen, PART_LIBC, 0},
		{"__libc_dlclose", &old_dlclose, PART_LIBC, 0},
		{NULL, NULL, PARTS, 0},
	};
	static const enum part order[] = {PART_PTHREAD, PART_DL, PART_LIBC};
	int err = 0;

	for (unsigned i = 0; i < 3 && !err; i++)
		err = find_in(&parts[order[i]], order[i], wanted);
	if (!err)
		err = find_pieces(inject, &parts[PART_LIBC], getpid_at);
	inject->dlopen_mode = RTLD_NOW_MODE;
	if (!calls->dlopen) {
		calls->dlopen = old_dlopen;
		calls->dlclose = old_dlclose;
		inject->dlopen_mode |= RTLD_DLOPEN;
	}
	return err;
}

int lien_inject_find(struct lien_inject *inject)
{
	const struct lien_inject_calls *calls = &inject->calls;
	uint32_t pid = inject->pid;
	struct layout layout;
	int err;

	err = look_at_maps(inject, &layout) ?: check_parts(inject, layout.parts);
	if (err)
		return err;
	err = find_functions(inject, layout.parts);
	if (inject->libc_minor && inject->libc_minor < LIBC_MINOR_MIN)
		return lien_inject_fail(inject, -ENOEXEC,
			"process %u has glibc 2.%u, older than 2.%u: start it with `lien run`", pid,
			inject->libc_minor, LIBC_MINOR_MIN);
	if (err)
		return lien_inject_fail(inject, err == -ENOMEM ? err : -ENOEXEC,
			"cannot read the glibc of process %u (%s): start it with `lien run`", pid,
			strerror(-err));
	if (!inject->libc_minor || !calls->pthread_create || !calls->pthread_detach ||
		!calls->dlopen || !calls->dlclose || !calls->errno_location || !calls->munmap)
		return lien_inject_fail(inject, -ENOEXEC,
			"process %u has no glibc with threads and dlopen(): start it with `lien "
			"run`",
			pid);
	return 0;
}

/* Finds the library if it is mapped: sets inject->control and ->again. */
static int find_control(struct lien_inject *inject)
{
	uint64_t value, again = 0;
	struct layout layout;
	struct stat st;
	int fd, err;

	inject->control = inject->again = 0;
	err = look_at_maps(inject, &layout);
	if (err || !layout.control.start)
		return err;
	err = fd = lien_untrusted_open(layout.control.path, &st);
	if (fd >= 0) {
		err = lien_elf_object(fd, "lien_control_state", &value);
		if (lien_elf_object(fd, "lien_control_again", &again))
			again = 0;
		close(fd);
	}
	if (err)
		return lien_inject_fail(inject, err,
			"cannot read the control library of process %u: %s", inject->pid,
			strerror(-err));
	inject->control = layout.control.start + value;
	if (again && lien_inject_read(inject, layout.control.start + again, &inject->again,
			     sizeof(inject->again)))
		inject->again = 0;
	return 0;
}

/* Does its control thread run? A forked child has a copy of its parent's state, and the application
 * may have closed the sockets. */
static bool is_served(const struct lien_inject *inject, const struct lien_control_state *state)
{
	char path[40], target[40], socket[40];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%u/fd/%d", inject->pid, state->agent_fd);
	snprintf(socket, sizeof(socket), "socket:[%llu]", (unsigned long long)state->agent_ino);
	n = readlink(path, target, sizeof(target) - 1);
	target[n < 0 ? 0 : n] = 0;
	return !strcmp(target, socket) && state->pid == lien_status_of(inject->pid, 0, "NSpid", 10);
}

int lien_inject_present(struct lien_inject *inject)
{
	struct lien_control_state state;
	int err = find_control(inject);

	if (err || !inject->control)
		return err;
	if (lien_inject_read(inject, inject->control, &state, sizeof(state)))
		return lien_inject_fail_gone(inject);
	if (state.magic == LIEN_WIRE_MAGIC_ENDED && state.version == LIEN_WIRE_VERSION &&
		inject->again)
		return 0;
	if (state.magic != LIEN_WIRE_MAGIC && state.magic != LIEN_WIRE_MAGIC_ENDED)
		return lien_inject_fail(inject, -EBUSY,
			"process %u has a control library that has not started: it is being "
			"loaded, or its C library is not glibc",
			inject->pid);
	if (state.version != LIEN_WIRE_VERSION || state.magic == LIEN_WIRE_MAGIC_ENDED)
		return lien_inject_fail(inject, -EPROTO,
			"process %u has a control library of another version (%u, not %u): "
			"restart it",
			inject->pid, state.version, LIEN_WIRE_VERSION);
	if (is_served(inject, &state))
		inject->again = 0; /* nothing is to be started, so no thread is stopped for it */
	return 1;
}
