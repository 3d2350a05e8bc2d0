/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_ORDERS_H
#define LIEN_ORDERS_H

#include "agent/core/agent.h"

/* Carries out transactions over the links to the control libraries. 0, or -errno with one line in
 * error and the cause in agent->blame. `flags` as for lien_transaction_offload(). */
int lien_orders_offload(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_offload_how *how, bool *nothing, char *error, size_t error_size);
/* Plans an offload without doing it; fills in `selection->open`. */
int lien_orders_plan(struct lien_agent *agent, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size);
/* Returns 0 if host memory and its limits allow what is planned, or -ENOMEM: checked before
 * anything is touched, because the arena grows in the middle of the offload. */
int lien_orders_check_host(struct lien_agent *agent, const struct lien_plan *plan,
	const struct lien_offload_how *how, char *error, size_t size);
/* Uses only the selection's pids, groups, tags and viewer. */
int lien_orders_restore(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_restore_how *how, bool *nothing, char *error, size_t error_size);
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
enum lien_asker lien_orders_asked(const struct lien_tracked *tracked);
enum lien_asker lien_orders_waiting(const struct lien_tracked *tracked);
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
/* Makes the transaction react. */
void lien_orders_react(struct lien_agent *agent);
/* At the agent's end: waits briefly for the short orders under way. */
void lien_orders_finish(struct lien_agent *agent);

#endif
