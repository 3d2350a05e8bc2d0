/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Files and memory that a job controls: its root directory, its libraries, what /proc tells of its
 * memory. The agent opens such files nowhere else. Whatever the job has put in the place of a file,
 * nothing but a regular file is opened, and finding out what it is has no effect on it: pipes are
 * not drained, devices not started, terminals not acquired.
 *
 * A job can also hold up whoever looks at these: with file systems and pages of memory that it
 * serves itself, or by the lock of its address space. So what concerns a process is done by
 * timeout.h, and all of these return -ETIMEDOUT where that has not been possible in time; try again
 * later.
 *
 * Paths are those of /proc/PID/... or absolute. Below /proc/PID/root no symbolic link is followed
 * and nothing outside of that root is reached; a file that is named by /proc/PID/map_files is the
 * one that is mapped.
 */
#ifndef LIEN_UNTRUSTED_H
#define LIEN_UNTRUSTED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* Opens a regular file for reading and says what it is; never waits for another process that has
 * it. -ESPIPE: not a regular file; -ELOOP: a symbolic link in a job's root; -EWOULDBLOCK: a process
 * holds a lease on it; -errno. */
int lien_untrusted_open(const char *path, struct stat *st);

/* What is there, without opening it. 0 or -errno. */
int lien_untrusted_stat(const char *path, struct stat *st);

/* Like lstat(): the last component may be a symbolic link. */
int lien_untrusted_lstat(const char *path, struct stat *st);

/* The beginning of a regular file, as a string. Its length, or -errno. */
ssize_t lien_untrusted_read(const char *path, char *text, size_t size);

/* The names in a folder, but for those that begin with a dot, in order; each and the list are the
 * caller's to free. How many, -E2BIG: more than max, or -errno. */
int lien_untrusted_list(const char *folder, char ***names, unsigned max);
void lien_untrusted_list_free(char **names, int count);

/* Memory of a process, whole pages from the beginning as far as there are any. How much was read,
 * or -errno. By pid: compare afterwards whether it is still the process that was meant. */
ssize_t lien_untrusted_memory(uint32_t pid, uint64_t address, void *memory, size_t size);

/* The text of /proc/PID/maps, or of our own with pid 0; the caller frees. Its length, or -errno. */
ssize_t lien_untrusted_maps(uint32_t pid, char **text);

#endif
