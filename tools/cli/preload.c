// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/preload.h"

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/text/complain.h"

struct program_file {
	char path[PATH_MAX];   /* of its file, as execvp() would find it; "": there is none */
	char script[PATH_MAX]; /* the interpreter that its first line names; "": it has no such line
				*/
	char linker[PATH_MAX]; /* the dynamic linker of the program or of its script's interpreter;
				* "": it is linked statically, or that cannot be read */
};

#define SEARCHED "/bin:/usr/bin" /* by execvp() without PATH */

static void find(const char *name, char path[PATH_MAX])
{
	const char *list = getenv("PATH"), *end;

	path[0] = '\0';
	if (strchr(name, '/')) {
		if (!access(name, F_OK))
			snprintf(path, PATH_MAX, "%s", name);
		return;
	}
	for (list = list ? list : SEARCHED; list; list = *end ? end + 1 : NULL) {
		end = strchrnul(list, ':');
		if (snprintf(path, PATH_MAX, "%.*s%s%s", (int)(end - list), list,
			    end > list ? "/" : "", name) < PATH_MAX &&
			!access(path, X_OK))
			return;
	}
	path[0] = '\0';
}

/* The first word behind "#!". */
static void read_script(FILE *file, char interpreter[PATH_MAX])
{
	char line[PATH_MAX];
	const char *word;

	interpreter[0] = '\0';
	if (!fgets(line, sizeof(line), file) || strncmp(line, "#!", 2))
		return;
	word = line + 2 + strspn(line + 2, " \t");
	snprintf(interpreter, PATH_MAX, "%.*s", (int)strcspn(word, " \t\n"), word);
}

static bool read_at(FILE *file, long at, void *to, size_t size)
{
	return !fseek(file, at, SEEK_SET) && fread(to, size, 1, file) == 1;
}

static void read_linker(FILE *file, char linker[PATH_MAX])
{
	Elf64_Ehdr elf;
	Elf64_Phdr part;
	unsigned i;

	linker[0] = '\0';
	if (!read_at(file, 0, &elf, sizeof(elf)) || memcmp(elf.e_ident, ELFMAG, SELFMAG) ||
		elf.e_ident[EI_CLASS] != ELFCLASS64 || elf.e_phentsize != sizeof(part))
		return;
	for (i = 0; i < elf.e_phnum; i++) {
		if (!read_at(file, elf.e_phoff + i * sizeof(part), &part, sizeof(part)))
			return;
		if (part.p_type != PT_INTERP || part.p_filesz > PATH_MAX)
			continue;
		if (!part.p_filesz || !read_at(file, part.p_offset, linker, part.p_filesz))
			linker[0] = '\0';
		else
			linker[part.p_filesz - 1] = '\0';
		return;
	}
}

static void look_at(const char *name, struct program_file *program)
{
	FILE *file;

	memset(program, 0, sizeof(*program));
	find(name, program->path);
	file = program->path[0] ? fopen(program->path, "re") : NULL;
	if (!file)
		return;
	read_script(file, program->script);
	if (program->script[0]) {
		fclose(file);
		file = fopen(program->script, "re");
	}
	if (!file)
		return;
	read_linker(file, program->linker);
	fclose(file);
}

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
	struct program_file program;
	const char *slash;

	look_at(name, &program);
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
	struct program_file program;

	look_at(name, &program);
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
