// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/preload.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/program.h"
#include "tools/text/complain.h"

#define NOT_EXECUTABLE 126
#define NOT_FOUND      127

/* LD_PRELOAD is split at these, without a way to quote them. */
#define SEPARATORS " :\t\n"

static bool is_library(const char *path)
{
	return !access(path, R_OK);
}

bool lien_own_directory(char *directory, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", directory, size - 1);
	char *slash;

	if (n < 0)
		return false;
	directory[n] = 0;
	slash = strrchr(directory, '/');
	if (!slash)
		return false;
	*slash = 0;
	return true;
}

int lien_preload_find(char *path, size_t size)
{
	static const char *const places[] = {"", "/../lib/lien"};
	const char *named = getenv("LIEN_CONTROL");
	char directory[PATH_MAX], raw[PATH_MAX + 64], whole[PATH_MAX];

	if (named && *named) {
		snprintf(path, size, "%s", named);
		if (!is_library(named) || !realpath(named, whole))
			return -ENOENT;
	} else {
		snprintf(path, size, "the directory of lien, or ../lib/lien of that");
		if (!lien_own_directory(directory, sizeof(directory)))
			return -ENOENT;
		*raw = 0;
		for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
			snprintf(raw, sizeof(raw), "%s%s/%s", directory, places[i],
				LIEN_CONTROL_NAME);
			if (is_library(raw))
				break;
			*raw = 0;
		}
		if (!*raw || !realpath(raw, whole))
			return -ENOENT;
	}
	snprintf(path, size, "%s", whole);
	return strpbrk(whole, SEPARATORS) || strlen(whole) >= size ? -EINVAL : 0;
}

/* torch_memory_saver takes the library in LD_PRELOAD that has its name in the path, of which there
 * must be one. */
static int name_saver(const char *command, char *path, size_t size)
{
	char *slash = strrchr(path, '/'), named[PATH_MAX];

	snprintf(named, sizeof(named), "%.*s/" LIEN_SAVER "/" LIEN_CONTROL_NAME,
		slash ? (int)(slash - path) : 0, path);
	if (!is_library(named) || strlen(named) >= size)
		return lien_complain(command,
			"%s is missing: install lien again, or make it a link to the control "
			"library",
			named);
	strcpy(path, named);
	return 0;
}

/* Before what the variable has, behind a colon. */
static int put_before(const char *variable, const char *ours)
{
	const char *before = getenv(variable);
	char *list;
	int err;

	if (!before || !*before)
		return setenv(variable, ours, 1);
	if (asprintf(&list, "%s:%s", ours, before) < 0)
		return -1;
	err = setenv(variable, list, 1);
	free(list);
	return err;
}

/* With it in LD_PRELOAD a program that uses musl would not start. */
static bool fits(const char *command, const char *name)
{
	struct lien_program program;
	const char *slash;

	lien_program_look(name, &program);
	slash = strrchr(program.linker, '/');
	if (!slash || strncmp(slash, "/ld-musl", 8) || access(program.linker, F_OK))
		return true;
	lien_complain(command,
		"%s uses musl, and the control library needs glibc: it runs without it, and its "
		"memory stays on the GPU",
		name);
	return false;
}

int lien_preload_set(const char *command, const char *program, bool plain, bool saver)
{
	const char *before = getenv("LD_PRELOAD");
	char path[PATH_MAX];
	int err;

	if (program && !fits(command, program))
		return 0;
	if (saver && before && strstr(before, LIEN_SAVER))
		return lien_complain(command,
			"LD_PRELOAD has a hook of torch_memory_saver's already: %s: leave it out",
			before);

	err = lien_preload_find(path, sizeof(path));
	if (err == -EINVAL)
		return lien_complain(command,
			"%s has a blank or a colon in its path, which LD_PRELOAD can't hold: "
			"move it, or set LIEN_CONTROL",
			path);
	if (err)
		return lien_complain(command,
			"%s is not in %s: build it with `make`, or set LIEN_CONTROL to its path",
			LIEN_CONTROL_NAME, path);
	if (saver && name_saver(command, path, sizeof(path)))
		return -1;
	/* A shared AddressSanitizer refuses to run behind another library. */
	err = put_before("LD_PRELOAD", path) ||
	      put_before("ASAN_OPTIONS", "verify_asan_link_order=0") ||
	      (plain && setenv("LIEN_PLAIN", "1", 0));
	return err ? lien_complain(command, "out of memory") : 0;
}

bool lien_preload_is_set(void)
{
	const char *list = getenv("LD_PRELOAD");

	return list && strstr(list, LIEN_CONTROL_NAME);
}

int lien_preload_failed(const char *command, const char *name, int err)
{
	struct lien_program program;

	lien_program_look(name, &program);
	if (err == ENOENT && program.script[0])
		lien_complain(command, "%s: there is no %s, which its first line names",
			program.path, program.script);
	else if (err == ENOENT && program.linker[0])
		lien_complain(command, "%s: there is no %s, its dynamic linker", program.path,
			program.linker);
	else if (err == ENOENT)
		lien_complain(command, "%s: command not found", name);
	else
		lien_complain(command, "cannot run %s: %s", name, strerror(err));
	return err == ENOENT ? NOT_FOUND : NOT_EXECUTABLE;
}
