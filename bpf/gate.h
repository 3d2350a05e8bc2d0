/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The gate: while memory is being moved or is away, threads that would work on it are stopped at
 * the first instruction of the call. Attached to one process at a time, or to all that map the file
 * (loader/probes/gate_links.h): a process without an entry in map `gates` passes. A call that was
 * let in is counted until it returns, because it may start its work as late as that.
 *
 * Every failure here is counted in struct lien_probe_gate, and the agent refuses or undoes the
 * transaction: a thread is never let in because a map had no room.
 */
#ifndef LIEN_BPF_GATE_H
#define LIEN_BPF_GATE_H

#include "nccl.h"

HASH_MAP(gates, PROCESSES_MAX, __u32, struct lien_probe_gate);

/* Gates that guard any memory, not just NCCL's; key: pid. */
HASH_MAP(gates_all, PROCESSES_MAX, __u32, __u32);

HASH_MAP(shut, PROCESSES_MAX, __u32, struct lien_probe_shut);

HASH_MAP(held, THREADS_MAX, struct lien_probe_held_key, struct lien_probe_held);

/* Communicators that a gate with `by_comm` holds; the value means nothing. */
HASH_MAP(comms_away, LIEN_PROBE_COMMS_AWAY_MAX, struct lien_probe_comm, __u32);

/* Written for one job at a time, and emptied before it counts as at rest. */
HASH_MAP(allowed, LIEN_PROBE_ALLOWED_MAX, struct lien_probe_pair, struct lien_probe_allowed);

static __always_inline void held_key(struct lien_probe_held_key *key, const struct thread *thread)
{
	key->pid = thread->pid;
	key->tid = thread->tid;
}

/* Adjusts the number of threads inside, if the gate that has seen the thread still exists. */
static __noinline int gate_count(struct thread *thread, int by)
{
	__u32 pid = thread->pid;
	struct lien_probe_gate *gate = bpf_map_lookup_elem(&gates, &pid);

	if (!gate || gate->start != thread->start || gate->turn != thread->gate_turn)
		return 0;
	__sync_fetch_and_add(&gate->inside, by);
	return 1;
}

/* The thread has left its gated call, by return, jump or exit. */
static __noinline void gate_leave(struct thread *thread)
{
	struct lien_probe_held_key key;

	if (!thread->gate_sp)
		return;
	thread->gate_sp = 0;
	held_key(&key, thread);
	bpf_map_delete_elem(&held, &key);
	gate_count(thread, -1);
}

/* The thread has closed the group, or will never do so. */
static __noinline void gate_leave_group(struct thread *thread)
{
	if (!thread->group_inside)
		return;
	thread->group_inside = 0;
	gate_count(thread, -1);
}

/* A call in a group has been let in: the thread is inside until it has closed the group, because
 * that is when the calls start. */
static __always_inline void gate_enter_group(struct thread *thread)
{
	if (thread->group && thread->group_calls && !thread->group_inside)
		thread->group_inside = gate_count(thread, 1);
}

static long held_drop(
	void *map, struct lien_probe_held_key *key, struct lien_probe_held *value, __u32 *pid)
{
	(void)value;
	if (key->pid == *pid)
		bpf_map_delete_elem(map, key);
	return 0;
}

static __always_inline void gate_end(__u32 pid)
{
	struct dropping dropping = {.comm = {.pid = pid}};

	bpf_map_delete_elem(&shut, &pid);
	bpf_map_delete_elem(&gates_all, &pid);
	if (bpf_map_delete_elem(&gates, &pid))
		return;
	bpf_for_each_map_elem(&held, held_drop, &pid, 0);
	bpf_for_each_map_elem(&comms_away, comms_drop, &dropping, 0);
}

/* The process has mapped one of the libraries, which may be a copy without the gate's probes. */
static __always_inline void gate_library_mapped(__u32 pid)
{
	struct lien_probe_gate *gate = bpf_map_lookup_elem(&gates, &pid);

	if (gate)
		__sync_fetch_and_add(&gate->mapped, 1);
}

/* Returns the communicator of a gated call; 0: none among its arguments. */
static __always_inline __u64 gated_comm(const struct arguments *arguments, __u32 call)
{
	__u64 comm;

	if (!LIEN_CALL_IS_TRAFFIC(call))
		return comm_of(call, arguments->arg[0]);
	traffic_comm(arguments, call, &comm);
	return comm;
}

/* Once the first calls of a group were let in, the others must follow: none of them starts before
 * the last. The end of a group whose beginning was seen is let in, too: it delays nothing that is
 * not held already. */
static __always_inline int let_in(struct thread *thread, __u32 call)
{
	return call == LIEN_CALL_NCCL_GROUP_START ||
	       (call == LIEN_CALL_NCCL_GROUP_END && thread->group_known) ||
	       (thread->group && thread->group_calls);
}

/* Returns true if others may wait for the call: the agent has allowed so many of them. */
static __noinline int is_allowed(const struct lien_probe_held *value, __u32 pid)
{
	struct lien_probe_pair key = {
		.comm = value->comm, .pid = pid, .peer = LIEN_PROBE_COLLECTIVES};
	struct lien_probe_allowed *allow;

	if (!LIEN_CALL_IS_TRAFFIC(value->call)) {
		if (value->flags & LIEN_PROBE_HELD_MEETS)
			return 0;
		key.comm = 0;
		key.peer = LIEN_PROBE_OTHERS;
	}
	if (LIEN_CALL_IS_TRANSFER(value->call))
		key.peer = value->peer * 2 + (value->call == LIEN_CALL_NCCL_RECV);
	allow = bpf_map_lookup_elem(&allowed, &key);
	if (!allow || allow->left <= 0)
		return 0;
	if (__sync_fetch_and_add(&allow->left, -1) > 0)
		return 1;
	__sync_fetch_and_add(&allow->left, 1);
	return 0;
}

/* Is memory of the communicator that the call names away? Not even its group lets it in then. */
static __noinline int is_comm_away(const struct lien_probe_held *value, __u32 pid)
{
	struct lien_probe_comm key = {.comm = value->comm, .pid = pid};

	return key.comm && bpf_map_lookup_elem(&comms_away, &key) != 0;
}

/* Returns true if nothing that the call works on is away: it names another communicator, or makes
 * one. */
static __noinline int is_elsewhere(const struct lien_probe_held *value, __u32 pid)
{
	struct lien_probe_comm key = {.comm = value->comm, .pid = pid};

	if (LIEN_CALL_MAKES_COMM(value->call))
		return 1;
	return key.comm && !bpf_map_lookup_elem(&comms_away, &key);
}

/* Returns true if [from, from + bytes) overlaps the memory being moved, or wraps around. */
static __always_inline int reaches(const struct lien_probe_shut *range, __u64 from, __u64 bytes)
{
	__u64 end = from + bytes;

	return end < from || (from < range->high && end > range->low);
}

/*
 * Returns true if the call may work on, or query, memory that is being moved. When the arguments do
 * not tell, assumes that it does. `translated`: the control library makes the call for the
 * application. If such a call names memory by handle, the control library has waited before it
 * looked up the handle (control/driver/translate.c), which changes with a restore; to make the
 * thread wait, it calls with handle 0, and that call is held.
 */
static __noinline int concerns(const struct arguments *arguments,
	const struct lien_probe_shut *range, __u32 flags, int translated)
{
	const __u64 *arg = arguments->arg;
	__u64 bytes;

	switch (LIEN_CALL_TOUCHES(flags)) {
	case LIEN_TOUCHES_COPY:
		return reaches(range, arg[0], arg[2]) || reaches(range, arg[1], arg[2]);
	case LIEN_TOUCHES_COPY_PEER:
		return reaches(range, arg[0], arg[4]) || reaches(range, arg[2], arg[4]);
	case LIEN_TOUCHES_SET_8:
		return reaches(range, arg[0], arg[2]);
	case LIEN_TOUCHES_SET_16:
	case LIEN_TOUCHES_SET_32:
		bytes = arg[2] * (LIEN_CALL_TOUCHES(flags) == LIEN_TOUCHES_SET_16 ? 2 : 4);
		return arg[2] >> 56 || reaches(range, arg[0], bytes);
	case LIEN_TOUCHES_RANGE:
		return reaches(range, arg[0], arg[1]);
	case LIEN_TOUCHES_RANGE_1:
		return reaches(range, arg[1], arg[2]);
	case LIEN_TOUCHES_AT_1:
		return reaches(range, arg[1], 8);
	case LIEN_TOUCHES_AT_2:
		return reaches(range, arg[2], 1);
	case LIEN_TOUCHES_AT_3:
		return reaches(range, arg[3], 1);
	case LIEN_TOUCHES_HANDLE_0:
		return !translated || !arg[0];
	case LIEN_TOUCHES_HANDLE_1:
		return !translated || !arg[1];
	case LIEN_TOUCHES_HANDLE_3:
	case LIEN_TOUCHES_HANDLES:
		return !translated;
	}
	return 1;
}

/* Does the call begin a capture, and may it? */
static __always_inline int may_capture(const struct lien_probe_shut *range, __u32 call, __u32 pid)
{
	return LIEN_CALL_BEGINS_CAPTURE(call) && !range->busy &&
	       !bpf_map_lookup_elem(&gates_all, &pid);
}

/* Is the call one that is held? */
static __noinline int holds(const struct arguments *arguments, const struct lien_probe_shut *range,
	__u64 cookie, int translated)
{
	__u32 flags = LIEN_COOKIE_FLAGS(cookie), touches = LIEN_CALL_TOUCHES(flags);

	if (range->trusting && LIEN_COOKIE_CALL(cookie) != LIEN_CALL_CU_MEM_UNMAP &&
		(!translated ||
			(touches != LIEN_TOUCHES_HANDLE_0 && touches != LIEN_TOUCHES_HANDLE_1)))
		return 0;
	if (!(flags & LIEN_CALL_MEETS) && range->meetings_alone)
		return 0;
	return concerns(arguments, range, flags, translated);
}

/*
 * Stops the thread before the call, or counts it as unheld if that is impossible. Threads without
 * room in map `threads` are not listed: they would take the room of other users' threads.
 */
static __noinline void hold(struct lien_probe_gate *gate, const struct lien_probe_held_key *key,
	const struct lien_probe_held *value, int tracked)
{
	struct lien_probe_control *control = bpf_map_lookup_elem(&controls, &key->pid);
	int listed;

	if (control && takes_signal(control, (void *)bpf_get_current_task())) {
		listed = tracked && !bpf_map_update_elem(&held, key, value, BPF_ANY);
		if (!bpf_send_signal_thread(control->signal)) {
			/* It waits until the gate opens: nobody can let it in earlier. */
			if (!listed)
				__sync_fetch_and_add(&gate->unlisted, 1);
			return;
		}
		bpf_map_delete_elem(&held, key);
	}
	gate->unheld_tid = key->tid;
	gate->unheld_call = value->call;
	__sync_fetch_and_add(&gate->unheld, 1);
}

/* A gate that sees the thread for the first time knows nothing of its groups. */
static __always_inline void meet(struct thread *thread, const struct lien_probe_gate *gate)
{
	if (thread->gate_turn == gate->turn)
		return;
	thread->gate_turn = gate->turn;
	thread->gate_sp = 0;
	thread->group = thread->group_calls = thread->group_known = 0;
	thread->group_inside = 0;
}

/* Counts the call, and holds the thread before it if necessary. `thread` NULL: map `threads` had no
 * room for it. */
static __noinline void gate_enter(struct lien_probe_gate *gate, struct thread *thread,
	const struct arguments *arguments, __u64 cookie, int translated)
{
	__u32 call = LIEN_COOKIE_CALL(cookie), flags = LIEN_COOKIE_FLAGS(cookie);
	struct task_struct *task = (void *)bpf_get_current_task();
	struct lien_probe_held_key key = {.pid = leader_pid(task), .tid = pid_in_agent(task)};
	struct lien_probe_held value = {
		.comm = gated_comm(arguments, call),
		.t = bpf_ktime_get_ns(),
		.call = call,
		.peer = arguments->arg[3],
		.flags = (!thread || !thread->group_known ? LIEN_PROBE_HELD_UNSURE : 0) |
			 (flags & LIEN_CALL_MEETS ? LIEN_PROBE_HELD_MEETS : 0),
		.tid = own_tid(task),
		.address = arguments->arg[0],
	};
	struct lien_probe_shut *range;

	if (LIEN_CALL_TOUCHES(flags) == LIEN_TOUCHES_RANGE_1) {
		value.address = arguments->arg[1];
		value.bytes = arguments->arg[2];
	}
	if (thread) {
		thread->t_gate = value.t;
		thread->gate_call = call;
		thread->gate_sp = arguments->sp;
		__sync_fetch_and_add(&gate->inside, 1);
	} else {
		__sync_fetch_and_add(&gate->untracked, 1);
	}
	/* Only now: whoever shuts the gate and then counts nobody inside has stopped everybody. */
	range = bpf_map_lookup_elem(&shut, &key.pid);
	if (range && !may_capture(range, call, key.pid) &&
		holds(arguments, range, cookie, translated) &&
		!(thread && let_in(thread, call) && !is_comm_away(&value, key.pid)) &&
		!(range->by_comm && is_elsewhere(&value, key.pid)) && !is_allowed(&value, key.pid))
		hold(gate, &key, &value, thread != 0);
	if (!thread)
		return;
	if (call == LIEN_CALL_NCCL_GROUP_START)
		thread->group_known = ++thread->group;
	else if (thread->group && LIEN_CALL_IS_TRAFFIC(call))
		thread->group_calls++;
}

SEC("uprobe")
int lien_gate_entry(struct pt_regs *ctx)
{
	struct arguments arguments = {
		.arg = {ctx->di, ctx->si, ctx->dx, ctx->cx, ctx->r8, ctx->r9}, .sp = ctx->sp};
	struct task_struct *task = (void *)bpf_get_current_task();
	struct lien_probe_control *control;
	struct lien_probe_gate *gate;
	struct thread *thread;
	__u64 caller = 0, cookie;
	__u32 pid = leader_pid(task);

	gate = bpf_map_lookup_elem(&gates, &pid);
	if (!gate || gate->start != image_of(task))
		return 0;
	cookie = bpf_get_attach_cookie(ctx);
	if (LIEN_COOKIE_FLAGS(cookie) & LIEN_GATED_ALL && !bpf_map_lookup_elem(&gates_all, &pid))
		return 0;
	bpf_probe_read_user(&caller, sizeof(caller), (void *)arguments.sp);
	control = bpf_map_lookup_elem(&controls, &pid);
	if (called_by_control(control, caller))
		return 0;
	thread = thread_get();
	if (thread) {
		meet(thread, gate);
		/* Nested in a call that was let in, or also seen by the probes of an earlier gate,
		 * which are removed late. */
		if (thread->gate_sp && arguments.sp <= thread->gate_sp)
			return 0;
		gate_leave(thread);
	}
	gate_enter(gate, thread, &arguments, cookie,
		control && caller >= control->translate && caller < control->translate_end);
	return 0;
}

SEC("uprobe")
int lien_gate_return(struct pt_regs *ctx)
{
	__u32 call = LIEN_COOKIE_CALL(bpf_get_attach_cookie(ctx));
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);

	if (!thread)
		return 0;
	if (thread->last_sp == ctx->sp - 8)
		thread->last_sp = 0;
	if (LIEN_CALL_IS_NCCL(call))
		note_progress(thread, ctx->ax);
	if (thread->gate_sp != ctx->sp - 8)
		return 0;
	gate_enter_group(thread);
	gate_leave(thread);
	if (call != LIEN_CALL_NCCL_GROUP_END)
		return 0;
	thread->group_known = 1;
	if (thread->group && --thread->group)
		return 0;
	thread->group_calls = 0;
	gate_leave_group(thread);
	return 0;
}

#endif
