/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the BPF programs know of threads: map `threads`, whose values are a struct that is theirs
 * alone. Its members are found by name in the programs' type information.
 */
#ifndef LIEN_THREADS_H
#define LIEN_THREADS_H

#include "loader/probes/probes_internal.h"

enum lien_thread_member {
	LIEN_THREAD_PID,
	LIEN_THREAD_TID,
	LIEN_THREAD_START, /* of its process */
	LIEN_THREAD_DEPTH, /* so many calls are under way that are seen returning */
	LIEN_THREAD_LAST_SP,
	LIEN_THREAD_LAST_CALLER,
	LIEN_THREAD_GATE_TURN,
	LIEN_THREAD_GATE_SP,
	LIEN_THREAD_GATE_CALL,
	LIEN_THREAD_GROUP_INSIDE,
	LIEN_THREAD_MEMBERS
};

struct lien_thread;

uint64_t lien_thread_get(const struct lien_thread *thread, enum lien_thread_member member);
/* Through which attachment the call at that depth was seen, from 0. */
unsigned lien_thread_attachment(const struct lien_thread *thread, unsigned depth);

/*
 * Each thread, until fn returns something else than 0, which is returned; fn may remove the thread
 * that it is given. Threads come and go meanwhile: one may be given twice, and a new one not at
 * all. -errno.
 */
int lien_threads_each(struct lien_probes *probes,
	int (*fn)(void *context, uint32_t ktid, const struct lien_thread *thread), void *context);
void lien_threads_remove(struct lien_probes *probes, uint32_t ktid);

#endif
