/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Holds threads back around transactions and while memory is away, with the kernel's probes
 * (loader/probes/gate.h). agent/quiesce/quiesce.h decides which threads to let in so that a job
 * comes to rest.
 */
#ifndef LIEN_AGENT_GATE_H
#define LIEN_AGENT_GATE_H

#include <jansson.h>

#include "agent/core/agent.h"
#include "loader/probes/gate.h"

#define LIEN_GATE_AGAIN_NS 1000000000ull /* after what was not possible */

/* NULL: it has ended, or nothing is known of it. */
static inline struct lien_tracked *lien_gate_tracked(const struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process ? process->agent : NULL;
}

/* Makes the process's gate, which holds nobody yet. `wait`: for the kernel, for a while; otherwise
 * it only begins. -ETIMEDOUT: try again. Like the others it says why in `why`. */
int lien_gate_make(
	struct lien_agent *agent, struct lien_process *process, bool wait, char *why, size_t size);

/* Call this before the agent's plan is carried out. `all`: memory other than NCCL's is moved. */
void lien_gate_set(struct lien_agent *agent, bool all);
/* Call this afterwards: sets what happens to threads that need the memory until it is back. */
void lien_gate_set_on_use(struct lien_agent *agent, enum lien_on_use on_use);
/*
 * Before all are at rest: does the process's gate hold every thread, and is each one known?
 * Attaches to libraries that the process has mapped since. Returns false and why.
 */
bool lien_gate_covers(struct lien_agent *agent, uint32_t pid, const struct lien_probe_gate *gate,
	char *why, size_t size);
/* Says of a thread, by its pids in the agent's namespace, that no gate holds it. `call`: the one
 * that it has entered; NULL: none. */
void lien_gate_say_unheld(uint32_t pid, uint32_t tid, const char *call, char *why, size_t size);
/* For struct lien_transaction_ops. */
int lien_gate_step(void *agent, uint32_t pid, enum lien_gate_step step, char *why, size_t size);

/* A transaction has ended, and the process's gate, if it is still shut, stays so: if it guards
 * NCCL's memory alone, captures may begin again. */
void lien_gate_stays(struct lien_agent *agent, uint32_t pid);
/* Call this when a gate that stays shut has changed: lets go of the process's threads that it would
 * not hold now, at once or, while another order is under way, with one of the next ticks. More than
 * some thousand: the others wait for the end. */
void lien_gate_let_go(struct lien_agent *agent, struct lien_tracked *tracked);
/* Does the thread wait for what an earlier transaction has taken away, whatever the present one
 * holds? Nobody can wait for such a thread: all were at rest with it. */
bool lien_gate_held_before(
	const struct lien_agent *agent, uint32_t pid, const struct lien_probe_held *held);

/* Unless a transaction runs: puts gates on what processes have loaded while their memory is away,
 * looks for threads that wait for it, and acts as the offload's client asked. Call it also when a
 * transaction has ended, before anybody begins another one. */
void lien_gate_tick(struct lien_agent *agent);
/* Puts the gate on libraries that the process has loaded while its memory is away. Not during a
 * transaction, which looks by itself (lien_gate_covers()). */
void lien_gate_cover(struct lien_agent *agent, struct lien_process *process);
/* Does a thread of a user other than the transaction's wait for memory that is to be restored for
 * it? */
bool lien_gate_others_wait(struct lien_agent *agent);
/* A control library has reported whether memory of its process is away, and whether its gate is
 * shut. Shuts the gate of a process from which an earlier agent has moved memory, or opens one that
 * is shut for no reason. Returns true if the control library has got an order, and will answer. */
bool lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool away, bool shut);
/* Returns the held threads, as `status` shows them. */
json_t *lien_gate_view(struct lien_agent *agent, const struct lien_viewer *viewer);
extern const char *const lien_on_use_names[LIEN_ON_USE_IGNORE + 1];

/* --- by_comm.c ------------------------------------------------------------------------------- */

/*
 * Gates that hold calls by communicator. If only some communicators' memory is away from a process,
 * the others can be used: their calls pass. That needs certainty about whose memory it is.
 * Communicators that were split or shrunk from each other may share memory, so they are held
 * together; and so is everything if any memory that is away is only attributed by a guess, is not
 * NCCL's, or is not known.
 */

/* Call this when an offload has succeeded: notes the processes whose moved memory may be several
 * communicators'. */
void lien_by_comm_moved(struct lien_agent *agent);
/* Call this when an offload or a restore has ended: makes the process's gate, if it is shut, hold
 * what it has to, and lets go of threads that it no longer holds. */
void lien_by_comm_set(struct lien_agent *agent, uint32_t pid);
/*
 * For struct lien_transaction_ops.next_part: which memory a restore in parts brings back next. One
 * communicator's after the other, or that of several together if they may share some. Those for
 * which threads wait come first, the longest wait first; then the smallest. From the second part
 * on, each has up to twice as many of them as the one before, so that parts are few; no part mixes
 * those that threads wait for with others. Takes all at once, and says why, where gates cannot tell
 * communicators apart: what came back first would be of no use.
 */
unsigned lien_parts_next(void *agent, const struct lien_transaction_result *result,
	uint64_t *groups, unsigned max, char *why, size_t size);

#endif
