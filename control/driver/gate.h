/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where threads of the application wait while memory is being moved or is away. BPF sends them the
 * control library's signal as they enter a call (bpf/gate.h); its handler waits here, so a thread
 * is stopped at a function's first instruction, where it holds no lock of the driver's or NCCL's
 * that the control thread could need. Safe in a signal handler: futexes and nothing else.
 *
 * A gate whose agent is not heard of for LIEN_GATE_LEASE_MS opens by itself, as long as nothing is
 * away. What was saved until then is not dropped any more, for the application may change it; what
 * of it others import stays exportable (LIEN_ITEM_LENT).
 */
#ifndef LIEN_CONTROL_GATE_H
#define LIEN_CONTROL_GATE_H

#include <stdint.h>

#define LIEN_GATE_LEASE_MS 5000

/* In the handler: returns at once while the gate is open. */
void lien_gate_wait(void);
/* In the control thread. */
void lien_gate_shut(void);
void lien_gate_open(void);
int lien_gate_is_shut(void);
/* In a child of fork(), whose gate is open. */
void lien_gate_forked(void);
/* Lets some threads, by tid, do the one call that they are held at. */
void lien_gate_pass(const uint32_t *tids, unsigned count);

#endif
