// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/text/complain.h"
#include "tools/text/json_text.h"
#include "agent/graph/nearest.h"

static const struct lien_command commands[] = {LIEN_COMMANDS(LIEN_COMMAND_ROW)};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int usage(void)
{
	printf("Usage: lien COMMAND [OPTIONS] [ARGUMENTS]\n\n"
	       "Shows who holds which GPU memory across the processes of a node, moves it to the\n"
	       "host on one command, and puts it back.\n\nCommands:\n");
	for (size_t i = 0; i < COMMANDS; i++)
		printf("  %-10s  %s\n", commands[i].name, commands[i].line);
	printf("\n`lien COMMAND --help` explains a command, `lien --version` names this one.\n"
	       "\nExamples:\n"
	       "  lien doctor\n      Check the machine first.\n"
	       "  lien agent &\n      Start the agent, as root, one per node.\n"
	       "  lien run -- torchrun --nproc-per-node 2 train.py\n      Start a job.\n"
	       "  lien offload\n      Free its NCCL memory on all GPUs; `lien restore` puts it "
	       "back.\n");
	return LIEN_EXIT_OK;
}

static int unknown(const char *word)
{
	const char *what = word[0] == '-' ? "option" : "command";
	struct lien_nearest nearest = {.word = word};

	for (size_t i = 0; i < COMMANDS; i++)
		lien_nearest_try(&nearest, commands[i].name);
	lien_nearest_try(&nearest, "--help");
	lien_nearest_try(&nearest, "--version");
	if (nearest.found)
		lien_complain(
			"lien", "unknown %s '%s': did you mean '%s'?", what, word, nearest.found);
	else
		lien_complain("lien", "unknown %s '%s': see lien --help", what, word);
	return LIEN_EXIT_USAGE;
}

/* A full disk shows only when the buffer is written. */
static int finish(int code)
{
	lien_json_end();
	if (fflush(stdout) || ferror(stdout)) {
		/* A reader that has seen enough is no error, also where SIGPIPE is ignored. */
		if (errno != EPIPE)
			fprintf(stderr, "lien: cannot write the output: %s\n", strerror(errno));
		return code ? code : LIEN_EXIT_FAILURE;
	}
	return code;
}

static const struct lien_command *find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(name, commands[i].name))
			return &commands[i];
	return NULL;
}

/* `lien help COMMAND`: the same as `lien COMMAND --help`. */
static int help(char *name)
{
	char *argv[] = {name, "--help", NULL};
	const struct lien_command *command = find(name);

	return command ? command->run(2, argv) : unknown(name);
}

int main(int argc, char **argv)
{
	const struct lien_command *command;

	if (argc < 2) {
		fprintf(stderr, "lien: a command is missing: see lien --help\n");
		return LIEN_EXIT_USAGE;
	}
	if (!strcmp(argv[1], "help") && argc > 2)
		return finish(help(argv[2]));
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
		return finish(usage());
	if (!strcmp(argv[1], "--version")) {
		printf("lien " LIEN_VERSION "\n");
		return finish(LIEN_EXIT_OK);
	}
	command = find(argv[1]);
	return command ? finish(command->run(argc - 1, argv + 1)) : unknown(argv[1]);
}
