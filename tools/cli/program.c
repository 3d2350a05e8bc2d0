// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/program.h"

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

void lien_program_look(const char *name, struct lien_program *program)
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
