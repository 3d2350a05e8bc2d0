/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files of the option parser. */
#ifndef LIEN_TOOLS_OPTIONS_INTERNAL_H
#define LIEN_TOOLS_OPTIONS_INTERNAL_H

#include "tools/cli/options.h"

/* Returns the letter of "f,follow", or '\0'. */
static inline char lien_option_letter(const char *name)
{
	return name[1] == ',' ? name[0] : '\0';
}

/* Returns the "follow" of "f,follow". */
static inline const char *lien_option_name(const char *name)
{
	return lien_option_letter(name) ? name + 2 : name;
}

/* Given alone, with a shell's name: prints the command's part of a completion script, instead of
 * whatever the command does. For `lien completion`, so the help does not show it. */
#define LIEN_COMPLETION_OPTION "--completion-of-options="
void lien_options_completion(
	const char *shell, const struct lien_usage *usage, const struct lien_option *options);

#endif
