/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/libraries.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "loader/discover/untrusted.h"

/* auditwheel appends a hash to the stem of libraries that it copies into a Python wheel. */
static const struct name {
	const char *stem;
	enum lien_library library;
	bool versioned;
	const char *name;
} names[] = {
	{"libcuda", LIEN_LIB_CUDA, true, "cuda"},
	{"libcudart", LIEN_LIB_CUDART, true, "cudart"},
	{"libnccl", LIEN_LIB_NCCL, true, "nccl"},
	{"liblien-control", LIEN_LIB_CONTROL, false, "control"},
	{"libibverbs", LIEN_LIB_IBVERBS, true, "ibverbs"},
	{"libmlx5", LIEN_LIB_MLX5, true, "mlx5"},
	{"libgdrapi", LIEN_LIB_GDRAPI, true, "gdrapi"},
};

static const char *const directories[] = {
	"/usr/local/nvidia/lib64",
	"/usr/local/cuda/lib64",
	"/usr/lib/x86_64-linux-gnu",
};

#define COUNT(a)	(sizeof(a) / sizeof((a)[0]))
#define WHEEL_HASH	8
#define DELETED		" (deleted)"
#define HEX_DIGITS	"0123456789abcdef"
#define VERSION_SYMBOLS "0123456789."

static bool name_fits(const struct name *name, const char *file, size_t length)
{
	size_t stem = strlen(name->stem);

	if (length < stem || strncmp(file, name->stem, stem))
		return false;
	file += stem;
	length -= stem;
	if (name->versioned && length > 1 + WHEEL_HASH && file[0] == '-' &&
		strspn(file + 1, HEX_DIGITS) == WHEEL_HASH) {
		file += 1 + WHEEL_HASH;
		length -= 1 + WHEEL_HASH;
	}
	if (length < 3 || strncmp(file, ".so", 3))
		return false;
	file += 3;
	length -= 3;
	if (!length)
		return true;
	return name->versioned && length > 1 && file[0] == '.' && isdigit((unsigned char)file[1]) &&
	       strspn(file, VERSION_SYMBOLS) >= length;
}

enum lien_library lien_library_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *file = slash ? slash + 1 : path;
	size_t length = strlen(file), cut = strlen(DELETED);

	if (length > cut && !strcmp(file + length - cut, DELETED))
		length -= cut;
	for (size_t i = 0; i < COUNT(names); i++) {
		if (name_fits(&names[i], file, length))
			return names[i].library;
	}
	return 0;
}

const char *lien_library_name(enum lien_library library)
{
	for (size_t i = 0; i < COUNT(names); i++) {
		if (names[i].library == library)
			return names[i].name;
	}
	return "unknown";
}

char *lien_library_text(const char *path)
{
	char *text = strdup(path), *c;

	for (c = text; c && *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return text;
}

/* --- mappings --------------------------------------------------------------------------------- */

/* Takes a hexadecimal number and the character that ends it. */
static uint64_t take_number(char **at)
{
	uint64_t value = strtoull(*at, at, 16);

	*at += **at != '\0';
	return value;
}

/* Parses a line of a maps file; false if malformed. */
static bool parse_mapping(char *at, struct lien_maps_entry *mapping)
{
	mapping->start = take_number(&at);
	mapping->end = take_number(&at);
	if (mapping->end <= mapping->start || strnlen(at, 5) < 5)
		return false;
	mapping->readable = at[0] == 'r';
	mapping->writable = at[1] == 'w';
	mapping->executable = at[2] == 'x';
	mapping->shared = at[3] == 's';
	at += 5;
	mapping->offset = take_number(&at);
	mapping->dev_major = take_number(&at);
	mapping->dev_minor = take_number(&at);
	/* Some kernels omit the blank after the inode in mappings without a name. */
	mapping->inode = strtoull(at, &at, 10);
	mapping->path = at + strspn(at, " ");
	return true;
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

static int read_maps(pid_t pid, bool code, lien_maps_fn fn, void *arg)
{
	char *text = NULL, *rest, *line;
	struct lien_maps_entry mapping;
	ssize_t length;
	pid_t tid;
	int err = 0;

	if (pid && is_kernel_thread(pid))
		return 0;
	length = lien_untrusted_maps(pid, code, &text);
	tid = pid && !length ? other_thread(pid) : 0;
	if (tid) {
		free(text);
		length = lien_untrusted_maps(tid, code, &text);
	}
	if (length < 0)
		return length == -ENOENT ? -ESRCH : (int)length;
	rest = text;
	while (!err && (line = strsep(&rest, "\n")) && *line)
		if (parse_mapping(line, &mapping) &&
			(!code || (mapping.executable && mapping.inode)))
			err = fn(&mapping, arg);
	free(text);
	return err;
}

int lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg)
{
	return read_maps(pid, false, fn, arg);
}

int lien_maps_read_code(pid_t pid, lien_maps_fn fn, void *arg)
{
	return read_maps(pid, true, fn, arg);
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
	/* Overlay file systems show another device in maps than in stat(): compare inodes alone. */
	err = lien_untrusted_stat(path, &st);
	if (err != -ETIMEDOUT && (err || !S_ISREG(st.st_mode) || st.st_ino != mapping->inode))
		err = -ENOENT;
	return err;
}

int lien_maps_open_path(pid_t pid, const struct lien_maps_entry *mapping, char *path, size_t size)
{
	int err = open_path(pid, mapping, path, size);
	pid_t tid = err == -ENOENT ? other_thread(pid) : 0;

	return tid ? open_path(tid, mapping, path, size) : err;
}

/* --- libraries -------------------------------------------------------------------------------- */

struct seen {
	struct stat st;
	bool overlay;
};

struct search {
	lien_libraries_fn fn;
	void *arg;
	struct seen *seen;
	unsigned count;
	pid_t pid; /* the process whose mappings are being read */
};

/* Is it one file under two names? */
static bool same(const struct seen *a, const struct seen *b)
{
	if (a->st.st_ino != b->st.st_ino)
		return false;
	if (a->st.st_dev == b->st.st_dev)
		return true;
	/* The change time is the real file's: a copy that a container made has another one. */
	return (a->overlay || b->overlay) && a->st.st_size == b->st.st_size &&
	       a->st.st_ctim.tv_sec == b->st.st_ctim.tv_sec &&
	       a->st.st_ctim.tv_nsec == b->st.st_ctim.tv_nsec;
}

/* Returns 1 if new, 0 if seen before, or -ENOMEM. */
static int remember(struct search *search, const char *path, const struct stat *st)
{
	struct seen file = {.st = *st}, *grown;
	struct statfs fs;

	file.overlay = !statfs(path, &fs) && fs.f_type == OVERLAYFS_SUPER_MAGIC;
	for (unsigned i = 0; i < search->count; i++)
		if (same(&search->seen[i], &file))
			return 0;
	grown = reallocarray(search->seen, search->count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	search->seen = grown;
	search->seen[search->count++] = file;
	return 1;
}

static int consider(struct search *search, const char *path, const char *open_path, pid_t pid)
{
	struct lien_library_file file = {.path = path, .open_path = open_path, .pid = pid};
	struct stat st;
	int fresh;

	file.library = lien_library_of(path);
	if (!file.library || lien_untrusted_stat(open_path, &st))
		return 0;
	fresh = remember(search, open_path, &st);
	if (fresh <= 0)
		return fresh;
	file.device = st.st_dev;
	file.inode = st.st_ino;
	return search->fn(&file, search->arg);
}

static int search_directory(struct search *search, const char *directory)
{
	char path[PATH_MAX];
	struct dirent *entry;
	DIR *dir = opendir(directory);
	int err = 0;

	if (!dir)
		return 0;
	while (!err && (entry = readdir(dir))) {
		if (lien_library_of(entry->d_name) &&
			snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name) <
				(int)sizeof(path))
			err = consider(search, path, path, 0);
	}
	closedir(dir);
	return err;
}

static int search_directories(struct search *search)
{
	const char *list = getenv("LD_LIBRARY_PATH");
	char *copy, *rest, *directory;
	int err = 0;

	if (list) {
		rest = copy = strdup(list);
		if (!copy)
			return -ENOMEM;
		while (!err && (directory = strsep(&rest, ":;")))
			err = *directory ? search_directory(search, directory) : 0;
		free(copy);
	}
	for (size_t i = 0; i < COUNT(directories) && !err; i++)
		err = search_directory(search, directories[i]);
	return err;
}

/* Parses lines like "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1". */
static int search_linker_cache(struct search *search)
{
	FILE *file =
		popen("PATH=/sbin:/usr/sbin:$PATH; exec ldconfig -p </dev/null 2>/dev/null", "re");
	char *line = NULL, *path;
	size_t size = 0;
	int err = 0;

	while (file && !err && getline(&line, &size, file) >= 0) {
		line[strcspn(line, "\n")] = 0;
		path = strstr(line, "=> ");
		if (path && strstr(line, "x86-64"))
			err = consider(search, path + 3, path + 3, 0);
	}
	free(line);
	if (file)
		pclose(file);
	return err;
}

static int consider_mapping(const struct lien_maps_entry *mapping, void *arg)
{
	struct search *search = arg;
	char open_path[PATH_MAX];

	if (!mapping->executable || !mapping->inode || !lien_library_of(mapping->path) ||
		lien_maps_open_path(search->pid, mapping, open_path, sizeof(open_path)))
		return 0;
	return consider(search, mapping->path, open_path, search->pid);
}

static int search_processes(struct search *search)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc");
	int err = 0;

	if (!dir)
		return 0;
	while (!err && (entry = readdir(dir))) {
		search->pid = atoi(entry->d_name);
		if (search->pid <= 0)
			continue;
		err = lien_maps_read_code(search->pid, consider_mapping, search);
		/* A process that is gone or unreadable is no error; -ENOMEM is. */
		if (err < 0 && err != -ENOMEM)
			err = 0;
	}
	closedir(dir);
	return err;
}

int lien_libraries_each(lien_libraries_fn fn, void *arg)
{
	struct search search = {.fn = fn, .arg = arg};
	int err;

	err = search_linker_cache(&search);
	if (!err)
		err = search_directories(&search);
	if (!err)
		err = search_processes(&search);
	free(search.seen);
	return err;
}
