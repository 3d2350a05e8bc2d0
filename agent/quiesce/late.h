/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that wait for a gate that does not know of them. An earlier gate has signalled them, and
 * on a busy machine the signal came only when that gate was open and the next one shut. They were
 * let go with the earlier gate, so others may wait for the call before which they stand; the next
 * gate has not seen them enter it.
 */
#ifndef LIEN_LATE_H
#define LIEN_LATE_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/core/agent.h"

/* Reads where a thread that does not run stands: number and first argument of its system call
 * (UINT64_MAX: none), and its stack pointer (UINT64_MAX: it has ended). Returns false if it runs.
 */
bool lien_late_stands(
	uint32_t pid, uint32_t tid, uint64_t *number, uint64_t *argument, uint64_t *sp);
/*
 * Does the thread, which the gate has not seen, wait for it? Then *own is the number that its
 * process knows it by. True only once for each thread and gate, so that nobody can be let in twice;
 * more than about ten are not found.
 */
bool lien_late_waits(struct lien_agent *agent, uint32_t pid, uint32_t tid, uint32_t *own);

#endif
