// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/options.h"

#define WORD_MAX 31 /* longer words resemble no command */
#define NEAR	 3  /* edits for which a command is still suggested */

static const struct command {
	const char *name;
	const char *line;
	int (*run)(int argc, char **argv);
} commands[] = {
#define ROW(name, line) {#name, line, lien_cmd_##name},
	LIEN_COMMANDS(ROW)
#undef ROW
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int usage(void)
{
	printf("Usage: lien COMMAND [OPTIONS] [ARGUMENTS]\n\n"
	       "Shows who holds which GPU memory across the processes of a node, moves it to the\n"
	       "host on one command, and puts it back.\n\nCommands:\n");
	for (size_t i = 0; i < COMMANDS; i++)
		printf("  %-8s  %s\n", commands[i].name, commands[i].line);
	printf("\n`lien COMMAND --help` explains a command, `lien --version` names this one.\n"
	       "\nExamples:\n"
	       "  lien doctor\n      Check the machine first.\n"
	       "  lien agent &\n      Start the agent, as root, one per node.\n"
	       "  lien run -- torchrun --nproc-per-node 2 train.py\n      Start a job.\n"
	       "  lien offload\n      Free its NCCL memory on all GPUs; `lien restore` puts it "
	       "back.\n");
	return LIEN_EXIT_OK;
}

static unsigned least(unsigned a, unsigned b, unsigned c)
{
	unsigned ab = a < b ? a : b;

	return ab < c ? ab : c;
}

/* Returns the Levenshtein distance: the number of one-character edits that turn one word into the
 * other. */
static unsigned distance(const char *a, const char *b)
{
	unsigned row[WORD_MAX + 1], length = strlen(b);

	for (unsigned j = 0; j <= length; j++)
		row[j] = j;
	for (unsigned i = 0; a[i]; i++) {
		unsigned diagonal = row[0];

		row[0] = i + 1;
		for (unsigned j = 0; j < length; j++) {
			unsigned changed = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			row[j + 1] = least(changed, row[j] + 1, row[j + 1] + 1);
		}
	}
	return row[length];
}

static int unknown(const char *word)
{
	const char *nearest = NULL;
	unsigned best = NEAR + 1;

	for (size_t i = 0; i < COMMANDS && strlen(word) <= WORD_MAX; i++) {
		unsigned edits = distance(commands[i].name, word);

		if (edits < best && edits <= strlen(word)) {
			best = edits;
			nearest = commands[i].name;
		}
	}
	if (nearest)
		fprintf(stderr, "lien: there is no command '%s': did you mean '%s'?\n", word,
			nearest);
	else
		fprintf(stderr, "lien: there is no command '%s': see lien --help\n", word);
	return LIEN_EXIT_USAGE;
}

/* A full disk shows only when the buffer is written. */
static int finish(int code)
{
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "lien: cannot write the output: %s\n", strerror(errno));
		return code ? code : LIEN_EXIT_FAILURE;
	}
	return code;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "lien: a command is missing: see lien --help\n");
		return LIEN_EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return finish(usage());
	if (!strcmp(argv[1], "--version")) {
		printf("lien " LIEN_VERSION "\n");
		return finish(LIEN_EXIT_OK);
	}
	for (size_t i = 0; i < COMMANDS; i++) {
		if (!strcmp(argv[1], commands[i].name))
			return finish(commands[i].run(argc - 1, argv + 1));
	}
	return unknown(argv[1]);
}
