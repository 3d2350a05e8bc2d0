// SPDX-License-Identifier: BSD-2-Clause
/*
 * Completion scripts for shells. What is in them comes from LIEN_COMMANDS and from each command's
 * table of options, which the command itself prints when it is given LIEN_COMPLETION_OPTION alone:
 * in a process of its own, since `lien replay` is another program.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/graph/nearest.h"
#include "tools/cli/commands.h"
#include "tools/cli/options_internal.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

static const char *const examples[] = {"source <(lien completion bash)", "for this shell alone",
	"lien completion fish >~/.config/fish/completions/lien.fish",
	"for all later shells; packages and `make install` install such files", NULL};

static const struct lien_usage usage = {
	.command = "lien completion",
	.arguments = "bash|zsh|fish",
	.summary = "Prints a script that makes the shell complete lien's commands, their options, "
		   "files, and the pids of processes that the agent knows.",
	.min = 1,
	.max = 1,
	.examples = examples,
};

/* The pids that the agent knows, if it answers at once. */
#define PIDS                                                                                       \
	"timeout 1 lien ps --json 2>/dev/null | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' | "     \
	"sort "                                                                                    \
	"-un"

static const struct shell {
	const char *name;
	const char *begin;   /* before the commands */
	const char *command; /* for each: name, line */
	const char *between; /* before the commands' options */
	const char *end;
} shells[] = {
	{"bash",
		"# lien completion bash\n"
		"_lien()\n{\n"
		"\tlocal current=${COMP_WORDS[COMP_CWORD]} before= options= words= kind= at\n"
		"\tCOMPREPLY=()\n"
		"\tif ((COMP_CWORD > 1)); then before=${COMP_WORDS[COMP_CWORD-1]}; fi\n"
		"\t# bash splits at =\n"
		"\tif [[ $current == = ]]; then\n"
		"\t\tcurrent=\n"
		"\telif [[ $before == = ]]; then\n"
		"\t\tbefore=${COMP_WORDS[COMP_CWORD-2]}\n"
		"\tfi\n"
		"\tif [[ $before == --json ]] && [[ ${COMP_WORDS[COMP_CWORD]} == = || "
		"${COMP_WORDS[COMP_CWORD-1]} == = ]]; then\n"
		"\t\tbefore=--json=\n"
		"\tfi\n"
		"\tlocal commands='",
		"%1$s ", "help'\n\tcase ${COMP_WORDS[1]} in\n",
		"\thelp) words=$commands ;;\n"
		"\tesac\n"
		"\tif ((COMP_CWORD == 1)); then\n"
		"\t\toptions='--help --version' words=$commands kind=\n"
		"\tfi\n"
		"\tif [[ $kind == command ]]; then\n"
		"\t\tfor ((at = 2; at < COMP_CWORD; at++)); do\n"
		"\t\t\tif [[ ${COMP_WORDS[at]} == -- ]]; then\n"
		"\t\t\t\tCOMPREPLY=($(compgen -c -f -- \"$current\"))\n"
		"\t\t\t\treturn\n"
		"\t\t\tfi\n"
		"\t\tdone\n"
		"\tfi\n"
		"\tif [[ $current == -* ]]; then\n"
		"\t\twords=$options\n"
		"\telif [[ $kind == pid ]]; then\n"
		"\t\twords=$(" PIDS ")\n"
		"\telif [[ $kind == file ]]; then\n"
		"\t\tcompopt -o filenames 2>/dev/null\n"
		"\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
		"\t\treturn\n"
		"\tfi\n"
		"\tCOMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
		"}\ncomplete -F _lien lien\n"},
	{"zsh",
		"#compdef lien\n# lien completion zsh\n"
		"_lien_pids() {\n\tlocal -a pids=(${(f)\"$(" PIDS ")\"})\n\tcompadd -a pids\n}\n\n"
		"_lien() {\n\tlocal -a commands=(\n",
		"\t\t'%1$s:%2$s'\n",
		"\t\t'help:explain a command'\n\t)\n"
		"\tif ((CURRENT == 2)); then\n"
		"\t\t_describe -t commands command commands\n"
		"\t\t[[ $PREFIX != -* ]] || compadd -- --help --version\n"
		"\t\treturn\n\tfi\n"
		"\tlocal command=$words[2]\n\tshift words\n\t((CURRENT--))\n"
		"\tcase $command in\n",
		"\thelp) _describe -t commands command commands ;;\n\tesac\n}\n\n"
		"if [[ $funcstack[1] == _lien ]]; then\n\t_lien \"$@\"\nelse\n\tcompdef _lien "
		"lien\nfi\n"},
	{"fish",
		"# lien completion fish\n"
		"function __lien_is\n\tset -l words (commandline -opc)\n"
		"\ttest (count $words) -gt 1; and test $words[2] = $argv[1]\nend\n"
		"function __lien_pids\n\t" PIDS "\nend\n"
		"function __lien_command_line\n\t__fish_complete_subcommand --fcs-skip=3\nend\n"
		"complete -c lien -f\n"
		"complete -c lien -n __fish_use_subcommand -l help -d 'the help'\n"
		"complete -c lien -n __fish_use_subcommand -l version -d 'the version'\n"
		"complete -c lien -n __fish_use_subcommand -a help -d 'explain a command'\n",
		"complete -c lien -n __fish_use_subcommand -a %1$s -d '%2$s'\n"
		"complete -c lien -n '__lien_is help' -a %1$s\n",
		"", ""},
};

static const struct lien_command commands[] = {LIEN_COMMANDS(LIEN_COMMAND_ROW)};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* A line of the help inside single quotes. */
static char *quoted(const char *line, const char *shell)
{
	const char *quote = !strcmp(shell, "fish") ? "\\'" : "'\\''";
	char *text = lien_format("%s", ""), *before;

	for (; *line; line++) {
		before = text;
		text = *line == '\'' ? lien_format("%s%s", before, quote)
				     : lien_format("%s%c", before, *line);
		free(before);
	}
	return text;
}

/* Returns 0, or -errno: the command has not printed its part. */
static int print_part(const struct lien_command *command, const char *shell)
{
	char *option = lien_format("%s%s", LIEN_COMPLETION_OPTION, shell);
	char *argv[] = {(char *)command->name, option, NULL};
	int status, code;
	pid_t pid;

	if (fflush(stdout))
		return -errno;
	pid = fork();
	if (!pid) {
		code = command->run(2, argv);
		_exit(fflush(stdout) ? errno : code);
	}
	free(option);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -errno;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE)
		raise(SIGPIPE); /* nobody reads the rest */
	if (!WIFEXITED(status))
		return -EIO;
	return WEXITSTATUS(status) == EPIPE ? -EPIPE : WEXITSTATUS(status) ? -EIO : 0;
}

static int print_script(const struct shell *shell)
{
	char *line;

	fputs(shell->begin, stdout);
	for (size_t i = 0; i < COMMANDS; i++) {
		line = quoted(commands[i].line, shell->name);
		printf(shell->command, commands[i].name, line);
		free(line);
	}
	fputs(shell->between, stdout);
	for (size_t i = 0; i < COMMANDS; i++) {
		int err = print_part(&commands[i], shell->name);

		if (err == -EPIPE)
			return LIEN_EXIT_FAILURE;
		if (err)
			return lien_complain(usage.command, "cannot get the options of lien %s: %s",
				commands[i].name, strerror(-err));
	}
	fputs(shell->end, stdout);
	return LIEN_EXIT_OK;
}

int lien_cmd_completion(int argc, char **argv)
{
	const struct lien_option options[] = {{}};
	struct lien_nearest nearest = {};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	nearest.word = argv[0];
	for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
		if (!strcmp(argv[0], shells[i].name))
			return print_script(&shells[i]);
	for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
		lien_nearest_try(&nearest, shells[i].name);
	return lien_word_error(&usage, &nearest, "", "'%s' is not one of bash, zsh, fish", argv[0]);
}
