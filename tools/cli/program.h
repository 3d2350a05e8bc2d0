/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds out what a program needs in order to start. */
#ifndef LIEN_TOOLS_PROGRAM_H
#define LIEN_TOOLS_PROGRAM_H

#include <limits.h>

struct lien_program {
	char path[PATH_MAX];   /* of its file, as execvp() would find it; "": there is none */
	char script[PATH_MAX]; /* the interpreter that its first line names; "": it has no such line
				*/
	char linker[PATH_MAX]; /* the dynamic linker of the program or of its script's interpreter;
				* "": it is linked statically, or that cannot be read */
};

void lien_program_look(const char *name, struct lien_program *program);

#endif
