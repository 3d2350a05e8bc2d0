/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The threads known to the BPF programs: map `threads`, whose value is a struct private to them.
 * Its members are found by name in the programs' type information.
 */
#ifndef LIEN_THREADS_H
#define LIEN_THREADS_H

#include "loader/probes/probes_internal.h"

enum lien_thread_member {
	LIEN_THREAD_PID,
	LIEN_THREAD_TID,
	LIEN_THREAD_START, /* start of its process */
	LIEN_THREAD_DEPTH, /* number of calls in progress whose return is probed */
	LIEN_THREAD_LAST_SP,
	LIEN_THREAD_LAST_CALLER,
	LIEN_THREAD_T_COUNTED,
	LIEN_THREAD_T_GATE,
	LIEN_THREAD_GATE_TURN,
	LIEN_THREAD_GATE_SP,
	LIEN_THREAD_GATE_CALL,
	LIEN_THREAD_GROUP_INSIDE,
	LIEN_THREAD_MEMBERS
};

struct lien_thread;

uint64_t lien_thread_get(const struct lien_thread *thread, enum lien_thread_member member);
/* Returns the number of the attachment that saw the call at that depth, from 0. */
unsigned lien_thread_attachment(const struct lien_thread *thread, unsigned depth);

/*
 * Calls fn for each thread until it returns non-zero, and returns that value; fn may remove the
 * thread that it is given. As lien_map_each().
 */
int lien_threads_each(struct lien_probes *probes,
	int (*fn)(void *context, uint32_t ktid, const struct lien_thread *thread), void *context);

#endif
