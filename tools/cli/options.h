/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Options of the commands: a typed table over getopt_long(), which also produces --help. A wrong
 * option gives one line on stderr and exit code 2.
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
	LIEN_OPTION_PIDS,   /* struct lien_pids; may be repeated */
	LIEN_OPTION_SIZE,   /* uint64_t, at least 1: bytes, or with suffix K, M, G, T */
	LIEN_OPTION_NAMES,  /* struct lien_names, points into argv; may be repeated */
};

#define LIEN_PIDS_MAX 1024

struct lien_pids {
	unsigned count;
	pid_t pid[LIEN_PIDS_MAX];
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
	const char *help;     /* one line */
	unsigned long max;    /* for numbers; 0: any that an int holds */
};

struct lien_usage {
	const char *command;	     /* "lien ps" */
	const char *arguments;	     /* "PID ADDRESS"; "" for none */
	const char *summary;	     /* one sentence; lines of at most 78 columns */
	int min, max;		     /* number of positional arguments; max -1: any */
	bool rest;		     /* all after the first argument is another program's */
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

/* Prints one line "COMMAND: message: see COMMAND --help" on stderr; returns LIEN_EXIT_USAGE. */
int lien_usage_error(const struct lien_usage *usage, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Parse whole strings; false for anything else. Numbers are decimal, addresses decimal or 0x
 * hex. */
bool lien_parse_number(const char *text, unsigned long max, unsigned long *value);
bool lien_parse_pid(const char *text, pid_t *pid);
/* Parses all arguments. Returns false: one is not a pid, or there are too many. */
bool lien_parse_pids(int argc, char **argv, struct lien_pids *pids);
/* "512M": factors of 1024. Returns false also for 0 and for more than 2^57. */
bool lien_parse_size(const char *text, uint64_t *bytes);
bool lien_parse_address(const char *text, unsigned long *address);

/* For the tables of commands that talk to the agent. */
/* clang-format off */
#define LIEN_SOCKET_OPTION(socket) \
	{"socket", LIEN_OPTION_STRING, socket, "PATH", \
		"the agent's socket (default $LIEN_SOCKET or /run/lien/agent.sock)", 0}
#define LIEN_CLIENT_OPTIONS(json, socket) \
	{"json", LIEN_OPTION_FLAG, json, NULL, "print the agent's result as JSON", 0}, \
	LIEN_SOCKET_OPTION(socket)
#define LIEN_FROM_OPTION(from) \
	{"from", LIEN_OPTION_STRING, from, "FILE", \
		"answer from a snapshot or a recording, without an agent", 0}
/* clang-format on */

#endif
