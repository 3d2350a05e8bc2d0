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
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "loader/discover/timeout.h"

#define RESOLVE	    (RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
#define PAGE	    4096u
#define PAGES	    16 /* pages of memory per read */
#define MAPS_MAX    (64u << 20)
#define ENVIRON_MAX (1u << 20) /* a process can claim as much as it has memory */

/* A question about a job's files or memory, and its answer: all the data that the thread uses. */
struct question {
	struct lien_timeout_work work;
	ssize_t (*ask)(struct question *question); /* returns the result, or -errno */
	char path[PATH_MAX];
	uint32_t pid;
	uint64_t address;
	size_t size;
	bool code;
	ssize_t result;
	struct stat st;
	char **names;
	char *text;
};

/* --- in the thread ---------------------------------------------------------------------------- */

/* Returns a descriptor that names the file without opening it (O_PATH). */
static int place_of(const char *path, int flags)
{
	struct open_how how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = RESOLVE};
	int length = 0, root, place;
	char root_path[32];

	sscanf(path, "/proc/%*[0-9]/root%n", &length);
	if (!length || path[length] != '/') {
		place = open(path, O_PATH | O_CLOEXEC | flags);
		return place < 0 ? -errno : place;
	}
	snprintf(root_path, sizeof(root_path), "%.*s", length + 1, path);
	root = open(root_path, O_PATH | O_CLOEXEC | O_DIRECTORY);
	if (root < 0)
		return -errno;
	place = syscall(SYS_openat2, root, path + length + 1, &how, sizeof(how));
	if (place < 0)
		place = -errno;
	close(root);
	return place;
}

/* Opens a regular file or, with O_DIRECTORY, a folder. */
static int open_file(const char *path, int flags, struct stat *st)
{
	int place = place_of(path, flags), fd;
	char same[40]; /* the place itself, wherever the path leads by now */

	if (place < 0)
		return place;
	snprintf(same, sizeof(same), "/proc/thread-self/fd/%d", place);
	if (fstat(place, st))
		fd = -errno;
	else if (!S_ISREG(st->st_mode) && !(flags & O_DIRECTORY))
		fd = -ESPIPE;
	else if ((fd = open(same, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags)) < 0)
		fd = -errno;
	close(place);
	return fd;
}

static ssize_t ask_open(struct question *question)
{
	int fd = open_file(question->path, 0, &question->st);

	question->work.fds[0] = fd;
	question->work.fds_count = fd >= 0;
	return fd < 0 ? fd : 0;
}

static ssize_t ask_stat(struct question *question)
{
	int place = place_of(question->path, 0), err;

	if (place < 0)
		return place;
	err = fstat(place, &question->st) ? -errno : 0;
	close(place);
	return err;
}

/* Reads as much as fits. */
static ssize_t ask_read(struct question *question)
{
	int fd = open_file(question->path, 0, &question->st);
	size_t length = 0;
	ssize_t n = 0;

	if (fd < 0)
		return fd;
	question->text = malloc(question->size + 1);
	while (question->text && length < question->size &&
		(n = read(fd, question->text + length, question->size - length)) > 0)
		length += n;
	n = n < 0 ? -errno : (ssize_t)length;
	close(fd);
	if (!question->text)
		return -ENOMEM;
	question->text[length] = '\0';
	return n;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int read_folder(DIR *folder, char **names, unsigned max)
{
	char *end = (char *)(names + max);
	struct dirent *entry;
	unsigned count = 0;

	while ((entry = readdir(folder))) {
		if (entry->d_name[0] == '.')
			continue;
		if (count == max || strlen(entry->d_name) > NAME_MAX)
			return -E2BIG;
		names[count++] = end;
		end = stpcpy(end, entry->d_name) + 1;
	}
	qsort(names, count, sizeof(*names), by_name);
	return count;
}

static ssize_t ask_list(struct question *question)
{
	int fd = open_file(question->path, O_DIRECTORY, &question->st);
	DIR *folder = fd < 0 ? NULL : fdopendir(fd);
	ssize_t count = -ENOMEM;

	if (fd < 0)
		return fd;
	/* The names are behind the list. */
	question->names = malloc(question->size * (sizeof(*question->names) + NAME_MAX + 1));
	if (folder && question->names)
		count = read_folder(folder, question->names, question->size);
	if (folder)
		closedir(folder);
	else
		close(fd);
	return count;
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

static ssize_t ask_memory(struct question *question)
{
	ssize_t done = 0, got = 1;

	question->text = malloc(question->size);
	if (!question->text)
		return -ENOMEM;
	while (done < (ssize_t)question->size && got > 0) {
		got = read_pages(question->pid, question->address + done, question->text + done,
			question->size - done);
		if (got > 0)
			done += got;
	}
	return done ? done : got;
}

/* linux/fs.h of 6.11 and later, in words of our own: PROCMAP_QUERY. */
enum {
	QUERY_READABLE = 1,
	QUERY_WRITABLE = 2,
	QUERY_EXECUTABLE = 4,
	QUERY_SHARED = 8,
	QUERY_THIS_OR_NEXT = 16,
	QUERY_OF_FILE = 32,
};

struct query {
	uint64_t size, flags, address;
	/* the answer */
	uint64_t start, end, of, page_size, offset, inode;
	uint32_t major, minor;
	uint32_t name_size, build_id_size; /* room, and then what there is */
	uint64_t name_address, build_id_address;
};

#define QUERY _IOWR('f', 17, struct query)

_Static_assert(sizeof(struct query) == 104 && QUERY == 0xc0686611, "as the kernel has it");

/* Writes the executable mappings of files, each in a line as /proc/PID/maps has it. -ENOTTY: this
 * kernel cannot (before 6.11); -ESRCH: the process has no memory any more. */
static int query_maps(int fd, FILE *out)
{
	struct query found = {.end = 0};
	char name[PATH_MAX];

	while (ftell(out) < (long)MAPS_MAX) {
		found = (struct query){.size = sizeof(found),
			.flags = QUERY_THIS_OR_NEXT | QUERY_OF_FILE | QUERY_EXECUTABLE,
			.address = found.end,
			.name_size = sizeof(name),
			.name_address = (uintptr_t)name};
		name[0] = '\0';
		if (ioctl(fd, QUERY, &found))
			return errno == ENOENT ? 0 : -errno;
		fprintf(out, "%llx-%llx %c%c%c%c %08llx %02x:%02x %llu ",
			(unsigned long long)found.start, (unsigned long long)found.end,
			found.of & QUERY_READABLE ? 'r' : '-',
			found.of & QUERY_WRITABLE ? 'w' : '-',
			found.of & QUERY_EXECUTABLE ? 'x' : '-',
			found.of & QUERY_SHARED ? 's' : 'p', (unsigned long long)found.offset,
			found.major, found.minor, (unsigned long long)found.inode);
		for (const char *c = name; *c; c++)
			if (*c == '\n')
				fputs("\\012", out);
			else
				fputc(*c, out);
		fputc('\n', out);
	}
	return -E2BIG;
}

static int copy_maps(int fd, FILE *out)
{
	char piece[1 << 16];
	ssize_t n;

	while ((n = read(fd, piece, sizeof(piece))) > 0)
		if (ftell(out) > (long)MAPS_MAX || fwrite(piece, 1, n, out) != (size_t)n)
			return -E2BIG;
	return n < 0 ? -errno : 0;
}

static int write_text(struct question *question, int fd, int (*write)(int fd, FILE *out))
{
	FILE *out;
	int err;

	free(question->text);
	question->text = NULL;
	out = open_memstream(&question->text, &question->size);
	if (!out)
		return -ENOMEM;
	err = write(fd, out);
	return fclose(out) && !err ? -ENOMEM : err;
}

static ssize_t ask_maps(struct question *question)
{
	int fd = open(question->path, O_RDONLY | O_CLOEXEC), err = -ENOTTY;

	if (fd < 0)
		return -errno;
	if (question->code)
		err = write_text(question, fd, query_maps);
	if (err)
		err = write_text(question, fd, copy_maps);
	close(fd);
	return err ? err : (ssize_t)question->size;
}

static void run(struct lien_timeout_work *work)
{
	struct question *question = (struct question *)work;

	question->result = question->ask(question);
}

static void drop(struct lien_timeout_work *work)
{
	struct question *question = (struct question *)work;

	free(question->names);
	free(question->text);
	free(question);
}

/* --- the caller ------------------------------------------------------------------------------- */

static struct question *question_new(
	ssize_t (*ask)(struct question *question), const char *path, size_t size)
{
	struct question *question = calloc(1, sizeof(*question));

	if (!question)
		return NULL;
	question->work.run = run;
	question->work.drop = drop;
	question->ask = ask;
	question->size = size;
	if (snprintf(question->path, sizeof(question->path), "%s", path) >= PATH_MAX) {
		free(question);
		return NULL;
	}
	if (sscanf(path, "/proc/%u/", &question->pid) != 1)
		question->pid = 0;
	return question;
}

/* Returns the result. On -ENOMEM and -ETIMEDOUT the question may be gone, and is NULL then. */
static ssize_t answer(struct question **question)
{
	if (!*question)
		return -ENOMEM;
	if (lien_timeout_run(&(*question)->work, (*question)->pid))
		return (*question)->result;
	*question = NULL;
	return -ETIMEDOUT;
}

int lien_untrusted_open(const char *path, struct stat *st)
{
	struct question *question = question_new(ask_open, path, 0);
	int fd = answer(&question);

	if (!question)
		return fd;
	*st = question->st;
	if (!fd) /* this process may have lacked room for it */
		fd = question->work.fds_count ? question->work.fds[0] : -EMFILE;
	drop(&question->work);
	return fd;
}

int lien_untrusted_stat(const char *path, struct stat *st)
{
	struct question *question = question_new(ask_stat, path, 0);
	int err = answer(&question);

	if (!question)
		return err;
	*st = question->st;
	drop(&question->work);
	return err;
}

/* Gives the caller the answer's text. On error there is none. */
static ssize_t ask_text(struct question *question, char **text)
{
	ssize_t n = answer(&question);

	*text = NULL;
	if (n >= 0) {
		*text = question->text;
		question->text = NULL;
	}
	if (question)
		drop(&question->work);
	return n;
}

ssize_t lien_untrusted_read(const char *path, char *text, size_t size)
{
	char *read;
	ssize_t n = ask_text(question_new(ask_read, path, size - 1), &read);

	if (n > 0)
		memcpy(text, read, n);
	text[n > 0 ? n : 0] = '\0';
	free(read);
	return n;
}

ssize_t lien_untrusted_memory(uint32_t pid, uint64_t address, void *memory, size_t size)
{
	struct question *question = question_new(ask_memory, "", size);
	char *read;
	ssize_t n;

	if (question) {
		question->pid = pid;
		question->address = address;
	}
	n = ask_text(question, &read);
	if (n > 0)
		memcpy(memory, read, n);
	free(read);
	return n;
}

int lien_untrusted_list(const char *path, char ***names, unsigned max)
{
	struct question *question = question_new(ask_list, path, max);
	int count = answer(&question);

	if (count >= 0) {
		*names = question->names;
		question->names = NULL;
	}
	if (question)
		drop(&question->work);
	return count;
}

ssize_t lien_untrusted_maps(uint32_t pid, bool code, char **text)
{
	struct question *question;
	char path[32] = "/proc/self/maps";

	if (pid)
		snprintf(path, sizeof(path), "/proc/%u/maps", pid);
	question = question_new(ask_maps, path, 0);
	if (question)
		question->code = code;
	return ask_text(question, text);
}

char *lien_environ_read(uint32_t pid, size_t *size)
{
	char path[32], *text;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%u/environ", pid);
	n = ask_text(question_new(ask_read, path, ENVIRON_MAX), &text);
	*size = n < 0 ? 0 : n;
	return text;
}

const char *lien_environ_variable(const char *text, size_t size, const char *name)
{
	size_t length = strlen(name);
	const char *at;

	for (at = text; at && at < text + size; at += strlen(at) + 1)
		if (!strncmp(at, name, length) && at[length] == '=')
			return at + length + 1;
	return NULL;
}
