// SPDX-License-Identifier: BSD-2-Clause
#include "loader/untrusted.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RESOLVE (RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)

/* The length of "/proc/PID/root/", if the path begins with one; else 0. */
static int root_of(const char *path)
{
	int length = 0;

	return sscanf(path, "/proc/%*[0-9]/root%n", &length) == 0 && length && path[length] == '/'
		       ? length + 1
		       : 0;
}

/* A descriptor that names the file and does not open it. */
static int place_of(const char *path, int flags)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE};
	int root_length = root_of(path), root, place;
	char root_path[32];

	if (!root_length) {
		place = open(path, O_PATH | O_CLOEXEC | flags);
		return place < 0 ? -errno : place;
	}
	snprintf(root_path, sizeof(root_path), "%.*s", root_length, path);
	root = open(root_path, O_PATH | O_CLOEXEC | O_DIRECTORY);
	if (root < 0)
		return -errno;
	place = syscall(SYS_openat2, root, path + root_length, &how, sizeof(how));
	if (place < 0)
		place = -errno;
	close(root);
	return place;
}

/* The place itself is opened, whatever the path leads to by now. */
static int open_place(int place, int flags)
{
	char path[40];
	int fd;

	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", place);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags);
	return fd < 0 ? -errno : fd;
}

int lien_untrusted_open(const char *path, struct stat *st)
{
	int place = place_of(path, 0), fd;

	if (place < 0)
		return place;
	if (fstat(place, st))
		fd = -errno;
	else
		fd = S_ISREG(st->st_mode) ? open_place(place, 0) : -ESPIPE;
	close(place);
	return fd;
}

static int stat_place(int place, struct stat *st)
{
	int err;

	if (place < 0)
		return place;
	err = fstat(place, st) ? -errno : 0;
	close(place);
	return err;
}

int lien_untrusted_stat(const char *path, struct stat *st)
{
	return stat_place(place_of(path, 0), st);
}

int lien_untrusted_lstat(const char *path, struct stat *st)
{
	return stat_place(place_of(path, O_NOFOLLOW), st);
}

ssize_t lien_untrusted_read(const char *path, char *text, size_t size)
{
	size_t length = 0;
	struct stat st;
	ssize_t n = 0;
	int fd = lien_untrusted_open(path, &st);

	text[0] = '\0';
	if (fd < 0)
		return fd;
	while (length < size - 1 && (n = read(fd, text + length, size - 1 - length)) > 0)
		length += n;
	if (n < 0)
		n = -errno;
	close(fd);
	text[length] = '\0';
	return n < 0 ? n : (ssize_t)length;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void lien_untrusted_list_free(char **names, int count)
{
	while (count > 0)
		free(names[--count]);
	free(names);
}

static int read_folder(DIR *folder, char **names, unsigned max)
{
	struct dirent *entry;
	unsigned count = 0;

	while ((entry = readdir(folder))) {
		if (entry->d_name[0] == '.')
			continue;
		names[count] = count < max ? strdup(entry->d_name) : NULL;
		if (!names[count]) {
			while (count)
				free(names[--count]);
			return -E2BIG;
		}
		count++;
	}
	qsort(names, count, sizeof(*names), by_name);
	return count;
}

int lien_untrusted_list(const char *path, char ***names, unsigned max)
{
	int place = place_of(path, O_DIRECTORY), fd, count;
	DIR *folder;

	if (place < 0)
		return place;
	fd = open_place(place, O_DIRECTORY);
	close(place);
	if (fd < 0)
		return fd;
	folder = fdopendir(fd);
	*names = calloc(max + 1, sizeof(**names));
	if (folder && *names) {
		count = read_folder(folder, *names, max);
	} else {
		count = -ENOMEM;
		if (!folder)
			close(fd);
	}
	if (folder)
		closedir(folder);
	if (count < 0)
		free(*names);
	return count;
}
