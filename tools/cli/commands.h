/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The commands of `lien`: X(name, the line that `lien --help` shows). A command is a row here, in
 * the order of the help, and lien_cmd_NAME() in cmd_NAME.c (restore: cmd_offload.c, snapshot:
 * cmd_record.c); argv[0] is its name. The functions return the exit code: 0, 1 for a failure, 2 for
 * wrong usage; `run` does not return when it succeeds.
 */
#ifndef LIEN_TOOLS_COMMANDS_H
#define LIEN_TOOLS_COMMANDS_H

#include <lien/version.h>

/* clang-format off */
#define LIEN_COMMANDS(X) \
	X(agent,    "watch this node's GPU processes; the other commands ask it") \
	X(run,      "start a program so that its memory can be offloaded") \
	X(attach,   "put the control library into processes that run already") \
	X(detach,   "undo attach; the library stays mapped and does nothing") \
	X(ps,       "list the processes that use CUDA") \
	X(mem,      "show who owns how much GPU memory, and what offload would free") \
	X(check,    "find leaks and anomalies; --deep: compare with the driver") \
	X(top,      "show the processes on a full screen, refreshed") \
	X(comms,    "show NCCL's communicators, and which rank is behind") \
	X(holders,  "explain who keeps the memory at an address alive") \
	X(graph,    "print the whole graph: a picture, JSON, or for graphviz") \
	X(offload,  "move memory to the host and free it on the GPUs") \
	X(restore,  "put offloaded memory back") \
	X(node,     "connect a launcher with this node's agent, for --nodes") \
	X(arena,    "show host memory held for offloads; --release gives it back") \
	X(status,   "show what the agent does and what it missed") \
	X(metrics,  "print figures for Prometheus: memory, transactions, refusals") \
	X(doctor,   "check what this machine has and lacks") \
	X(events,   "print what GPU processes do, as it happens") \
	X(snapshot, "write the present state to a file, for --from") \
	X(record,   "write what GPU processes do to a file") \
	X(replay,   "run a recording again") \
	X(timeline, "turn a recording into a trace for Perfetto") \
	X(diff,     "show what memory grew or shrank between two files") \
	X(completion, "print a completion script for bash, zsh or fish")
/* clang-format on */

#define LIEN_COMMAND_DECLARED(name, line) int lien_cmd_##name(int argc, char **argv);
LIEN_COMMANDS(LIEN_COMMAND_DECLARED)
#undef LIEN_COMMAND_DECLARED

struct lien_command {
	const char *name;
	const char *line;
	int (*run)(int argc, char **argv);
};

/* The initializer of an array of struct lien_command. */
#define LIEN_COMMAND_ROW(name, line) {#name, line, lien_cmd_##name},

#endif
