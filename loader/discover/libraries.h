/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where the libraries are that lien probes: by name, on this system and in every running process,
 * those in containers included.
 */
#ifndef LIEN_LIBRARIES_H
#define LIEN_LIBRARIES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <lien/calls.h>

/*
 * The library that a path names, 0 if none of ours. Goes by the last component: libcuda.so.1 and
 * libcuda.so.580.159.03 are the driver, libcudadebugger.so.1 and libcuda-foo.so are not. Names that
 * wheels give their copies (libcudart-a5af0d8f.so.12) and " (deleted)" at the end are understood.
 */
enum lien_library lien_library_of(const char *path);

/* "cuda", "cudart", "nccl", "control", "ibverbs"; "unknown" for anything else. */
const char *lien_library_name(enum lien_library library);

/* A copy of a path that can be shown: what is no ASCII becomes '?'. To be freed; NULL: no memory.
 */
char *lien_library_text(const char *path);

struct lien_library_file {
	enum lien_library library;
	const char *path;      /* as the process or this system calls it, for humans */
	const char *open_path; /* what opens it from here; of a process: as long as that lives */
	pid_t pid;	       /* a process that has it mapped, 0: found on this system */
	dev_t device;	       /* as stat() of open_path says */
	ino_t inode;
};

/* Strings are the caller's for the time of the call. Not 0 ends the iteration. */
typedef int (*lien_libraries_fn)(const struct lien_library_file *file, void *arg);

/*
 * Every file of ours that the dynamic linker's cache, LD_LIBRARY_PATH, the usual directories and
 * the executable mappings of running processes name, whatever it is. Each inode once: overlay file
 * systems (containers of one image) show one file under many device numbers, and a uprobe belongs
 * to the file below.
 *
 * Returns 0, what fn returned, or -ENOMEM. What can't be read (no permission, gone) is left out.
 */
int lien_libraries_each(lien_libraries_fn fn, void *arg);

struct lien_maps_entry {
	uint64_t start, end, offset, inode;
	unsigned dev_major, dev_minor;
	bool readable, writable, executable, shared;
	const char *path; /* as in the file: "" if none, may end in " (deleted)", "\012" escapes */
};

typedef int (*lien_maps_fn)(const struct lien_maps_entry *mapping, void *arg);

/*
 * The mappings of one process, also of one whose first thread has ended, in the order of their
 * addresses; pid 0 is the caller. Returns 0,
 * what fn returned, -ESRCH when the process is gone (it may have gone in the middle), -ETIMEDOUT
 * when it holds up whoever reads them (loader/discover/timeout.h), or another -errno.
 */
int lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg);

/* One line of a maps file, changed in place; false if it is not one. Newline or not. */
bool lien_maps_parse(char *line, struct lien_maps_entry *mapping);

/*
 * A path that opens the file of a mapping that lien_maps_read() gave: /proc/PID/map_files, which
 * works for deleted and bind-mounted files too, or else /proc/PID/root/PATH if that is still the
 * same inode. Returns 0 or -ENOENT, -ENAMETOOLONG; -ETIMEDOUT, as above: it may be there.
 */
int lien_maps_open_path(pid_t pid, const struct lien_maps_entry *mapping, char *path, size_t size);

#endif
