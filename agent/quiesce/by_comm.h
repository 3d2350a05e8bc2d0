/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Gates that hold calls by communicator. If only some communicators' memory is away from a process,
 * the others can be used: their calls pass. That needs certainty about whose memory it is.
 * Communicators that were split or shrunk from each other may share memory, so they are held
 * together; and so is everything if any memory that is away is only attributed by a guess, is not
 * NCCL's, or is not known.
 */
#ifndef LIEN_BY_COMM_H
#define LIEN_BY_COMM_H

#include "agent/core/agent.h"

/* Call this when an offload has succeeded: notes the processes whose moved memory may be several
 * communicators'. */
void lien_by_comm_moved(struct lien_agent *agent);
/* Call this when an offload or a restore has ended: makes the process's gate, if it is shut, hold
 * what it has to, and lets go of threads that it no longer holds. */
void lien_by_comm_set(struct lien_agent *agent, uint32_t pid);
/* Returns why the process's gate, which is shut, holds all communicators: a clause. NULL: it does
 * not. */
const char *lien_by_comm_why(struct lien_agent *agent, struct lien_process *process);
/* Returns the number that a communicator has in common with all of the process that may share
 * memory with it, because they were split or shrunk from each other; those whose origin no longer
 * exists have one together. 0: there are too many in between. */
uint32_t lien_by_comm_family(const struct lien_process *process, const struct lien_comm *comm);

#endif
