// SPDX-License-Identifier: BSD-2-Clause
/* Finds threads that are in a call, by what the gates have seen and by the threads' stacks. */
#include "agent/quiesce/rest_internal.h"

#include <stdio.h>
#include <string.h>

#include "agent/quiesce/gate.h"
#include "agent/quiesce/late.h"
#include "loader/probes/calls.h"
#include "loader/probes/gate.h"
#include "loader/discover/untrusted.h"

#define COUNTED_NS 100000000ull

struct area {
	uint64_t address;
	bool found;
};

static int find_area(const struct lien_maps_entry *entry, void *arg)
{
	struct area *area = arg;

	area->found = area->address >= entry->start && area->address < entry->end &&
		      !strcmp(entry->path, "[uprobes]");
	return area->found;
}

/* Is it the address to which functions with a probed return go back? */
static bool is_trampoline(uint32_t pid, uint64_t address)
{
	struct area area = {.address = address};

	lien_maps_read(pid, find_area, &area);
	return area.found;
}

/*
 * The return of a collective that was entered before the gate existed is not seen. The collective
 * has returned if the stack is shorter than it was then, or if its return address was overwritten
 * by something other than an earlier gate's probe.
 */
static bool may_be_inside(const struct lien_probe_thread *thread)
{
	uint64_t number, argument, sp, word = 0;
	uint32_t pid = thread->pid;

	if (thread->inside)
		return true;
	if (!thread->sp ||
		(lien_late_stands(pid, thread->tid, &number, &argument, &sp) && sp > thread->sp))
		return false;
	return lien_untrusted_memory(pid, thread->sp, &word, sizeof(word)) == sizeof(word) &&
	       (word == thread->caller || is_trampoline(pid, word));
}

struct looking {
	struct rest *rest;
	bool all_seen; /* the gates have seen the threads that are inside */
	char *why;     /* buffer for the reason; NULL: another is known */
	size_t size;
};

static void set_busy(struct rest *rest, uint32_t pid)
{
	const int index = lien_rest_index_of(rest, pid);

	if (index >= 0)
		rest->busy[index] = true;
}

/*
 * The gate's probe and the one that counts a call are two, and the thread can be off the processor
 * between them for long. Usually the gate's comes first. If it is the second, the call seems
 * uncounted for as long as it is held: not after COUNTED_NS.
 */
static bool may_be_miscounted(const struct rest *rest, const struct lien_probe_thread *thread)
{
	if (thread->t_counted >= rest->since)
		return true;
	return LIEN_CALL_IS_TRAFFIC(thread->call) && thread->t_counted < thread->t_entered &&
	       rest->since < thread->t_entered + COUNTED_NS;
}

static int look_at_thread(void *context, const struct lien_probe_thread *thread)
{
	struct looking *looking = context;

	looking->rest->miscounted |= may_be_miscounted(looking->rest, thread);
	if (!thread->seen) {
		/* After UNSEEN_MAX, a thread counts as in a call, and the next look reads its
		 * stack.
		 */
		if (looking->rest->unseen_count < UNSEEN_MAX && !may_be_inside(thread))
			return 0;
		looking->all_seen = false;
		set_busy(looking->rest, thread->pid);
		if (looking->rest->unseen_count < UNSEEN_MAX)
			looking->rest->unseen[looking->rest->unseen_count++] =
				(struct lien_probe_held_key){thread->pid, thread->tid};
		if (!looking->why || looking->why[0])
			return 0; /* who is held says more */
		looking->rest->resting->who = thread->pid;
		snprintf(looking->why, looking->size,
			"thread %u of process %u may be in a call of NCCL", thread->tid,
			thread->pid);
		return 0;
	}
	if (thread->inside && !lien_rest_is_held(looking->rest, thread)) {
		looking->rest->resting->begins |= LIEN_CALL_BEGINS_CAPTURE(thread->call);
		if (!looking->why)
			return 0;
		looking->rest->resting->who = thread->pid;
		snprintf(looking->why, looking->size, "thread %u of process %u %s %s", thread->tid,
			thread->pid, thread->call ? "is in" : "has opened",
			thread->call ? lien_calls_name(thread->call) : "an NCCL group");
	}
	return 0;
}

bool lien_rest_all_seen(struct rest *rest, char *why, size_t size)
{
	struct looking looking = {rest, true, why, size};

	return lien_probes_threads(rest->agent->probes, rest->pids, rest->count, look_at_thread,
		       &looking) >= 0 &&
	       looking.all_seen;
}

struct unheld {
	const struct rest *rest;
	struct lien_probe_held_key who; /* .tid 0: nobody */
};

static int note_unheld(void *context, const struct lien_probe_held_key *who)
{
	struct unheld *unheld = context;

	if (lien_rest_index_of(unheld->rest, who->pid) < 0)
		return 0;
	unheld->who = *who;
	return 1;
}

bool lien_rest_can_hold(struct rest *rest, char *why, size_t size)
{
	struct unheld unheld = {.rest = rest};
	int found = lien_probes_unheld(rest->agent->probes, note_unheld, &unheld);

	if (found < 0)
		snprintf(why, size, "threads cannot be looked at: %s", strerror(-found));
	else if (found) {
		rest->resting->who = unheld.who.pid;
		lien_gate_say_unheld(unheld.who.pid, unheld.who.tid, NULL, why, size);
	}
	return !found;
}

bool lien_rest_is_quiet(
	const struct rest *rest, uint32_t pid, bool *busy, bool *covered, char *why, size_t size)
{
	struct lien_probe_gate gate;

	if (!lien_probes_gate_get(rest->agent->probes, pid, &gate))
		return true;
	if (!lien_gate_covers(rest->agent, pid, &gate, why, size)) {
		rest->resting->who = pid;
		*covered = false;
		return false;
	}
	if (gate.inside <= lien_rest_held_in(rest, pid))
		return true;
	*busy = true;
	rest->resting->who = pid;
	snprintf(why, size, "a thread of process %u is in a call of NCCL or the driver", pid);
	return false;
}
