// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/nearest.h"
#include "tools/cli/options_internal.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#define OPTIONS_MAX 40
#define FIRST_VALUE 256 /* getopt_long()'s value of table row 0: not a character */
#define HELP_VALUE  'h'
#define WIDE_VALUE  (FIRST_VALUE - 1)
#define LEFT_WIDTH  19 /* of the help's column of options */

int lien_usage_error(const struct lien_usage *usage, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	lien_complain(usage->command, "%s: see %s --help", text, usage->command);
	free(text);
	return LIEN_EXIT_USAGE;
}

int lien_word_error(const struct lien_usage *usage, const struct lien_nearest *nearest,
	const char *dashes, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	if (nearest->found)
		lien_complain(
			usage->command, "%s: did you mean '%s%s'?", text, dashes, nearest->found);
	else
		lien_usage_error(usage, "%s", text);
	free(text);
	return LIEN_EXIT_USAGE;
}

/* An option whose value may be left out has it behind "=". */
static const char *value_begins(const struct lien_option *option)
{
	if (option->type == LIEN_OPTION_EVERY)
		return "[=";
	return option->argument ? " " : "";
}

static void print_option_help(const struct lien_option *option)
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

static void print_help(const struct lien_usage *usage, const struct lien_option *options)
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
		print_option_help(option);
	if (usage->tables)
		print_option_help(&wide);
	print_option_help(&help);
	printf("\nExamples:\n");
	for (const char *const *example = usage->examples; *example; example += 2) {
		printf("  %s\n", example[0]);
		lien_print_help(6, "      %s", example[1]);
	}
}

static bool take_choice(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	char *words = lien_format("%s", option->argument), *rest = words, *word, *list = NULL;
	struct lien_nearest nearest = {.word = text};
	bool known = false;

	while ((word = strsep(&rest, "|"))) {
		known |= !strcmp(word, text);
		lien_nearest_try(&nearest, word);
		list = lien_append(list, ", ", "%s", word);
	}
	if (known)
		*(const char **)option->value = text;
	else
		lien_word_error(usage, &nearest, "", "--%s '%s' is not one of %s",
			lien_option_name(option->name), text, list);
	free(list);
	free(words);
	return known;
}

static bool take_pid(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	unsigned max = option->max ? option->max : LIEN_PIDS_MAX;
	const char *colon = option->argument[0] == '[' ? strrchr(text, ':') : NULL;
	struct lien_pids *pids = option->value;
	const char *number = colon ? colon + 1 : text;

	if (pids->count == max)
		lien_usage_error(usage, "--%s can be given %s", lien_option_name(option->name),
			max == 1 ? "only once" : "only 1024 times");
	else if (!lien_parse_pid(number, &pids->pid[pids->count]))
		lien_usage_error(usage, "--%s '%s' is not a process id",
			lien_option_name(option->name), text);
	else {
		pids->node[pids->count] = colon ? text : NULL;
		return ++pids->count;
	}
	return false;
}

static bool take_name(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	struct lien_names *names = option->value;

	if (!*text) {
		lien_usage_error(usage, "--%s is empty", lien_option_name(option->name));
		return false;
	}
	if (names->count == LIEN_NAMES_MAX) {
		lien_usage_error(usage, "--%s can be given only %d times",
			lien_option_name(option->name), LIEN_NAMES_MAX);
		return false;
	}
	names->name[names->count++] = text;
	return true;
}

static bool take_number(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	unsigned long max = option->max ? option->max : INT_MAX, *value = option->value;

	if (lien_parse_number(text, max, value) && *value)
		return true;
	lien_usage_error(usage, "--%s '%s' is not a number from 1 to %lu",
		lien_option_name(option->name), text, max);
	return false;
}

static bool take_json(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	if (text && strcmp(text, "line") != 0) {
		lien_usage_error(usage, "--json=%s: only --json and --json=line are known", text);
		return false;
	}
	*(bool *)option->value = true;
	lien_json_use(text || option->max ? LIEN_JSON_LINE : LIEN_JSON_INDENTED);
	return true;
}

static bool take_value(
	const struct lien_usage *usage, const struct lien_option *option, const char *text)
{
	const char *name = lien_option_name(option->name);

	switch (option->type) {
	case LIEN_OPTION_FLAG:
		*(bool *)option->value = true;
		return true;
	case LIEN_OPTION_STRING:
		if (!*text) {
			lien_usage_error(usage, "--%s is empty", name);
			return false;
		}
		*(const char **)option->value = text;
		return true;
	case LIEN_OPTION_NUMBER:
		return take_number(usage, option, text);
	case LIEN_OPTION_EVERY:
		return take_number(usage, option, text ? text : "1");
	case LIEN_OPTION_SIZE:
		if (lien_parse_size(text, option->value))
			return true;
		lien_usage_error(usage, "--%s '%s' is not a size such as 512M or 8G", name, text);
		return false;
	case LIEN_OPTION_MOMENT:
		if (lien_parse_moment(text, option->value))
			return true;
		lien_usage_error(
			usage, "--%s '%s' is not a time such as 240.661 or +12.5", name, text);
		return false;
	case LIEN_OPTION_PIDS:
		return take_pid(usage, option, text);
	case LIEN_OPTION_NAMES:
		return take_name(usage, option, text);
	case LIEN_OPTION_CHOICE:
		return take_choice(usage, option, text);
	case LIEN_OPTION_JSON:
		return take_json(usage, option, text);
	}
	return false;
}

/* Parses all arguments. Returns false, after a message: one is not a pid, or there are too many. */
static bool read_pids(const struct lien_usage *usage, int argc, char **argv, struct lien_pids *pids)
{
	for (; argc--; argv++) {
		if (pids->count == LIEN_PIDS_MAX) {
			lien_usage_error(usage, "more than %d processes", LIEN_PIDS_MAX);
			return false;
		}
		if (!lien_parse_pid(*argv, &pids->pid[pids->count++])) {
			lien_usage_error(usage, "'%s' is not a process id", *argv);
			return false;
		}
	}
	return true;
}

bool lien_read_pids_or_all(
	const struct lien_usage *usage, int argc, char **argv, bool all, struct lien_pids *pids)
{
	if (!argc != !all)
		return read_pids(usage, argc, argv, pids);
	lien_usage_error(
		usage, argc ? "PID and --all cannot be combined" : "PID or --all is missing");
	return false;
}

static int argument_of(enum lien_option_type type)
{
	switch (type) {
	case LIEN_OPTION_FLAG:
		return no_argument;
	case LIEN_OPTION_JSON:
	case LIEN_OPTION_EVERY:
		return optional_argument;
	default:
		return required_argument;
	}
}

/* Builds getopt's letters and table. Both lead to the row: a letter's value is the letter. */
static void fill_table(const struct lien_usage *usage, const struct lien_option *options,
	struct option *table, char *letters)
{
	unsigned i;
	char letter;

	for (i = 0; i < OPTIONS_MAX && options[i].name; i++) {
		int argument = argument_of(options[i].type);

		letter = lien_option_letter(options[i].name);
		if (letter)
			letters = stpcpy(
				stpncpy(letters, &letter, 1), argument == no_argument ? "" : ":");
		table[i] = (struct option){lien_option_name(options[i].name), argument, NULL,
			letter ? letter : FIRST_VALUE + (int)i};
	}
	table[i++] = (struct option){"help", no_argument, NULL, HELP_VALUE};
	if (usage->tables)
		table[i++] = (struct option){"wide", no_argument, NULL, WIDE_VALUE};
	table[i] = (struct option){NULL, 0, NULL, 0};
}

static unsigned row_of(const struct lien_option *options, int value)
{
	unsigned i = 0;

	if (value >= FIRST_VALUE)
		return value - FIRST_VALUE;
	while (lien_option_letter(options[i].name) != value)
		i++;
	return i;
}

static bool was_given(const struct lien_option *options, uint64_t given, const char *name)
{
	for (unsigned i = 0; options[i].name; i++)
		if (!strcmp(lien_option_name(options[i].name), name))
			return given >> i & 1;
	return false;
}

/* Returns the first pair whose first option was given and whose second one was, or was not; NULL:
 * none. */
static const char *const *find_pair(
	const struct lien_option *options, uint64_t given, const char *const *pairs, bool second)
{
	for (; pairs && *pairs; pairs += 2)
		if (was_given(options, given, pairs[0]) &&
			was_given(options, given, pairs[1]) == second)
			return pairs;
	return NULL;
}

static bool check_pairs(
	const struct lien_usage *usage, const struct lien_option *options, uint64_t given)
{
	static const char *const apart[] = {"from", "socket", "at", "peak", NULL};
	static const char *const needs[] = {"at", "from", "peak", "from", NULL};
	const char *const *pair = find_pair(options, given, apart, true);

	pair = pair ? pair : find_pair(options, given, usage->apart, true);
	if (pair) {
		lien_usage_error(usage, "--%s and --%s cannot be combined", pair[0], pair[1]);
		return false;
	}
	pair = find_pair(options, given, needs, false);
	pair = pair ? pair : find_pair(options, given, usage->needs, false);
	if (pair)
		lien_usage_error(usage, "--%s needs --%s", pair[0], pair[1]);
	return !pair;
}

static bool check_count(const struct lien_usage *usage, int count, char **arguments)
{
	const char *missing = usage->arguments;

	if (count < usage->min) {
		/* "PID ADDRESS": the first one that is not there; "-- COMMAND ..." */
		for (missing += strncmp(missing, "-- ", 3) ? 0 : 3; count--;)
			missing += strcspn(missing, " ") + 1;
		lien_usage_error(usage, "%.*s is missing", (int)strcspn(missing, " "), missing);
		return false;
	}
	if (usage->max >= 0 && count > usage->max) {
		lien_usage_error(usage, "unexpected argument '%s'", arguments[usage->max]);
		return false;
	}
	return true;
}

/* The second of two values would replace the first one silently. */
static bool check_again(
	const struct lien_usage *usage, const struct lien_option *option, bool again)
{
	switch (option->type) {
	case LIEN_OPTION_FLAG:
	case LIEN_OPTION_JSON:
	case LIEN_OPTION_PIDS:
	case LIEN_OPTION_NAMES:
		return true;
	default:
		break;
	}
	if (again)
		lien_usage_error(
			usage, "--%s can be given only once", lien_option_name(option->name));
	return !again;
}

/* Reports what getopt_long() does not know. */
static void complain_of_option(const struct lien_usage *usage, const struct option *table,
	const char *given, const char *last)
{
	struct lien_nearest nearest = {};
	char *name;

	/* optind does not advance inside a group of letters. */
	if (optopt && optopt < WIDE_VALUE) {
		/* -owner: getopt takes it for letters */
		nearest.word = given + 1;
		for (; given[1] && given[1] != '-' && given[2] && table->name; table++)
			lien_nearest_try(&nearest, table->name);
		name = nearest.found ? lien_format("%s", given) : lien_format("-%c", optopt);
		lien_word_error(usage, &nearest, "--", "unknown option '%s'", name);
		free(name);
	} else if (optopt) { /* a flag that was given a value */
		lien_usage_error(usage, "'%s': this option takes no value", last);
	} else {
		given = last ? last : given;
		name = lien_format("%s", given + strspn(given, "-"));
		name[strcspn(name, "=")] = '\0';
		nearest.word = name;
		for (; table->name; table++)
			lien_nearest_try(&nearest, table->name);
		lien_word_error(usage, &nearest, "--", "unknown option '%s'", given);
		free(name);
	}
}

/* Errors are JSON, too, also those that come before --json. */
static void look_for_json(const struct lien_option *options, char **argv)
{
	for (; options->name && options->type != LIEN_OPTION_JSON; options++)
		;
	for (; options->name && *argv && strcmp(*argv, "--") != 0; argv++)
		if (!strcmp(*argv, "--json"))
			lien_json_use(options->max ? LIEN_JSON_LINE : LIEN_JSON_INDENTED);
		else if (!strcmp(*argv, "--json=line"))
			lien_json_use(LIEN_JSON_LINE);
}

bool lien_options_read(const struct lien_usage *usage, const struct lien_option *options, int *argc,
	char ***argv, int *code)
{
	char letters[3 + 2 * OPTIONS_MAX + 1] = ":h";
	struct option table[OPTIONS_MAX + 3];
	uint64_t seen = 0;
	unsigned row;
	char *given;
	int value;

	if (*argc == 2 &&
		!strncmp((*argv)[1], LIEN_COMPLETION_OPTION, strlen(LIEN_COMPLETION_OPTION))) {
		lien_options_completion(
			(*argv)[1] + strlen(LIEN_COMPLETION_OPTION), usage, options);
		*code = LIEN_EXIT_OK;
		return false;
	}
	if (usage->rest)
		strcpy(letters, "+:h");
	fill_table(usage, options, table, letters + strlen(letters));
	look_for_json(options, *argv);
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
		case WIDE_VALUE:
			lien_output_wide();
			break;
		case ':':
			lien_usage_error(usage, "%s needs a value", (*argv)[optind - 1]);
			return false;
		case '?':
			complain_of_option(
				usage, table, given, optind > 1 ? (*argv)[optind - 1] : NULL);
			return false;
		default:
			row = row_of(options, value);
			if (!check_again(usage, &options[row], seen >> row & 1))
				return false;
			seen |= 1ull << row;
			if (!take_value(usage, &options[row], optarg))
				return false;
		}
	}
	*argc -= optind;
	*argv += optind;
	return check_count(usage, *argc, *argv) && check_pairs(usage, options, seen);
}

#define SIZE_MAX_BYTES (1ul << 57) /* the limit of x86-64 addresses */

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

bool lien_parse_moment(const char *text, struct lien_moment *moment)
{
	const char *digits = text + (*text == '+');
	char *end;

	if (!*digits || strspn(digits, "0123456789.") != strlen(digits))
		return false;
	moment->seconds = strtod(digits, &end);
	moment->relative = *text == '+';
	moment->given = !*end && end != digits;
	return moment->given;
}

bool lien_parse_address(const char *text, unsigned long *address)
{
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		return parse_unsigned(text + 2, 16, address);
	return parse_unsigned(text, 10, address);
}
