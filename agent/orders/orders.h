/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_ORDERS_H
#define LIEN_ORDERS_H

#include "agent/core/agent.h"
#include "agent/core/transfer.h"
#include "agent/link/link.h"

/* Carries out transactions over the links to the control libraries. 0, or -errno with one line in
 * error and the cause in agent->blame. The offload keeps a copy of the transfer. */
int lien_orders_offload(struct lien_agent *agent, const struct lien_transfer *transfer,
	bool *nothing, char *error, size_t error_size);
/* Plans an offload without doing it; fills in `selection->open`. */
int lien_orders_plan(struct lien_agent *agent, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size);
/* Returns 0 if host memory and its limits allow what is planned, or -ENOMEM: checked before
 * anything is touched, because the arena grows in the middle of the offload. */
int lien_orders_check_host(struct lien_agent *agent, const struct lien_plan *plan,
	const struct lien_how *how, char *error, size_t size);
/* Uses only the selection's pids, groups, tags and viewer. */
int lien_orders_restore(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_how *how, bool *nothing, char *error, size_t error_size);
/* Releases the unused part of the host arenas of these processes (none: of all that the viewer
 * sees). */
int lien_orders_release(struct lien_agent *agent, const struct lien_selection *selection,
	bool *nothing, char *error, size_t error_size);
/* For struct lien_transaction_ops. */
bool lien_orders_may_share(void *agent, uint32_t pid, uint32_t other);
/* Returns the operations that a transaction acts through. */
struct lien_transaction_ops lien_orders_ops(struct lien_agent *agent);
/* Returns 0 if no other transaction is under way, or -EBUSY and why. */
int lien_orders_ready(struct lien_agent *agent, char *error, size_t size);
/* NULL: no process has the pid, or nothing is known of its control library. */
struct lien_tracked *lien_orders_tracked(struct lien_agent *agent, uint32_t pid);
/* Returns who gave the order that is under way, or the one that waits. */
static inline enum lien_asker lien_orders_asked(const struct lien_tracked *tracked)
{
	return tracked->link ? tracked->link->asked : LIEN_ASK_NOBODY;
}
static inline enum lien_asker lien_orders_waiting(const struct lien_tracked *tracked)
{
	return tracked->link ? tracked->link->waiting.asker : LIEN_ASK_NOBODY;
}
/* Returns what such an order does: "reading its memory". */
const char *lien_orders_words(enum lien_asker asker);
/* Frees the transaction, which has ended. */
void lien_orders_end(struct lien_agent *agent);
void lien_orders_unlink(struct lien_tracked *tracked);
int lien_orders_link(struct lien_agent *agent, struct lien_process *process,
	const struct lien_control_state *state);
void lien_orders_tick(struct lien_agent *agent);
/* Has something happened to a process of the transaction that it has not reacted to? */
bool lien_orders_must_react(const struct lien_agent *agent);
/* At the agent's end: are short orders under way that it should wait for? No more are given. */
bool lien_orders_finishing(struct lien_agent *agent);

/* The control library of a process (connect.c). */
/* Looks for the control library in the process's mappings, and links to it. */
void lien_presence_look(struct lien_agent *agent, struct lien_process *process);
/* The control library at the known place takes no orders: every driver call that it makes is the
 * application's. */
void lien_presence_passes_on(struct lien_agent *agent, struct lien_process *process);

/* Host memory for the first offload of a process, pinned in advance (prepare.c). */
/* Returns the size of all processes' host arenas, with what is being added to them. */
uint64_t lien_prepare_held(struct lien_agent *agent);
/* Returns the bytes of host memory that an offload of all that the process has would take; *device:
 * the device that has most of them. */
uint64_t lien_prepare_wanted(const struct lien_process *process, int *device);
/* Is nothing pinned in advance there, because it would count towards a memory cgroup with a limit?
 */
bool lien_prepare_excluded(const struct lien_agent *agent, const struct lien_process *process);
/* Handles the last reply to its order. */
void lien_prepare_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
void lien_prepare_tick(struct lien_agent *agent);

#endif
