/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The gate: while memory is being moved or is away, threads that would work on it are stopped at
 * the first instruction of the call. Included by trace.bpf.c, whose maps and threads it uses.
 * Attached to one process at a time (loader/gate.c). A call that was let in is counted until it
 * returns, for what it starts may be started at its end.
 */
#ifndef LIEN_BPF_GATE_H
#define LIEN_BPF_GATE_H

static __always_inline void held_key(struct lien_probe_held_key *key, const struct thread *thread)
{
	key->pid = thread->pid;
	key->tid = thread->tid;
}

/* Adds to who is inside, if the gate that has seen the thread is still there. */
static __noinline int gate_count(struct thread *thread, int by)
{
	struct lien_probe_gate *gate = bpf_map_lookup_elem(&gates, &thread->pid);

	if (!gate || gate->start != thread->start || gate->turn != thread->gate_turn)
		return 0;
	__sync_fetch_and_add(&gate->inside, by);
	return 1;
}

/* The thread is in no gated call any more, or was left in one by a jump, or ends. */
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

/* It has closed the group, or will never. */
static __noinline void gate_leave_group(struct thread *thread)
{
	if (!thread->group_inside)
		return;
	thread->group_inside = 0;
	gate_count(thread, -1);
}

/* A call in a group has been let in: the thread is inside until the group has been closed, for that
 * is when its calls start. */
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
	bpf_map_delete_elem(&shut, &pid);
	if (!bpf_map_delete_elem(&gates, &pid))
		bpf_for_each_map_elem(&held, held_drop, &pid, 0);
}

/* The communicator that a gated call is about; 0: none that could be told by its arguments. */
static __always_inline __u64 gated_comm(const struct arguments *arguments, __u32 call)
{
	__u64 comm = 0;
	__u32 at;

	if (LIEN_CALL_IS_TRAFFIC(call)) {
		at = comm_argument(call);
		if (at == 6)
			bpf_probe_read_user(&comm, sizeof(comm), (void *)(arguments->sp + 8));
		else
			comm = arguments->arg[at == 4 ? 4 : 5];
		return comm;
	}
	switch (call) {
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
	case LIEN_CALL_NCCL_FINALIZE:
	case LIEN_CALL_NCCL_REGISTER:
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_SPLIT:
	case LIEN_CALL_NCCL_SHRINK:
		return arguments->arg[0];
	}
	return 0;
}

/* Does the control library call, or has it been asked to call for the application? */
static __always_inline int of_control(const struct thread *thread, __u64 sp)
{
	struct lien_probe_control *control = bpf_map_lookup_elem(&controls, &thread->pid);
	__u64 caller = 0;

	if (!control || bpf_probe_read_user(&caller, sizeof(caller), (void *)sp))
		return 0;
	return caller >= control->text && caller < control->text_end &&
	       !(caller >= control->translate && caller < control->translate_end);
}

/* Inside a group whose first calls were let in, the others must follow: none of them starts before
 * the last. What ends a group holds nothing up that is not held already, if it was seen to begin.
 */
static __always_inline int let_in(struct thread *thread, __u32 call)
{
	return call == LIEN_CALL_NCCL_GROUP_START ||
	       (call == LIEN_CALL_NCCL_GROUP_END && thread->group_known) ||
	       (thread->group && thread->group_calls);
}

/*
 * A copy between places that do not move, or a value written to one, or a call about the memory at
 * one. What names memory by handle waits before the handle is looked up (control/translate.c): it
 * would be another one after a restore. Those that wait there are held at handle 0.
 */
static __always_inline int elsewhere(
	const struct arguments *arguments, const struct lien_probe_shut *range, __u32 call)
{
	__u64 to = arguments->arg[0], from = to;

	switch (call) {
	case LIEN_CALL_CU_MEM_RETAIN:
		return arguments->arg[1] < range->low || arguments->arg[1] >= range->high;
	case LIEN_CALL_CU_MEM_UNMAP:
	case LIEN_CALL_CU_MEM_SET_ACCESS:
		return to + arguments->arg[1] <= range->low || to >= range->high;
	case LIEN_CALL_CU_MEM_RELEASE:
		return arguments->arg[0] != 0;
	case LIEN_CALL_CU_MEM_EXPORT:
		return arguments->arg[1] != 0;
	case LIEN_CALL_CU_MEM_MAP:
		return 1;
	}
	if (call < LIEN_CALL_CU_COPY || call > LIEN_CALL_CU_SET_32_ASYNC_PTSZ ||
		(call >= LIEN_CALL_CU_COPY_2D && call <= LIEN_CALL_CU_COPY_2D_ASYNC_PTSZ))
		return 0;
	if (call < LIEN_CALL_CU_COPY_PEER)
		from = arguments->arg[1];
	else if (call < LIEN_CALL_CU_COPY_2D)
		from = arguments->arg[2];
	return (to < range->low || to >= range->high) && (from < range->low || from >= range->high);
}

static __noinline void hold(struct thread *thread, const struct arguments *arguments,
	struct lien_probe_gate *gate, __u32 call)
{
	struct lien_probe_control *control = bpf_map_lookup_elem(&controls, &thread->pid);
	struct lien_probe_held_key key;
	struct lien_probe_held value = {
		.comm = gated_comm(arguments, call),
		.t = bpf_ktime_get_ns(),
		.call = call,
		.peer = arguments->arg[3],
		.unsure = !thread->group_known,
		.tid = own_tid((void *)bpf_get_current_task()),
	};

	if (control && takes_signal(control)) {
		held_key(&key, thread);
		if (!bpf_map_update_elem(&held, &key, &value, BPF_ANY)) {
			if (!bpf_send_signal_thread(control->signal))
				return;
			bpf_map_delete_elem(&held, &key);
		}
	}
	gate->unheld_tid = thread->tid;
	gate->unheld_call = call;
	__sync_fetch_and_add(&gate->unheld, 1);
}

SEC("uprobe")
int lien_gate_entry(struct pt_regs *ctx)
{
	struct arguments arguments = {
		.arg = {ctx->di, ctx->si, ctx->dx, ctx->cx, ctx->r8, ctx->r9}, .sp = ctx->sp};
	__u32 call = LIEN_COOKIE_CALL(bpf_get_attach_cookie(ctx));
	struct thread *thread = thread_get();
	struct lien_probe_gate *gate;
	struct lien_probe_shut *range;

	gate = thread ? bpf_map_lookup_elem(&gates, &thread->pid) : 0;
	if (!gate || gate->start != thread->start || of_control(thread, arguments.sp))
		return 0;
	if (thread->gate_turn != gate->turn) {
		thread->gate_turn = gate->turn;
		thread->gate_sp = 0;
		thread->group = thread->group_calls = thread->group_known = 0;
		thread->group_inside = 0;
	}
	/* Within a call that was let in; or seen by the probes of an earlier gate as well, which
	 * take their time to go. */
	if (thread->gate_sp && arguments.sp <= thread->gate_sp)
		return 0;
	gate_leave(thread);
	thread->gate_sp = arguments.sp;
	__sync_fetch_and_add(&gate->inside, 1);
	range = bpf_map_lookup_elem(&shut, &thread->pid);
	if (range && !let_in(thread, call) && !elsewhere(&arguments, range, call))
		hold(thread, &arguments, gate, call);
	if (call == LIEN_CALL_NCCL_GROUP_START)
		thread->group_known = ++thread->group;
	else if (thread->group && LIEN_CALL_IS_TRAFFIC(call))
		thread->group_calls++;
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
