/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Files and memory that a job controls: its root directory, its libraries, /proc about its memory.
 * The agent opens such files only here. Only regular files are opened, whatever the job has put in
 * their place, and the check has no side effect: it drains no pipe, starts no device, acquires no
 * terminal.
 *
 * A job can also block its readers: with file systems and pages of memory that it serves itself, or
 * with the lock of its address space. So timeout.h does all work on a process, and all functions
 * here return -ETIMEDOUT if that did not finish in time; try again later.
 *
 * Paths are absolute or below /proc/PID/. Below /proc/PID/root no symbolic link is followed and
 * nothing outside that root is reached; a file named by /proc/PID/map_files is the mapped one.
 */
#ifndef LIEN_UNTRUSTED_H
#define LIEN_UNTRUSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Opens a regular file for reading and fills *st; never waits for another process that has it open.
 * -ESPIPE: not a regular file; -ELOOP: a symbolic link in a job's root; -EWOULDBLOCK: a process
 * holds a lease on it; -errno. */
int lien_untrusted_open(const char *path, struct stat *st);

/* Like stat(), without opening the file. Returns 0 or -errno. */
int lien_untrusted_stat(const char *path, struct stat *st);

/* Reads the beginning of a regular file, as a string. Returns its length, or -errno. */
ssize_t lien_untrusted_read(const char *path, char *text, size_t size);

/* Lists the names in a folder in order, except those that begin with a dot. The caller frees the
 * list, and the names with it. Returns their number, -E2BIG: more than max, or -errno. */
int lien_untrusted_list(const char *folder, char ***names, unsigned max);

/* Reads memory of a process, whole pages from the beginning up to the first missing one. Returns
 * the number of bytes read, or -errno. Goes by pid: check afterwards that it is still the intended
 * process. */
ssize_t lien_untrusted_memory(uint32_t pid, uint64_t address, void *memory, size_t size);

/* Reads /proc/PID/maps, or our own with pid 0; the caller frees the text. `code`: at least the
 * executable mappings of files. Returns its length, or -errno. */
ssize_t lien_untrusted_maps(uint32_t pid, bool code, char **text);

/* Reads /proc/PID/environ, the environment at the start of its program according to the process:
 * consecutive strings, 1 MiB at most. NULL: unreadable. The caller frees. */
char *lien_environ_read(uint32_t pid, size_t *size);
/* Returns the value of a variable in that text, which may be NULL; NULL: not set. */
const char *lien_environ_variable(const char *text, size_t size, const char *name);

#endif
