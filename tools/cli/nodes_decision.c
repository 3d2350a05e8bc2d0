// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/nodes_decision.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int default_directory(char *path, size_t size)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	const struct passwd *user;
	int n;

	if (state && *state == '/') {
		n = snprintf(path, size, "%s/lien", state);
	} else {
		user = home && *home ? NULL : getpwuid(geteuid());
		n = snprintf(path, size, "%s/.local/state/lien",
			user   ? user->pw_dir
			: home ? home
			       : "");
	}
	return n > 0 && (size_t)n < size ? 0 : -ENAMETOOLONG;
}

int lien_decision_directory(const char *state, char *path, size_t size)
{
	struct stat st;
	char *slash;
	int err = 0;

	if (state && strlen(state) >= size)
		return -ENAMETOOLONG;
	if (state)
		strcpy(path, state);
	else
		err = default_directory(path, size);
	for (slash = path; !err && (slash = strchr(slash + 1, '/'));) {
		*slash = '\0';
		if (mkdir(path, 0700) && errno != EEXIST)
			err = -errno;
		*slash = '/';
	}
	if (!err && mkdir(path, 0700) && errno != EEXIST)
		err = -errno;
	if (!err && stat(path, &st))
		err = -errno;
	else if (!err && !S_ISDIR(st.st_mode))
		err = -ENOTDIR;
	return err ? err : access(path, W_OK) ? -errno : 0;
}

static const char decided[] = ".json", draft[] = ".json.new";

static char *path_of(const char *directory, const char *id, const char *end)
{
	char *path = NULL;

	return asprintf(&path, "%s/%s%s", directory, id, end) < 0 ? NULL : path;
}

static int sync_directory(const char *directory)
{
	const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const int err = fd < 0 || fsync(fd) ? -errno : 0;

	if (fd >= 0)
		close(fd);
	return err;
}

int lien_decision_write(const char *directory, const char *id, const json_t *decision)
{
	char *path = path_of(directory, id, draft);
	char *text = json_dumps(decision, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
	FILE *file = path && text ? fopen(path, "wex") : NULL;
	int err = file ? 0 : path && text ? -errno : -ENOMEM;

	if (!err && (fprintf(file, "%s\n", text) < 0 || fflush(file) || fsync(fileno(file))))
		err = -errno;
	if (file && fclose(file) && !err)
		err = -errno;
	if (err && file)
		unlink(path);
	free(text);
	free(path);
	return err;
}

int lien_decision_publish(const char *directory, const char *id)
{
	char *from = path_of(directory, id, draft), *to = path_of(directory, id, decided);
	int err = from && to ? 0 : -ENOMEM;

	if (!err && rename(from, to))
		err = -errno;
	if (!err)
		err = sync_directory(directory);
	free(from);
	free(to);
	return err;
}

void lien_decision_remove(const char *directory, const char *id)
{
	char *path = path_of(directory, id, decided), *unpublished = path_of(directory, id, draft);

	if (path)
		unlink(path);
	if (unpublished)
		unlink(unpublished);
	free(path);
	free(unpublished);
}

static bool ends_with(const char *name, const char *end)
{
	const size_t length = strlen(name), size = strlen(end);

	return length > size && !strcmp(name + length - size, end);
}

static bool are_among(const json_t *names, const json_t *nodes)
{
	const json_t *name, *node;
	size_t i, j;
	bool found = json_array_size(names);

	json_array_foreach (names, i, name) {
		json_array_foreach (nodes, j, node)
			if (json_equal(name, node))
				break;
		found &= j < json_array_size(nodes);
	}
	return found;
}

void lien_decision_remove_of(const char *directory, const json_t *nodes)
{
	DIR *entries = opendir(directory);
	const struct dirent *entry;
	json_t *decision;
	char *path;

	while (entries && (entry = readdir(entries))) {
		if ((!ends_with(entry->d_name, decided) && !ends_with(entry->d_name, draft)) ||
			asprintf(&path, "%s/%s", directory, entry->d_name) < 0)
			continue;
		decision = json_load_file(path, 0, NULL);
		if (json_object_get(decision, "decision") &&
			are_among(json_object_get(decision, "nodes"), nodes))
			unlink(path);
		json_decref(decision);
		free(path);
	}
	if (entries)
		closedir(entries);
}
