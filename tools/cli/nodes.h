/* SPDX-License-Identifier: BSD-2-Clause */
/* The options --nodes, --launch, --ssh and --slurm, and which processes they mean. */
#ifndef LIEN_TOOLS_NODES_H
#define LIEN_TOOLS_NODES_H

#include <stdbool.h>

#include <jansson.h>

#include "tools/cli/node_link.h"
#include "tools/cli/options.h"

struct lien_nodes_options {
	struct lien_names nodes;
	const char *launch, *slurm, *program, *state;
	bool ssh;
	unsigned long lease_ms;
};

/* clang-format off */
#define LIEN_NODES_OPTIONS(o) \
	{"nodes", LIEN_OPTION_NAMES, &(o)->nodes, "NODES", \
		"on these nodes, n1,n2,...: needs --launch, --ssh or --slurm; may be repeated", 0}, \
	{"launch", LIEN_OPTION_STRING, &(o)->launch, "COMMAND", \
		"what starts a process on a node, whose name replaces {node}: 'ssh {node}'", 0}, \
	{"ssh", LIEN_OPTION_FLAG, &(o)->ssh, NULL, \
		"the same as --launch 'ssh -o BatchMode=yes {node}'", 0}, \
	{"slurm", LIEN_OPTION_STRING, &(o)->slurm, "JOBID", \
		"this job's nodes, by srun --overlap; of an offload: its processes", 0}, \
	{"lien", LIEN_OPTION_STRING, &(o)->program, "PATH", \
		"the lien program on the nodes (default lien)", 0}
#define LIEN_NODES_MOVE_OPTIONS(o) \
	{"state", LIEN_OPTION_STRING, &(o)->state, "DIR", \
		"where the decision for all nodes is written (default ~/.local/state/lien)", 0}, \
	{"lease", LIEN_OPTION_NUMBER, &(o)->lease_ms, "MS", \
		"how long a node waits for word from here before it undoes (default 10000)", 600000}
/* clang-format on */

/* Do the options ask for other nodes than this one? */
bool lien_nodes_wanted(const struct lien_nodes_options *options);
/* Reads the names and the launcher. Returns false after a message: the command ends with *code. */
bool lien_nodes_prepare(const struct lien_usage *usage, const struct lien_nodes_options *options,
	const char *socket, struct lien_nodes *nodes, int *code);
/* Starts the launchers and waits until `lien node` has answered everywhere. Returns false after a
 * message that names the node: nothing was touched. */
bool lien_nodes_connect(struct lien_nodes *nodes, const char *command);
/* Sends a request to all nodes and waits for the replies. Returns the results, an array in the
 * order of the nodes, or NULL after a message that names the node. `code`: set then, as
 * lien_query()'s. */
json_t *lien_nodes_query(
	struct lien_nodes *nodes, const char *command, const json_t *request, int *code);
/* The same with a request for each node. A node whose request is null is not asked; its result is
 * null. */
json_t *lien_nodes_query_each(
	struct lien_nodes *nodes, const char *command, const json_t *requests, int *code);
/* Returns the processes of a Slurm job that the agents know, an array for each node; NULL after a
 * message. */
json_t *lien_nodes_slurm(struct lien_nodes *nodes, const char *command, const char *job, int *code);

#endif
