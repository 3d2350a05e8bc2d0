// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX    24
#define SIZE_MAX_BYTES (1ul << 57) /* the limit of x86-64 addresses */
#define FIRST_VALUE    256	   /* getopt_long()'s value of table row 0: not a character */
#define HELP_VALUE     'h'

int lien_usage_error(const struct lien_usage *usage, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", usage->command);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, ": see %s --help\n", usage->command);
	return LIEN_EXIT_USAGE;
}

static bool parse_unsigned(const char *text, int base, unsigned long *value)
{
	char *end;

	/* strtoul() would also accept blanks, signs and, in base 16, a second 0x. */
	if (!*text ||
		strspn(text, base == 16 ? "0123456789abcdefABCDEF" : "0123456789") != strlen(text))
		return false;
	errno = 0;
	*value = strtoul(text, &end, base);
	return !errno;
}

bool lien_parse_number(const char *text, unsigned long max, unsigned long *value)
{
	return parse_unsigned(text, 10, value) && *value <= max;
}

bool lien_parse_pid(const char *text, pid_t *pid)
{
	unsigned long value;

	if (!lien_parse_number(text, INT_MAX, &value) || !value)
		return false;
	*pid = value;
	return true;
}

bool lien_parse_pids(int argc, char **argv, struct lien_pids *pids)
{
	for (; argc--; argv++, pids->count++)
		if (pids->count == LIEN_PIDS_MAX || !lien_parse_pid(*argv, &pids->pid[pids->count]))
			return false;
	return true;
}

bool lien_parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	size_t digits = strspn(text, "0123456789");
	const char *unit = text[digits] ? strchr(units, text[digits]) : NULL;
	unsigned shift = unit ? 10 * (unit - units + 1) : 0;
	unsigned long value;
	char number[24];

	if (digits >= sizeof(number) || (text[digits] && (!unit || text[digits + 1])))
		return false;
	memcpy(number, text, digits);
	number[digits] = '\0';
	if (!lien_parse_number(number, SIZE_MAX_BYTES >> shift, &value) || !value)
		return false;
	*bytes = (uint64_t)value << shift;
	return true;
}

bool lien_parse_address(const char *text, unsigned long *address)
{
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		return parse_unsigned(text + 2, 16, address);
	return parse_unsigned(text, 10, address);
}

/* Returns the letter of "f,follow", or '\0'. */
static char option_letter(const char *name)
{
	return name[1] == ',' ? name[0] : '\0';
}

static const char *long_name(const char *name)
{
	return option_letter(name) ? name + 2 : name;
}

static void print_option(const char *name, const char *argument, const char *help)
{
	char left[32], letter[] = {'-', option_letter(name), ',', ' ', '\0'};

	snprintf(left, sizeof(left), "%s--%s%s%s", letter[1] ? letter : "", long_name(name),
		argument ? " " : "", argument ? argument : "");
	printf("  %-19s %s\n", left, help);
}

static void print_help(const struct lien_usage *usage, const struct lien_option *options)
{
	printf("Usage: %s [OPTIONS]%s%s\n\n%s\n\nOptions:\n", usage->command,
		*usage->arguments ? " " : "", usage->arguments, usage->summary);
	for (const struct lien_option *option = options; option->name; option++)
		print_option(option->name, option->argument, option->help);
	print_option("help", NULL, "this text");
	printf("\nExamples:\n");
	for (const char *const *example = usage->examples; *example; example += 2)
		printf("  %s\n      %s\n", example[0], example[1]);
}

static bool take_value(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	unsigned long max = option->max ? option->max : INT_MAX;
	const char *name = long_name(option->name);
	struct lien_names *names;
	struct lien_pids *pids;

	switch (option->type) {
	case LIEN_OPTION_FLAG:
		*(bool *)option->value = true;
		return true;
	case LIEN_OPTION_STRING:
		if (*text) {
			*(const char **)option->value = text;
			return true;
		}
		lien_usage_error(usage, "--%s is empty", name);
		return false;
	case LIEN_OPTION_NUMBER:
		if (lien_parse_number(text, max, option->value) && *(unsigned long *)option->value)
			return true;
		lien_usage_error(usage, "--%s %s is not a number from 1 to %lu", name, text, max);
		return false;
	case LIEN_OPTION_SIZE:
		if (lien_parse_size(text, option->value))
			return true;
		lien_usage_error(usage, "--%s %s is not a size such as 512M or 8G", name, text);
		return false;
	case LIEN_OPTION_PIDS:
		pids = option->value;
		if (pids->count == LIEN_PIDS_MAX) {
			lien_usage_error(usage, "--%s more than %d times", name, LIEN_PIDS_MAX);
			return false;
		}
		if (lien_parse_pid(text, &pids->pid[pids->count])) {
			pids->count++;
			return true;
		}
		lien_usage_error(usage, "--%s %s is not a process id", name, text);
		return false;
	case LIEN_OPTION_NAMES:
		names = option->value;
		if (*text && names->count < LIEN_NAMES_MAX) {
			names->name[names->count++] = text;
			return true;
		}
		if (*text)
			lien_usage_error(usage, "--%s more than %d times", name, LIEN_NAMES_MAX);
		else
			lien_usage_error(usage, "--%s is empty", name);
		return false;
	}
	return false;
}

/* Builds getopt's letters and table. Both lead to the row: a letter's value is the letter. */
static void fill_table(const struct lien_option *options, struct option *table, char *letters)
{
	unsigned i;
	char letter;

	for (i = 0; i < OPTIONS_MAX && options[i].name; i++) {
		bool flag = options[i].type == LIEN_OPTION_FLAG;

		letter = option_letter(options[i].name);
		if (letter)
			letters = stpcpy(stpncpy(letters, &letter, 1), flag ? "" : ":");
		table[i] = (struct option){long_name(options[i].name),
			flag ? no_argument : required_argument, NULL,
			letter ? letter : FIRST_VALUE + (int)i};
	}
	table[i] = (struct option){"help", no_argument, NULL, HELP_VALUE};
	table[i + 1] = (struct option){NULL, 0, NULL, 0};
}

static const struct lien_option *option_of(const struct lien_option *options, int value)
{
	if (value >= FIRST_VALUE)
		return &options[value - FIRST_VALUE];
	while (option_letter(options->name) != value)
		options++;
	return options;
}

static bool check_count(const struct lien_usage *usage, int count, const char *extra)
{
	if (count < usage->min) {
		lien_usage_error(usage, "%s is missing", usage->arguments);
		return false;
	}
	if (usage->max >= 0 && count > usage->max) {
		lien_usage_error(usage, "'%s' is too much", extra);
		return false;
	}
	return true;
}

bool lien_options_read(const struct lien_usage *usage, const struct lien_option *options, int *argc,
	char ***argv, int *code)
{
	char letters[3 + 2 * OPTIONS_MAX + 1] = ":h";
	struct option table[OPTIONS_MAX + 2];
	char *given;
	int value;

	if (usage->rest)
		strcpy(letters, "+:h");
	fill_table(options, table, letters + strlen(letters));
	*code = LIEN_EXIT_USAGE;
	opterr = 0;
	optind = 0; /* restart, also after another table */
	for (;;) {
		given = (*argv)[optind ? optind : 1];
		value = getopt_long(*argc, *argv, letters, table, NULL);
		if (value == -1)
			break;
		switch (value) {
		case HELP_VALUE:
			print_help(usage, options);
			*code = LIEN_EXIT_OK;
			return false;
		case ':':
			lien_usage_error(usage, "%s needs a value", (*argv)[optind - 1]);
			return false;
		case '?':
			/* optind does not advance inside a group of letters. */
			if (optopt && optopt < FIRST_VALUE)
				lien_usage_error(usage, "there is no option -%c", optopt);
			else
				lien_usage_error(usage, "%s: no such option",
					optind > 1 ? (*argv)[optind - 1] : given);
			return false;
		default:
			if (!take_value(usage, option_of(options, value), optarg))
				return false;
		}
	}
	*argc -= optind;
	*argv += optind;
	return check_count(
		usage, *argc, usage->max >= 0 && *argc > usage->max ? (*argv)[usage->max] : "");
}
