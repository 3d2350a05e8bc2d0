/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands of `lien`, each in its own file. argv[0] is the command's name. They return the exit
 * code: 0, 1 for a failure, 2 for wrong usage; `run` does not return when it succeeds. */
#ifndef LIEN_TOOLS_COMMANDS_H
#define LIEN_TOOLS_COMMANDS_H

#include <lien/version.h>

int lien_cmd_agent(int argc, char **argv);
int lien_cmd_arena(int argc, char **argv);
int lien_cmd_attach(int argc, char **argv);
int lien_cmd_check(int argc, char **argv);
int lien_cmd_comms(int argc, char **argv);
int lien_cmd_detach(int argc, char **argv);
int lien_cmd_doctor(int argc, char **argv);
int lien_cmd_events(int argc, char **argv);
int lien_cmd_graph(int argc, char **argv);
int lien_cmd_holders(int argc, char **argv);
int lien_cmd_mem(int argc, char **argv);
int lien_cmd_offload(int argc, char **argv);
int lien_cmd_ps(int argc, char **argv);
int lien_cmd_record(int argc, char **argv);
int lien_cmd_replay(int argc, char **argv);
int lien_cmd_restore(int argc, char **argv);
int lien_cmd_run(int argc, char **argv);
int lien_cmd_snapshot(int argc, char **argv);
int lien_cmd_status(int argc, char **argv);
int lien_cmd_top(int argc, char **argv);

#endif
