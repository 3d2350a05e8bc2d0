/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the libraries that lien probes, by name, on this system and in every running process,
 * containers included.
 */
#ifndef LIEN_LIBRARIES_H
#define LIEN_LIBRARIES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <lien/calls.h>

/*
 * Returns the library that a path names, 0 if none of ours. Looks at the last component:
 * libcuda.so.1 and libcuda.so.580.159.03 are the driver, libcudadebugger.so.1 and libcuda-foo.so
 * are not. Understands a trailing " (deleted)" and the names that wheels give their copies
 * (libcudart-a5af0d8f.so.12).
 */
enum lien_library lien_library_of(const char *path);

/* "cuda", "cudart", "nccl", "control", "ibverbs"; "unknown" for anything else. */
const char *lien_library_name(enum lien_library library);

/* Returns a printable copy of a path: non-ASCII bytes become '?'. The caller frees it; NULL: no
 * memory. */
char *lien_library_text(const char *path);

struct lien_library_file {
	enum lien_library library;
	const char *path;      /* as the process or this system names it, for humans */
	const char *open_path; /* opens it from here; for a process: as long as that lives */
	pid_t pid;	       /* a process that has it mapped; 0: found on this system */
	dev_t device;	       /* from stat() of open_path */
	ino_t inode;
};

/* Strings are valid during the call. A non-zero result ends the iteration. */
typedef int (*lien_libraries_fn)(const struct lien_library_file *file, void *arg);

/*
 * Calls fn for every file of ours, of whatever kind, that the dynamic linker's cache,
 * LD_LIBRARY_PATH, the usual directories and the executable mappings of running processes name.
 * Each inode once: overlay file systems (containers of one image) show one file under many device
 * numbers, and a uprobe belongs to the underlying file.
 *
 * Returns 0, fn's result, or -ENOMEM. Skips what cannot be read (no permission, gone).
 */
int lien_libraries_each(lien_libraries_fn fn, void *arg);

struct lien_maps_entry {
	uint64_t start, end, offset, inode;
	unsigned dev_major, dev_minor;
	bool readable, writable, executable, shared;
	const char *path; /* as in the file: may be "", end in " (deleted)", have "\012" escapes */
};

typedef int (*lien_maps_fn)(const struct lien_maps_entry *mapping, void *arg);

/*
 * Calls fn for the mappings of one process in the order of their addresses, even if its first
 * thread has ended; pid 0 is the caller. Returns 0, fn's result, -ESRCH when the process is gone
 * (possibly midway), -ETIMEDOUT when it holds up its readers (loader/discover/timeout.h), or
 * another -errno.
 */
int lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg);
/* The same for executable mappings of files alone. From kernel 6.11 on, other mappings, of which a
 * process may have tens of thousands, cost little. */
int lien_maps_read_code(pid_t pid, lien_maps_fn fn, void *arg);

/*
 * Makes a path that opens the file of a mapping from lien_maps_read(): /proc/PID/map_files, which
 * works for deleted and bind-mounted files too, or else /proc/PID/root/PATH if that is still the
 * same inode. Returns 0 or -ENOENT, -ENAMETOOLONG; -ETIMEDOUT, as above: it may exist.
 */
int lien_maps_open_path(pid_t pid, const struct lien_maps_entry *mapping, char *path, size_t size);

#endif
