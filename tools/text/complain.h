/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TOOLS_COMPLAIN_H
#define LIEN_TOOLS_COMPLAIN_H

/* Prints one line "COMMAND: message" on stderr, with control characters replaced; with --json, the
 * first message is the command's result, too. Returns EXIT_FAILURE. */
int lien_complain(const char *command, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Prints one line "COMMAND: warning: message" on stderr: the command goes on. */
void lien_warn(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
