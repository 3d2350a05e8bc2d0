/* SPDX-License-Identifier: BSD-2-Clause */
/* `lien replay`: runs a recording again, one process per recorded one, on any CUDA driver. */
#ifndef LIEN_REPLAY_H
#define LIEN_REPLAY_H

/* The subcommand; argv[0] is its name. Returns the exit status: 0 only if nothing failed, 2 for
 * wrong usage. Its worker processes run it, too: `lien replay --worker N --fd FD`. */
int lien_cmd_replay(int argc, char **argv);

#endif
