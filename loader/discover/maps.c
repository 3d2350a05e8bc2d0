/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/libraries.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "loader/discover/untrusted.h"

static bool take_number(char **at, int base, char end, uint64_t *value)
{
	char *stop;

	/* strtoull() also takes blanks and signs; the kernel writes neither. */
	if (**at < '0' || **at > 'f')
		return false;
	errno = 0;
	*value = strtoull(*at, &stop, base);
	if (stop == *at || errno || *stop != end)
		return false;
	*at = stop + 1;
	return true;
}

bool lien_maps_parse(char *line, struct lien_maps_entry *mapping)
{
	uint64_t major, minor;
	char *at = line;

	line[strcspn(line, "\n")] = 0;
	if (!take_number(&at, 16, '-', &mapping->start) ||
		!take_number(&at, 16, ' ', &mapping->end) || strnlen(at, 5) < 5 || at[4] != ' ')
		return false;
	mapping->readable = at[0] == 'r';
	mapping->writable = at[1] == 'w';
	mapping->executable = at[2] == 'x';
	mapping->shared = at[3] == 's';
	at += 5;
	if (!take_number(&at, 16, ' ', &mapping->offset) || !take_number(&at, 16, ':', &major) ||
		!take_number(&at, 16, ' ', &minor))
		return false;
	mapping->dev_major = major;
	mapping->dev_minor = minor;
	/* Some kernels omit the blank after the inode in mappings without a name. */
	if (*at < '0' || *at > '9')
		return false;
	mapping->inode = strtoull(at, &at, 10);
	mapping->path = at + strspn(at, " ");
	return mapping->end > mapping->start;
}

/* Returns a thread that still has the process's memory, which a first thread that has ended lacks.
 * 0: none. */
static pid_t other_thread(pid_t pid)
{
	struct dirent *entry;
	char path[32];
	pid_t tid = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && (tid == 0 || tid == pid) && (entry = readdir(tasks)))
		tid = atoi(entry->d_name);
	if (tasks)
		closedir(tasks);
	return tid == pid ? 0 : tid;
}

static int read_maps(pid_t pid, bool code, lien_maps_fn fn, void *arg, unsigned *lines)
{
	struct lien_maps_entry mapping;
	char *text = NULL, *rest, *line;
	ssize_t length = lien_untrusted_maps(pid, code, &text);
	int err = 0;

	if (length < 0)
		return length == -ENOENT ? -ESRCH : (int)length;
	rest = text;
	while (!err && (line = strsep(&rest, "\n")) && *line) {
		(*lines)++;
		if (lien_maps_parse(line, &mapping) &&
			(!code || (mapping.executable && mapping.inode)))
			err = fn(&mapping, arg);
	}
	free(text);
	return err;
}

/* Kernel threads have no executable, and are most of a large machine's processes. A first thread
 * that has ended has none either, but others beside it. */
static bool is_kernel_thread(pid_t pid)
{
	char path[32], name;
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/exe", pid);
	if (readlink(path, &name, 1) >= 0 || errno != ENOENT)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	return !stat(path, &st) && st.st_nlink <= 3; /* ".", "..", and one thread */
}

static int read_any_thread(pid_t pid, bool code, lien_maps_fn fn, void *arg)
{
	unsigned lines = 0;
	pid_t tid;
	int err;

	if (pid && is_kernel_thread(pid))
		return 0;
	err = read_maps(pid, code, fn, arg, &lines);
	tid = pid && !err && !lines ? other_thread(pid) : 0;
	return tid ? read_maps(tid, code, fn, arg, &lines) : err;
}

int lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg)
{
	return read_any_thread(pid, false, fn, arg);
}

int lien_maps_read_code(pid_t pid, lien_maps_fn fn, void *arg)
{
	return read_any_thread(pid, true, fn, arg);
}

/*
 * Overlay file systems show another device in maps than in stat(). So compare the inode number, and
 * the device only where both numbers are of the same kind.
 */
static int check_same(const char *path, const struct lien_maps_entry *mapping)
{
	struct stat st;
	int err = lien_untrusted_stat(path, &st);

	if (err == -ETIMEDOUT)
		return err;
	return !err && S_ISREG(st.st_mode) && st.st_ino == mapping->inode ? 0 : -ENOENT;
}

static int open_path(pid_t pid, const struct lien_maps_entry *mapping, char *path, size_t size)
{
	struct stat st;
	int n, err;

	n = snprintf(path, size, "/proc/%d/map_files/%llx-%llx", pid,
		(unsigned long long)mapping->start, (unsigned long long)mapping->end);
	if (n >= (int)size)
		return -ENAMETOOLONG;
	err = lien_untrusted_stat(path, &st);
	if (err == -ETIMEDOUT || (!err && S_ISREG(st.st_mode)))
		return err;
	if (mapping->path[0] != '/')
		return -ENOENT;
	n = snprintf(path, size, "/proc/%d/root%s", pid, mapping->path);
	if (n >= (int)size)
		return -ENAMETOOLONG;
	return check_same(path, mapping);
}

int lien_maps_open_path(pid_t pid, const struct lien_maps_entry *mapping, char *path, size_t size)
{
	int err = open_path(pid, mapping, path, size);
	pid_t tid = err == -ENOENT ? other_thread(pid) : 0;

	return tid ? open_path(tid, mapping, path, size) : err;
}
