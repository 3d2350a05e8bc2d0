// SPDX-License-Identifier: BSD-2-Clause
#include "control/driver/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control/driver/thread.h"

/* Further threads wait until the gate opens. */
#define PLACES 512

/* Belongs to a thread while it waits, or to one that was let in before its signal arrived. */
struct place {
	uint32_t tid; /* 0: free */
	uint32_t passed;
};

static struct {
	uint32_t busy; /* protects the places; held only briefly */
	uint32_t shut;
	uint32_t pid;  /* owner: a forked child has a copy, and nobody who would open it */
	uint32_t turn; /* changes whenever waiting threads must look again */
	struct place places[PLACES];
} gate LIEN_ZERO_IN_CHILD;

static void lock(void)
{
	while (__atomic_exchange_n(&gate.busy, 1, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void unlock(void)
{
	__atomic_store_n(&gate.busy, 0, __ATOMIC_RELEASE);
}

static struct place *place_of(uint32_t tid)
{
	unsigned i;

	for (i = 0; i < PLACES; i++)
		if (__atomic_load_n(&gate.places[i].tid, __ATOMIC_ACQUIRE) == tid)
			return &gate.places[i];
	return NULL;
}

/* The thread takes the place, or another takes it for the thread, whichever comes first: never
 * both, because one sees the other's. */
static struct place *place_take(uint32_t tid)
{
	struct place *place;
	uint32_t none;
	unsigned i;

	lock();
	place = place_of(tid);
	for (i = 0; i < PLACES && !place; i++) {
		none = 0;
		if (__atomic_compare_exchange_n(
			    &gate.places[i].tid, &none, tid, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			place = &gate.places[i];
	}
	unlock();
	return place;
}

void lien_gate_look_again(void)
{
	__atomic_fetch_add(&gate.turn, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &gate.turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

int (*lien_gate_needless)(void);

void lien_gate_wait(void)
{
	struct place *place;
	uint32_t turn;

	if (!__atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST) || gate.pid != (uint32_t)getpid())
		return;
	place = place_take(syscall(SYS_gettid));
	for (;;) {
		turn = __atomic_load_n(&gate.turn, __ATOMIC_SEQ_CST);
		if (!__atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST) ||
			(lien_gate_needless && lien_gate_needless()) ||
			(place && __atomic_load_n(&place->passed, __ATOMIC_SEQ_CST)))
			break;
		syscall(SYS_futex, &gate.turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
	}
	if (!place)
		return;
	__atomic_store_n(&place->passed, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&place->tid, 0, __ATOMIC_RELEASE);
}

uintptr_t lien_gate_futex(void)
{
	return (uintptr_t)&gate.turn;
}

void lien_gate_shut(void)
{
	gate.pid = getpid();
	__atomic_store_n(&gate.shut, 1, __ATOMIC_SEQ_CST);
}

void lien_gate_open(void)
{
	unsigned i;

	__atomic_store_n(&gate.shut, 0, __ATOMIC_SEQ_CST);
	lien_gate_look_again();
	/* Frees the places of threads that never came; a waiting thread frees its own. */
	for (i = 0; i < PLACES; i++)
		if (__atomic_exchange_n(&gate.places[i].passed, 0, __ATOMIC_SEQ_CST))
			__atomic_store_n(&gate.places[i].tid, 0, __ATOMIC_RELEASE);
}

int lien_gate_is_shut(void)
{
	return __atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST) && gate.pid == (uint32_t)getpid();
}

void lien_gate_pass(const uint32_t *tids, unsigned count)
{
	struct place *place;
	unsigned i;

	if (!lien_gate_is_shut())
		return; /* it has opened by itself: the next gate must not let them in */
	for (i = 0; i < count; i++) {
		place = place_take(tids[i]);
		if (place)
			__atomic_store_n(&place->passed, 1, __ATOMIC_SEQ_CST);
	}
	lien_gate_look_again();
}
