/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Holds the application's threads while memory is being moved or is away. BPF sends them the
 * control library's signal as they enter a call (bpf/gate.h); its handler waits here. So a thread
 * is stopped at a function's first instruction, where it holds no lock of the driver or NCCL that
 * the control thread could need. Safe in a signal handler: uses only futexes.
 *
 * The gate opens by itself if it does not hear from the agent for LIEN_GATE_LEASE_MS, unless memory
 * is away. Memory that was saved until then is no longer dropped, because the application may
 * change it; the parts that others import stay exportable (LIEN_ITEM_LENT).
 */
#ifndef LIEN_CONTROL_GATE_H
#define LIEN_CONTROL_GATE_H

#include <stdint.h>

#define LIEN_GATE_LEASE_MS 5000

/* Called by the handler. Returns at once while the gate is open. */
void lien_gate_wait(void);
/* If set: returns whether what the calling thread waits for has come, although the gate is shut. */
extern int (*lien_gate_needless)(void) __attribute__((visibility("hidden")));
/* Waiting threads ask again whether they have to. */
void lien_gate_look_again(void);
/* Returns the address at which threads wait. */
uintptr_t lien_gate_futex(void);
/* Called by the control thread. */
void lien_gate_shut(void);
void lien_gate_open(void);
int lien_gate_is_shut(void);
/* Lets threads, given by tid, make the one call at which they are held. */
void lien_gate_pass(const uint32_t *tids, unsigned count);

/* watchdog.c, for the control thread: the process's memory goes away, and is back. */
void lien_watchdog_away(void);
void lien_watchdog_back(void);

#endif
