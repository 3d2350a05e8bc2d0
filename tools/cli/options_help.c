// SPDX-License-Identifier: BSD-2-Clause
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options_internal.h"
#include "tools/text/output.h"

#define LEFT_WIDTH 19 /* of the column of options */

/* An option whose value may be left out has it behind "=". */
static const char *value_begins(const struct lien_option *option)
{
	if (option->type == LIEN_OPTION_EVERY)
		return "[=";
	return option->argument ? " " : "";
}

static void print_option(const struct lien_option *option)
{
	char letter[] = {'-', lien_option_letter(option->name), ',', ' ', '\0'};
	bool line = option->type == LIEN_OPTION_JSON && !option->max;
	char *left = lien_format("%s--%s%s%s%s%s", letter[1] ? letter : "",
		lien_option_name(option->name), line ? "[=line]" : "", value_begins(option),
		option->argument ?: "", option->type == LIEN_OPTION_EVERY ? "]" : "");

	bool fits = strlen(left) <= LEFT_WIDTH;

	if (option->help && !fits)
		printf("  %s\n", left);
	if (option->help)
		lien_print_help(
			LEFT_WIDTH + 3, "  %-*s %s", LEFT_WIDTH, fits ? left : "", option->help);
	free(left);
}

void lien_options_help(const struct lien_usage *usage, const struct lien_option *options)
{
	static const struct lien_option wide = {"wide", LIEN_OPTION_FLAG, NULL, NULL,
						"all columns, however long the lines", 0},
					help = {"help", LIEN_OPTION_FLAG, NULL, NULL, "this text",
						0};

	printf("Usage: %s [OPTIONS]%s%s\n\n", usage->command, *usage->arguments ? " " : "",
		usage->arguments);
	lien_print_help(0, "%s", usage->summary);
	printf("\nOptions:\n");
	for (const struct lien_option *option = options; option->name; option++)
		print_option(option);
	if (usage->tables)
		print_option(&wide);
	print_option(&help);
	printf("\nExamples:\n");
	for (const char *const *example = usage->examples; *example; example += 2) {
		printf("  %s\n", example[0]);
		lien_print_help(6, "      %s", example[1]);
	}
}
