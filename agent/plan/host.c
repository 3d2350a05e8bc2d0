// SPDX-License-Identifier: BSD-2-Clause
#include "agent/plan/host.h"

#include <errno.h>
#include <limits.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/bytes.h"

/* Left to others of the machine's available memory. */
#define SPARE_BYTES (64ull << 20)

void lien_host_files_find(struct lien_host_files *files)
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *mount;

	*files = (struct lien_host_files){.proc = "/proc"};
	while (mounts && (mount = getmntent(mounts))) {
		if (!files->cgroup2 && !strcmp(mount->mnt_type, "cgroup2"))
			files->cgroup2 = strdup(mount->mnt_dir);
		if (!files->cgroup1 && !strcmp(mount->mnt_type, "cgroup") &&
			hasmntopt(mount, "memory"))
			files->cgroup1 = strdup(mount->mnt_dir);
	}
	if (mounts)
		endmntent(mounts);
}

void lien_host_files_free(struct lien_host_files *files)
{
	free(files->cgroup2);
	free(files->cgroup1);
}

/* Reads the number that follows `name` in a file, or the whole file if that is "". Returns false if
 * there is no number, as for "max". */
static bool read_number(
	const char *folder, const char *file, const char *name, unsigned long long *value)
{
	char path[PATH_MAX], line[256];
	size_t length = strlen(name);
	bool found = false;
	FILE *stream;

	if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path))
		return false;
	stream = fopen(path, "re");
	while (stream && !found && fgets(line, sizeof(line), stream))
		found = !strncmp(line, name, length) && sscanf(line + length, "%llu", value) == 1;
	if (stream)
		fclose(stream);
	return found;
}

static int refuse(char *error, size_t size, const char *where, uint64_t need, uint64_t left)
{
	snprintf(error, size,
		"host memory: %s more is needed, %s has %s left: free some, or move less (--owner, "
		"--pid)",
		lien_bytes(need).text, where, lien_bytes(left).text);
	return -ENOMEM;
}

/* Returns UINT64_MAX if that is not known. */
static uint64_t machine_room(const struct lien_host_files *files)
{
	unsigned long long available;

	if (!files->proc || !read_number(files->proc, "meminfo", "MemAvailable:", &available))
		return UINT64_MAX;
	available <<= 10;
	return available > SPARE_BYTES ? available - SPARE_BYTES : 0;
}

/* The two versions of cgroups differ only in names for this purpose. */
struct hierarchy {
	const char *mount;
	const char *marker; /* marks its line in /proc/PID/cgroup */
	const char *limit, *usage;
	const char *cache[2]; /* in memory.stat: what the kernel reclaims first */
};

/* Returns the process's cgroup as a path below the mount; "": it has none. */
static void path_of(const struct lien_host_files *files, const struct hierarchy *hierarchy,
	uint32_t pid, char path[PATH_MAX])
{
	char name[PATH_MAX], line[PATH_MAX + 64], *at, *second;
	FILE *stream;

	path[0] = '\0';
	snprintf(name, sizeof(name), "%s/%u/cgroup", files->proc, pid);
	stream = fopen(name, "re");
	while (stream && !path[0] && fgets(line, sizeof(line), stream)) {
		line[strcspn(line, "\n")] = '\0';
		at = strchr(line, ':');
		second = at ? strchr(at + 1, ':') : NULL;
		if (!second)
			continue;
		*second = '\0';
		/* "0::/path", "9:cpu,memory:/path"; outside our namespace: "/../path". */
		if ((hierarchy->marker[0] ? !strstr(at + 1, hierarchy->marker) : at[1] != '\0') ||
			strstr(second + 1, "/.."))
			continue;
		snprintf(path, PATH_MAX, "%s", second + 1);
	}
	if (stream)
		fclose(stream);
}

static bool below(const char *path, const char *group)
{
	size_t length = strlen(group);

	return !strncmp(path, group, length) && (path[length] == '/' || !path[length]);
}

/* Returns false if the cgroup sets no limit. */
static bool room_in(const struct hierarchy *hierarchy, const char *group, uint64_t *left)
{
	unsigned long long limit, usage, cached;
	char folder[2 * PATH_MAX];
	unsigned i;

	snprintf(folder, sizeof(folder), "%s%s", hierarchy->mount, group);
	if (!read_number(folder, hierarchy->limit, "", &limit) ||
		!read_number(folder, hierarchy->usage, "", &usage))
		return false;
	for (i = 0; i < 2; i++)
		if (read_number(folder, "memory.stat", hierarchy->cache[i], &cached))
			usage -= cached < usage ? cached : usage;
	*left = limit > usage ? limit - usage : 0;
	return true;
}

/* Makes it the cgroup above. Returns false after the mount, "", which in a container may be a
 * cgroup with a limit. */
static bool go_up(char *group)
{
	char *slash = strrchr(group, '/');

	if (slash)
		*slash = '\0';
	return slash;
}

/* Checks one cgroup against all processes in it or below it. */
static int check_group(const struct hierarchy *hierarchy, const struct lien_host_need *needs,
	char (*paths)[PATH_MAX], unsigned count, const char *group, char *error, size_t error_size)
{
	uint64_t need = 0, left;
	char where[PATH_MAX + 64];
	unsigned i;

	if (!room_in(hierarchy, group, &left))
		return 0;
	for (i = 0; i < count; i++)
		if (paths[i][0] && below(paths[i], group))
			need += needs[i].bytes;
	if (need <= left)
		return 0;
	snprintf(where, sizeof(where), "the memory cgroup %.200s", group[0] ? group : "/");
	return refuse(error, error_size, where, need, left);
}

/* The processes of a job share most cgroups, and reading one can take the kernel a millisecond. */
static bool is_checked(const struct lien_host_need *needs, char (*paths)[PATH_MAX],
	unsigned checked, const char *group)
{
	unsigned i;

	for (i = 0; i < checked; i++)
		if (needs[i].bytes && paths[i][0] && below(paths[i], group))
			return true;
	return false;
}

static int check_hierarchy(const struct lien_host_files *files, const struct hierarchy *hierarchy,
	const struct lien_host_need *needs, unsigned count, char *error, size_t error_size)
{
	char(*paths)[PATH_MAX] = calloc(count, sizeof(*paths)), group[PATH_MAX];
	unsigned i;
	int err = 0;

	if (!paths) {
		snprintf(error, error_size, "out of memory");
		return -ENOMEM;
	}
	for (i = 0; i < count; i++)
		path_of(files, hierarchy, needs[i].pid, paths[i]);
	for (i = 0; i < count && !err; i++) {
		if (!needs[i].bytes || !paths[i][0])
			continue;
		memcpy(group, paths[i], sizeof(group));
		do {
			if (is_checked(needs, paths, i, group))
				break;
			err = check_group(hierarchy, needs, paths, count, group, error, error_size);
		} while (!err && go_up(group));
	}
	free(paths);
	return err;
}

/* The two versions of cgroups, as far as they are mounted. */
static unsigned hierarchies(const struct lien_host_files *files, struct hierarchy *list)
{
	unsigned n = 0;

	if (files->cgroup2)
		list[n++] = (struct hierarchy){files->cgroup2, "", "memory.max", "memory.current",
			{"inactive_file ", "active_file "}};
	if (files->cgroup1)
		list[n++] = (struct hierarchy){files->cgroup1, "memory", "memory.limit_in_bytes",
			"memory.usage_in_bytes", {"total_inactive_file ", "total_active_file "}};
	return n;
}

int lien_host_check(const struct lien_host_files *files, const struct lien_host_need *needs,
	unsigned count, char *error, size_t error_size)
{
	struct hierarchy list[2];
	unsigned n = hierarchies(files, list), i;
	uint64_t need = 0, left;
	int err = 0;

	for (i = 0; i < count; i++)
		need += needs[i].bytes;
	left = need ? machine_room(files) : 0;
	if (need > left)
		return refuse(error, error_size, "the machine", need, left);
	for (i = 0; i < n && !err; i++)
		err = check_hierarchy(files, &list[i], needs, count, error, error_size);
	return err;
}

uint64_t lien_host_room(const struct lien_host_files *files, uint32_t pid)
{
	uint64_t room = machine_room(files), left;
	struct hierarchy list[2];
	unsigned n = hierarchies(files, list), i;
	char group[PATH_MAX];

	for (i = 0; i < n; i++) {
		path_of(files, &list[i], pid, group);
		if (!group[0])
			continue;
		do {
			if (room_in(&list[i], group, &left) && left < room)
				room = left;
		} while (go_up(group));
	}
	return room;
}

bool lien_host_limited(const struct lien_host_files *files, uint32_t pid)
{
	unsigned long long limit, total = 1ull << 60; /* v1 has a number for no limit, too */
	char group[PATH_MAX], folder[2 * PATH_MAX];
	struct hierarchy list[2];
	unsigned n = hierarchies(files, list), i;

	if (files->proc && read_number(files->proc, "meminfo", "MemTotal:", &total))
		total <<= 10;
	for (i = 0; i < n; i++) {
		path_of(files, &list[i], pid, group);
		if (!group[0])
			continue;
		do {
			snprintf(folder, sizeof(folder), "%s%s", list[i].mount, group);
			if (read_number(folder, list[i].limit, "", &limit) && limit < total)
				return true;
		} while (go_up(group));
	}
	return false;
}
