/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Options of the commands: a typed table over getopt_long(), which also produces --help. A wrong
 * option gives one line on stderr and exit code 2. The words for what is wrong, the quotes and the
 * suggestions are here, for all commands.
 */
#ifndef LIEN_TOOLS_OPTIONS_H
#define LIEN_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum lien_option_type {
	LIEN_OPTION_FLAG,   /* bool */
	LIEN_OPTION_STRING, /* const char *, points into argv */
	LIEN_OPTION_NUMBER, /* unsigned long, 1 to .max */
	LIEN_OPTION_PIDS,   /* struct lien_pids; may be repeated, up to .max times */
	LIEN_OPTION_SIZE,   /* uint64_t, at least 1: bytes, or with suffix K, M, G, T */
	LIEN_OPTION_NAMES,  /* struct lien_names, points into argv; may be repeated */
	LIEN_OPTION_CHOICE, /* const char *: one of the words in .argument, "dot|svg|json" */
	LIEN_OPTION_JSON,   /* bool: output as JSON, --json=line on one line (.max 1: always) */
	LIEN_OPTION_MOMENT, /* struct lien_moment: 240.661, or +12.5 */
	LIEN_OPTION_EVERY,  /* unsigned long, optional: --watch, --watch=SECONDS, 1 to .max */
};

/* A time in a recording. */
struct lien_moment {
	bool given;
	bool relative;	/* to the recording's first event; otherwise to its machine's boot */
	double seconds; /* not negative */
};

/* Where a recording was made, and the moment of it that was looked at. */
struct lien_taken {
	char where[80]; /* "on node7", or "in job.lien" if the host is not known */
	uint64_t ns;	/* since 1970; 0: not known */
};

/* A snapshot or a recording, and the moment of it that is asked for. */
struct lien_from {
	const char *path; /* NULL: ask an agent instead */
	struct lien_moment at;
	bool peak;
	const char *option; /* that reads .at; NULL: --at */
	bool end; /* without these: the end, also where all processes have ended by then */
	struct lien_taken *taken; /* filled in; NULL: not wanted */
};

#define LIEN_PIDS_MAX 1024

struct lien_pids {
	unsigned count;
	pid_t pid[LIEN_PIDS_MAX];
	/* With an .argument that begins with "[NODE:]": the name, up to the colon; NULL: none. */
	const char *node[LIEN_PIDS_MAX];
};

#define LIEN_NAMES_MAX 64

struct lien_names {
	unsigned count;
	const char *name[LIEN_NAMES_MAX];
};

struct lien_option {
	const char *name; /* "timeout" is --timeout, "f,follow" also -f; NULL ends the table */
	enum lien_option_type type;
	void *value;	      /* of the type in .type; unchanged if the option is not given */
	const char *argument; /* "MS"; NULL for flags */
	const char *help;     /* one line; NULL: not shown */
	unsigned long max;    /* for numbers; 0: any that an int holds */
};

struct lien_usage {
	const char *command;   /* "lien ps" */
	const char *arguments; /* "PID ADDRESS"; "" for none */
	const char *summary;   /* a paragraph */
	int min, max;	       /* number of positional arguments; max -1: any */
	bool rest;	       /* all after the first argument is another program's */
	bool tables;	       /* prints tables: has --wide */
	/* Pairs of options' long names, which end with NULL: */
	const char *const *apart;    /* that cannot be combined; those of --from are known */
	const char *const *needs;    /* of which the first is wrong without the second */
	const char *const *examples; /* pairs of a command line and its effect; ends with NULL */
};

#define LIEN_EXIT_OK	  0
#define LIEN_EXIT_FAILURE 1
#define LIEN_EXIT_USAGE	  2

/*
 * Reads the options; *argc and *argv are then the rest. Returns false: the command ends here with
 * *code, after --help or an error.
 */
bool lien_options_read(const struct lien_usage *usage, const struct lien_option *options, int *argc,
	char ***argv, int *code);

/* Prints one line "COMMAND: message: see COMMAND --help" on stderr; returns LIEN_EXIT_USAGE. The
 * message has what the user typed in quotes: 'foo'. */
int lien_usage_error(const struct lien_usage *usage, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

struct lien_nearest;

/* The same about a word; if it may be a mistyped form of one that was found: "did you mean
 * 'DASHESword'?" */
int lien_word_error(const struct lien_usage *usage, const struct lien_nearest *nearest,
	const char *dashes, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Parse whole strings; false for anything else. Numbers are decimal, addresses decimal or 0x
 * hex. */
bool lien_parse_number(const char *text, unsigned long max, unsigned long *value);
bool lien_parse_pid(const char *text, pid_t *pid);
/* Parses all arguments of a command that wants either pids or --all. Returns false, after a
 * message: one is not a pid, or there are too many. */
bool lien_read_pids_or_all(
	const struct lien_usage *usage, int argc, char **argv, bool all, struct lien_pids *pids);
/* "512M": factors of 1024. Returns false also for 0 and for more than 2^57. */
bool lien_parse_size(const char *text, uint64_t *bytes);
bool lien_parse_address(const char *text, unsigned long *address);
/* "240.661", "+12.5" */
bool lien_parse_moment(const char *text, struct lien_moment *moment);

/* For the tables of commands that talk to the agent. */
/* clang-format off */
#define LIEN_SOCKET_OPTION(socket) \
	{"socket", LIEN_OPTION_STRING, socket, "PATH", \
		"the agent's socket (default $LIEN_SOCKET or /run/lien/agent.sock)", 0}
#define LIEN_CLIENT_OPTIONS(json, socket) \
	{"json", LIEN_OPTION_JSON, json, NULL, "print the agent's result as JSON", 0}, \
	LIEN_SOCKET_OPTION(socket)
#define LIEN_FROM_OPTION(from) \
	{"from", LIEN_OPTION_STRING, &(from)->path, "FILE", \
		"answer from a snapshot or a recording, without an agent", 0}, \
	{"at", LIEN_OPTION_MOMENT, &(from)->at, "TIME", \
		"as of then: +12.5, seconds since the recording's beginning; 240.661, a time " \
		"of `lien events`", 0}, \
	{"peak", LIEN_OPTION_FLAG, &(from)->peak, NULL, \
		"as of when most GPU memory was in use", 0}
/* clang-format on */

#endif
