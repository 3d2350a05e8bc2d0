/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/libraries.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/discover/untrusted.h"

extern char **environ;

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

/* Identifies a file under all its names. For overlays, "device" is not part of it. */
struct identity {
	dev_t device;
	ino_t inode;
	off_t size;
	struct timespec changed;
	bool overlay;
};

struct search {
	lien_libraries_fn fn;
	void *arg;
	struct identity *seen;
	unsigned count, capacity;
	pid_t pid; /* the process whose mappings are being read */
};

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

static bool same(const struct identity *a, const struct identity *b)
{
	if (a->inode != b->inode)
		return false;
	if (a->device == b->device)
		return true;
	/* The change time is the real file's: a copy that a container made has another one. */
	return (a->overlay || b->overlay) && a->size == b->size &&
	       a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

/* Returns 1 if new, 0 if seen before, or -ENOMEM. */
static int remember(struct search *search, const char *path, const struct stat *st)
{
	struct identity id = {st->st_dev, st->st_ino, st->st_size, st->st_ctim, false};
	struct identity *grown;
	struct statfs fs;

	id.overlay = !statfs(path, &fs) && fs.f_type == OVERLAYFS_SUPER_MAGIC;
	for (unsigned i = 0; i < search->count; i++) {
		if (same(&search->seen[i], &id))
			return 0;
	}
	if (search->count == search->capacity) {
		unsigned capacity = search->capacity ? 2 * search->capacity : 16;

		grown = reallocarray(search->seen, capacity, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		search->seen = grown;
		search->capacity = capacity;
	}
	search->seen[search->count++] = id;
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

/* Returns the read end of a pipe with ldconfig's output, or -1. */
static int spawn_ldconfig(pid_t *pid)
{
	static const char *const programs[] = {"/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"};
	char *argv[] = {"ldconfig", "-p", NULL};
	posix_spawn_file_actions_t actions;
	int ends[2], err = ENOENT;

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	if (!posix_spawn_file_actions_init(&actions)) {
		posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
		posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
		posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
		for (size_t i = 0; i < COUNT(programs) && err; i++)
			err = posix_spawnp(pid, programs[i], &actions, NULL, argv, environ);
		posix_spawn_file_actions_destroy(&actions);
	}
	close(ends[1]);
	if (err) {
		close(ends[0]);
		return -1;
	}
	return ends[0];
}

/* Parses lines like "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1". */
static int search_linker_cache(struct search *search)
{
	char *line = NULL, *path;
	size_t size = 0;
	int err = 0, fd;
	FILE *file;
	pid_t pid;

	fd = spawn_ldconfig(&pid);
	if (fd < 0)
		return 0;
	file = fdopen(fd, "r");
	if (!file) {
		close(fd);
		err = -ENOMEM;
	}
	while (!err && getline(&line, &size, file) >= 0) {
		line[strcspn(line, "\n")] = 0;
		path = strstr(line, "=> ");
		if (path && strstr(line, "x86-64"))
			err = consider(search, path + 3, path + 3, 0);
	}
	free(line);
	if (file)
		fclose(file);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
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
