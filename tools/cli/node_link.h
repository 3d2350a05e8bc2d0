/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Several nodes: a launcher for each starts `lien node` there, and JSON lines go to and fro over
 * its standard input and output. What it prints before the first line of `lien node` (banners) is
 * skipped. Only lien_nodes_poll() waits.
 */
#ifndef LIEN_TOOLS_NODE_LINK_H
#define LIEN_TOOLS_NODE_LINK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

#define LIEN_NODE_PROTOCOL    1 /* of the lines; docs/protocol.md */
#define LIEN_NODE_CONNECTIONS 8 /* with the agent, numbered from 0 */
#define LIEN_NODES_MAX	      4096

struct lien_node_launch {
	const char *command; /* words, as a shell splits them; {node} is the node's name */
	const char *program; /* `lien` there */
	const char *socket;  /* its agent's; NULL: the default there */
};

struct lien_node_link {
	const char *name;  /* owned by struct lien_nodes */
	pid_t child;	   /* 0: none */
	bool hello;	   /* `lien node` of this version has answered */
	bool lost;	   /* it has been reported as lost */
	char problem[400]; /* why it cannot be reached; "": no problem */
	json_t *identity;  /* its first line */
	/* --- its own --- */
	int in, out, err; /* of the child; -1: closed */
	char *to, *from, *words;
	size_t to_used, to_room, from_used, from_room, words_used;
	uint64_t t_launch;
};

struct lien_nodes {
	struct lien_node_link *links;
	unsigned count;
	struct lien_node_launch launch;
	uint64_t lines; /* that have been sent and received */
	/* --- its own --- */
	char *names;
};

/* What arrives. */
struct lien_nodes_calls {
	/* A line of the agent's, on a connection; borrowed. */
	void (*line)(void *context, unsigned node, unsigned on, const json_t *line);
	/* Another answer of `lien node`. May be NULL. */
	void (*answer)(void *context, unsigned node, const json_t *answer);
	/* The agent has closed a connection, or cannot be connected. */
	void (*gone)(void *context, unsigned node, unsigned on, const char *why);
	/* The node cannot be reached any more: link->problem. */
	void (*lost)(void *context, unsigned node);
	/* `lien node` has answered: lines can be sent. */
	void (*ready)(void *context, unsigned node);
	int wake_fd; /* lien_nodes_poll() returns when it is readable; -1: none */
	void *context;
};

/* Parses "n1,n2"; several lists are put together. Returns false after a message: a name is empty or
 * doubled, there are too many, or nodes->launch.command cannot be split. */
bool lien_nodes_read(
	struct lien_nodes *nodes, const char *command, const char *const *lists, unsigned count);
/* Starts the launchers. A launcher that cannot be started is a node that cannot be reached. */
void lien_nodes_start(struct lien_nodes *nodes);
/* Starts a node's launcher again. */
void lien_nodes_restart(struct lien_nodes *nodes, unsigned node);
void lien_nodes_send(struct lien_nodes *nodes, unsigned node, unsigned on, const json_t *request);
/* Sends a question to `lien node` itself; takes it over. */
void lien_nodes_ask(struct lien_nodes *nodes, unsigned node, json_t *question);
/* Waits at most that long for something to happen, and handles all of it. */
void lien_nodes_poll(
	struct lien_nodes *nodes, unsigned timeout_ms, const struct lien_nodes_calls *calls);
/* Closes all, and ends what does not end by itself. */
void lien_nodes_free(struct lien_nodes *nodes);

#endif
