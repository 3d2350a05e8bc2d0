// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/untrusted.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "loader/discover/maps_query.h"
#include "loader/discover/timeout.h"

#define RESOLVE	 (RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
#define PAGE	 4096u
#define PAGES	 16 /* pages of memory per read */
#define MAPS_MAX (64u << 20)

/* A question about a job's files or memory, and its answer: all the data that the thread uses. */
struct question {
	struct lien_timeout_work work;
	void (*ask)(struct question *question);
	char path[PATH_MAX];
	uint32_t pid;
	uint64_t address;
	size_t size;
	int flags;
	ssize_t result;
	struct stat st;
	char **names;
	char *text;
};

/* --- in the thread ---------------------------------------------------------------------------- */

/* Returns the length of "/proc/PID/root/" if the path begins with it, otherwise 0. */
static int root_of(const char *path)
{
	int length = 0;

	return sscanf(path, "/proc/%*[0-9]/root%n", &length) == 0 && length && path[length] == '/'
		       ? length + 1
		       : 0;
}

/* Returns a descriptor that names the file without opening it (O_PATH). */
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

/* Opens the place itself, wherever the path leads by now. */
static int open_place(int place, int flags)
{
	char path[40];
	int fd;

	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", place);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags);
	return fd < 0 ? -errno : fd;
}

static int open_file(const char *path, struct stat *st)
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

static void ask_open(struct question *question)
{
	int fd = open_file(question->path, &question->st);

	question->result = fd < 0 ? fd : 0;
	question->work.fds[0] = fd;
	question->work.fds_count = fd >= 0;
}

static void ask_stat(struct question *question)
{
	int place = place_of(question->path, question->flags);

	question->result = place;
	if (place < 0)
		return;
	question->result = fstat(place, &question->st) ? -errno : 0;
	close(place);
}

/* Reads as much as fits. */
static ssize_t read_all(int fd, char *text, size_t size)
{
	size_t length = 0;
	ssize_t n = 0;

	while (length < size && (n = read(fd, text + length, size - length)) > 0)
		length += n;
	return n < 0 ? -errno : (ssize_t)length;
}

static void ask_read(struct question *question)
{
	int fd = open_file(question->path, &question->st);

	question->result = fd;
	if (fd < 0)
		return;
	question->text = malloc(question->size);
	question->result = question->text ? read_all(fd, question->text, question->size) : -ENOMEM;
	close(fd);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
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

static int open_folder(const char *path)
{
	int place = place_of(path, O_DIRECTORY), fd;

	if (place < 0)
		return place;
	fd = open_place(place, O_DIRECTORY);
	close(place);
	return fd;
}

static void ask_list(struct question *question)
{
	int fd = open_folder(question->path);
	DIR *folder;

	question->result = fd;
	if (fd < 0)
		return;
	folder = fdopendir(fd);
	question->names = calloc(question->size + 1, sizeof(*question->names));
	if (folder && question->names)
		question->result = read_folder(folder, question->names, question->size);
	else
		question->result = -ENOMEM;
	if (folder)
		closedir(folder);
	else
		close(fd);
}

/* Reads page by page, up to the first page that fails. */
static ssize_t read_pages(uint32_t pid, uint64_t address, char *memory, size_t size)
{
	size_t asked = 0, piece;
	struct iovec from[PAGES], to;
	unsigned n;
	ssize_t got;

	for (n = 0; n < PAGES && asked < size; n++) {
		piece = PAGE - (address + asked) % PAGE;
		if (piece > size - asked)
			piece = size - asked;
		from[n] = (struct iovec){(void *)(uintptr_t)(address + asked), piece};
		asked += piece;
	}
	to = (struct iovec){memory, asked};
	got = process_vm_readv(pid, &to, 1, from, n, 0);
	return got < 0 ? -errno : got;
}

static void ask_memory(struct question *question)
{
	ssize_t done = 0, got = 1;

	question->text = malloc(question->size);
	if (!question->text) {
		question->result = -ENOMEM;
		return;
	}
	while (done < (ssize_t)question->size && got > 0) {
		got = read_pages(question->pid, question->address + done, question->text + done,
			question->size - done);
		if (got > 0)
			done += got;
	}
	question->result = done ? done : got;
}

static void ask_maps(struct question *question)
{
	int fd = open(question->path, O_RDONLY | O_CLOEXEC);
	size_t room = 1 << 16, length = 0;
	bool asks = true;
	char *grown;
	ssize_t n;

	question->result = fd < 0 ? -errno : 0;
	if (fd >= 0 && question->flags) {
		question->result = lien_maps_query(fd, &question->text, MAPS_MAX);
		asks = question->result < 0;
	}
	while (fd >= 0 && asks) {
		grown = room <= MAPS_MAX ? realloc(question->text, room) : NULL;
		if (!grown) {
			question->result = -E2BIG;
			break;
		}
		question->text = grown;
		n = read_all(fd, grown + length, room - 1 - length);
		question->result = n;
		if (n < 0)
			break;
		length += n;
		question->result = length;
		if (length < room - 1)
			break;
		room *= 2;
	}
	if (fd >= 0)
		close(fd);
}

static void run(struct lien_timeout_work *work)
{
	struct question *question = (struct question *)work;

	question->ask(question);
}

static void drop(struct lien_timeout_work *work)
{
	struct question *question = (struct question *)work;

	if (question->names)
		lien_untrusted_list_free(question->names, question->result);
	free(question->text);
	free(question);
}

/* --- the caller ------------------------------------------------------------------------------- */

static struct question *question_new(void (*ask)(struct question *question), const char *path)
{
	struct question *question = calloc(1, sizeof(*question));

	if (!question)
		return NULL;
	question->work.run = run;
	question->work.drop = drop;
	question->ask = ask;
	if (path && snprintf(question->path, sizeof(question->path), "%s", path) >= PATH_MAX) {
		free(question);
		return NULL;
	}
	if (!path || sscanf(path, "/proc/%u/", &question->pid) != 1)
		question->pid = 0;
	return question;
}

/* Returns the question with its answer, or NULL: it took too long. */
static struct question *answered(struct question *question)
{
	return lien_timeout_run(&question->work, question->pid) ? question : NULL;
}

int lien_untrusted_open(const char *path, struct stat *st)
{
	struct question *question = question_new(ask_open, path);
	int fd;

	if (!question)
		return -ENOMEM;
	question = answered(question);
	if (!question)
		return -ETIMEDOUT;
	*st = question->st;
	fd = question->result;
	if (!fd) /* this process may have lacked room for it */
		fd = question->work.fds_count ? question->work.fds[0] : -EMFILE;
	drop(&question->work);
	return fd;
}

static int stat_by(const char *path, struct stat *st, int flags)
{
	struct question *question = question_new(ask_stat, path);
	int err;

	if (!question)
		return -ENOMEM;
	question->flags = flags;
	question = answered(question);
	if (!question)
		return -ETIMEDOUT;
	*st = question->st;
	err = question->result;
	drop(&question->work);
	return err;
}

int lien_untrusted_stat(const char *path, struct stat *st)
{
	return stat_by(path, st, 0);
}

int lien_untrusted_lstat(const char *path, struct stat *st)
{
	return stat_by(path, st, O_NOFOLLOW);
}

/* Copies the answer's text, if any. Frees the question. */
static ssize_t take_text(struct question *question, void *to)
{
	ssize_t n;

	question = answered(question);
	if (!question)
		return -ETIMEDOUT;
	n = question->result;
	if (n > 0)
		memcpy(to, question->text, n);
	drop(&question->work);
	return n;
}

ssize_t lien_untrusted_read(const char *path, char *text, size_t size)
{
	struct question *question = question_new(ask_read, path);
	ssize_t n;

	text[0] = '\0';
	if (!question)
		return -ENOMEM;
	question->size = size - 1;
	n = take_text(question, text);
	text[n > 0 ? n : 0] = '\0';
	return n;
}

ssize_t lien_untrusted_memory(uint32_t pid, uint64_t address, void *memory, size_t size)
{
	struct question *question = question_new(ask_memory, NULL);

	if (!question)
		return -ENOMEM;
	question->pid = pid;
	question->address = address;
	question->size = size;
	return take_text(question, memory);
}

void lien_untrusted_list_free(char **names, int count)
{
	while (count > 0)
		free(names[--count]);
	free(names);
}

int lien_untrusted_list(const char *path, char ***names, unsigned max)
{
	struct question *question = question_new(ask_list, path);
	int count;

	if (!question)
		return -ENOMEM;
	question->size = max;
	question = answered(question);
	if (!question)
		return -ETIMEDOUT;
	count = question->result;
	if (count >= 0) {
		*names = question->names;
		question->names = NULL;
	}
	drop(&question->work);
	return count;
}

ssize_t lien_untrusted_maps(uint32_t pid, bool code, char **text)
{
	struct question *question = question_new(ask_maps, NULL);
	ssize_t n;

	if (!question)
		return -ENOMEM;
	question->pid = pid;
	question->flags = code;
	if (pid)
		snprintf(question->path, sizeof(question->path), "/proc/%u/maps", pid);
	else
		strcpy(question->path, "/proc/self/maps");
	question = answered(question);
	if (!question)
		return -ETIMEDOUT;
	n = question->result;
	if (n >= 0) {
		*text = question->text;
		(*text)[n] = '\0';
		question->text = NULL;
	}
	drop(&question->work);
	return n;
}
