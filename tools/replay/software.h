/* SPDX-License-Identifier: BSD-2-Clause */
/* `lien replay --software`: the software driver takes the place of a GPU's. */
#ifndef LIEN_REPLAY_SOFTWARE_H
#define LIEN_REPLAY_SOFTWARE_H

/*
 * Processes that are started from now on use the software driver, with so many devices unless
 * LIEN_SOFTCUDA_DEVICES says otherwise. Their memory goes with the last of them, unless
 * LIEN_SOFTCUDA_DIR says where to keep it. An agent that runs has probed the driver by then, so
 * that it sees their first call. Needs root. Returns 0, or non-zero after a message.
 */
int lien_replay_software(const char *command, int devices);

#endif
