// SPDX-License-Identifier: BSD-2-Clause
/* The part of a shell's completion script that is about one command: its options and arguments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options_internal.h"

enum value {
	VALUE_NONE,
	VALUE_OTHER, /* nothing to offer */
	VALUE_WORDS,
	VALUE_FILE,
	VALUE_PID,
	VALUE_COMMAND, /* another program's command line */
};

/* What the help calls a value says what it is. */
static enum value value_named(const char *name)
{
	static const char *const files[] = {"FILE", "PATH", "RECORDING", "A"};
	size_t length = strcspn(name, " .");

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (strlen(files[i]) == length && !strncmp(files[i], name, length))
			return VALUE_FILE;
	if (length == strlen("PID") && !strncmp(name, "PID", length))
		return VALUE_PID;
	return VALUE_OTHER;
}

static enum value option_value(const struct lien_option *option)
{
	switch (option->type) {
	case LIEN_OPTION_FLAG:
	case LIEN_OPTION_JSON:
	case LIEN_OPTION_EVERY: /* optional values stand behind "=" */
		return VALUE_NONE;
	case LIEN_OPTION_CHOICE:
		return VALUE_WORDS;
	case LIEN_OPTION_PIDS:
		return VALUE_PID;
	default:
		return value_named(option->argument);
	}
}

static enum value argument_value(const struct lien_usage *usage)
{
	if (usage->rest && !strncmp(usage->arguments, "-- ", 3))
		return VALUE_COMMAND;
	if (!*usage->arguments)
		return VALUE_NONE;
	if (strchr(usage->arguments, '|') && !strchr(usage->arguments, ' '))
		return VALUE_WORDS;
	return value_named(usage->arguments);
}

/* Prints "a|b" as "a b". */
static void print_words(const char *words)
{
	for (; *words; words++)
		putchar(*words == '|' ? ' ' : *words);
}

/* Prints text inside single quotes; `special` characters get a backslash. */
static void print_quoted(const char *text, const char *special)
{
	for (; *text; text++) {
		if (*text == '\'')
			fputs(special ? "'\\''" : "\\'", stdout);
		else if (special && strchr(special, *text))
			printf("\\%c", *text);
		else
			putchar(*text);
	}
}

static const char *name_of(const struct lien_usage *usage)
{
	return usage->command + strcspn(usage->command, " ") + 1;
}

/* --- bash ------------------------------------------------------------------------------------- */

static void bash_value(enum value value, const char *words)
{
	switch (value) {
	case VALUE_WORDS:
		printf("words='");
		print_words(words);
		printf("'");
		break;
	case VALUE_FILE:
		printf("kind=file");
		break;
	case VALUE_PID:
		printf("kind=pid");
		break;
	case VALUE_COMMAND:
		printf("kind=command");
		break;
	default:
		printf("kind=none");
	}
}

static void bash_part(const struct lien_usage *usage, const struct lien_option *options)
{
	printf("\t%s)\n\t\toptions='", name_of(usage));
	for (const struct lien_option *option = options; option->name; option++)
		if (option->help)
			printf("--%s ", lien_option_name(option->name));
	printf("%s--help'\n\t\tcase $before in\n", usage->tables ? "--wide " : "");
	for (const struct lien_option *option = options; option->name; option++) {
		char letter = lien_option_letter(option->name);

		if (!option->help || option_value(option) == VALUE_NONE)
			continue;
		printf("\t\t--%s", lien_option_name(option->name));
		if (letter)
			printf(" | -%c", letter);
		printf(") options= ");
		bash_value(option_value(option), option->argument);
		printf(" ;;\n");
	}
	printf("\t\t--json=) options= words=line ;;\n\t\t*) ");
	bash_value(argument_value(usage), usage->arguments);
	printf(" ;;\n\t\tesac\n\t\t;;\n");
}

/* --- zsh -------------------------------------------------------------------------------------- */

static void zsh_value(enum value value, const char *words)
{
	switch (value) {
	case VALUE_WORDS:
		printf("(");
		print_words(words);
		printf(")");
		break;
	case VALUE_FILE:
		printf("_files");
		break;
	case VALUE_PID:
		printf("_lien_pids");
		break;
	case VALUE_COMMAND:
		printf("_normal");
		break;
	default:
		printf(" ");
	}
}

static void zsh_option(const struct lien_option *option)
{
	const char *name = lien_option_name(option->name);
	enum value value = option_value(option);
	char letter = lien_option_letter(option->name);

	printf(" \\\n\t\t\t");
	if (option->type == LIEN_OPTION_PIDS || option->type == LIEN_OPTION_NAMES)
		printf("'*'");
	if (letter)
		printf("'(-%c --%s)'{-%c,--%s}", letter, name, letter, name);
	else
		printf("--%s", name);
	printf("'%s[", option->type == LIEN_OPTION_JSON || option->type == LIEN_OPTION_EVERY ? "=-"
		       : value == VALUE_NONE || letter					     ? ""
											     : "=");
	print_quoted(option->help, "[]\\");
	printf("]");
	if (option->type == LIEN_OPTION_JSON)
		printf("::form:(line)");
	else if (option->type == LIEN_OPTION_EVERY)
		printf("::%s: ", option->argument);
	if (value != VALUE_NONE) {
		printf(":%s:", value == VALUE_WORDS ? "word" : option->argument);
		zsh_value(value, option->argument);
	}
	printf("'");
}

static void zsh_part(const struct lien_usage *usage, const struct lien_option *options)
{
	static const struct lien_option wide = {"wide", LIEN_OPTION_FLAG, NULL, NULL, "all columns",
						0},
					help = {"help", LIEN_OPTION_FLAG, NULL, NULL, "the help",
						0};
	enum value value = argument_value(usage);

	printf("\t%s)\n\t\t_arguments -S", name_of(usage));
	for (const struct lien_option *option = options; option->name; option++)
		if (option->help)
			zsh_option(option);
	if (usage->tables)
		zsh_option(&wide);
	zsh_option(&help);
	if (value != VALUE_NONE) {
		printf(" \\\n\t\t\t'%s", value == VALUE_COMMAND ? "*::command:" : "*:argument:");
		zsh_value(value, usage->arguments);
		printf("'");
	}
	printf("\n\t\t;;\n");
}

/* --- fish ------------------------------------------------------------------------------------- */

static void fish_value(enum value value, const char *words)
{
	switch (value) {
	case VALUE_WORDS:
		printf(" -x -a '");
		print_words(words);
		printf("'");
		break;
	case VALUE_FILE:
		printf(" -r -F");
		break;
	case VALUE_PID:
		printf(" -x -a '(__lien_pids)'");
		break;
	case VALUE_COMMAND:
		printf(" -x -a '(__lien_command_line)'");
		break;
	default:
		printf(" -x");
	}
}

static void fish_option(const char *command, const struct lien_option *option)
{
	enum value value = option_value(option);

	printf("complete -c lien -n '__lien_is %s' -l %s", command, lien_option_name(option->name));
	if (lien_option_letter(option->name))
		printf(" -s %c", lien_option_letter(option->name));
	if (value != VALUE_NONE)
		fish_value(value, option->argument);
	printf(" -d '");
	print_quoted(option->help, NULL);
	printf("'\n");
}

static void fish_part(const struct lien_usage *usage, const struct lien_option *options)
{
	const char *command = name_of(usage);
	enum value value = argument_value(usage);

	for (const struct lien_option *option = options; option->name; option++)
		if (option->help)
			fish_option(command, option);
	if (usage->tables)
		printf("complete -c lien -n '__lien_is %s' -l wide -d 'all columns'\n", command);
	printf("complete -c lien -n '__lien_is %s' -l help -d 'the help'\n", command);
	if (value == VALUE_NONE || value == VALUE_OTHER)
		return;
	printf("complete -c lien -n '__lien_is %s'", command);
	if (value == VALUE_FILE)
		printf(" -F");
	else
		fish_value(value, usage->arguments);
	printf("\n");
}

void lien_options_completion(
	const char *shell, const struct lien_usage *usage, const struct lien_option *options)
{
	if (!strcmp(shell, "bash"))
		bash_part(usage, options);
	else if (!strcmp(shell, "zsh"))
		zsh_part(usage, options);
	else
		fish_part(usage, options);
}
