// SPDX-License-Identifier: BSD-2-Clause
#include "control/gate.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Threads that wait beyond these wait until the gate opens. */
#define PLACES 512

struct place {
	uint32_t tid; /* 0: free */
	uint32_t passed;
};

static struct {
	uint32_t shut;
	uint32_t turn; /* changes whenever those who wait are to look again */
	struct place places[PLACES];
} gate;

static struct place *place_take(uint32_t tid)
{
	uint32_t none;
	unsigned i;

	for (i = 0; i < PLACES; i++) {
		none = 0;
		if (__atomic_compare_exchange_n(&gate.places[i].tid, &none, tid, 0,
			    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			return &gate.places[i];
	}
	return NULL;
}

static void look_again(void)
{
	__atomic_fetch_add(&gate.turn, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &gate.turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void lien_gate_wait(void)
{
	struct place *place;
	uint32_t turn;

	if (!__atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST))
		return;
	place = place_take(syscall(SYS_gettid));
	if (place)
		__atomic_store_n(&place->passed, 0, __ATOMIC_SEQ_CST);
	for (;;) {
		turn = __atomic_load_n(&gate.turn, __ATOMIC_SEQ_CST);
		if (!__atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST) ||
			(place && __atomic_load_n(&place->passed, __ATOMIC_SEQ_CST)))
			break;
		syscall(SYS_futex, &gate.turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
	}
	if (place)
		__atomic_store_n(&place->tid, 0, __ATOMIC_RELEASE);
}

void lien_gate_shut(void)
{
	__atomic_store_n(&gate.shut, 1, __ATOMIC_SEQ_CST);
}

void lien_gate_open(void)
{
	__atomic_store_n(&gate.shut, 0, __ATOMIC_SEQ_CST);
	look_again();
}

int lien_gate_is_shut(void)
{
	return __atomic_load_n(&gate.shut, __ATOMIC_SEQ_CST);
}

void lien_gate_pass(const uint32_t *tids, unsigned count)
{
	unsigned i, j;

	for (i = 0; i < count; i++)
		for (j = 0; j < PLACES; j++)
			if (__atomic_load_n(&gate.places[j].tid, __ATOMIC_ACQUIRE) == tids[i])
				__atomic_store_n(&gate.places[j].passed, 1, __ATOMIC_SEQ_CST);
	look_again();
}
