/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* NCCL's communicators: their creation, and the calls on them. */
#ifndef LIEN_BPF_NCCL_H
#define LIEN_BPF_NCCL_H

#include "context.h"

#define NCCL_IN_PROGRESS 7

/* Live communicators of live processes: an entry is deleted when either ends. */
HASH_MAP(traffic, COMMS_MAX, struct lien_probe_comm, struct lien_probe_traffic);

HASH_MAP(pairs, PAIRS_MAX, struct lien_probe_pair, __u64);

static const struct lien_probe_traffic no_traffic;

static __always_inline int succeeded(__s32 result)
{
	return !result || result == NCCL_IN_PROGRESS;
}

/* NCCL continues a call that has returned: only NCCL knows for how long. */
static __always_inline void note_progress(struct thread *thread, __u64 returned)
{
	struct lien_probe_process *process;

	if ((__s32)returned != NCCL_IN_PROGRESS)
		return;
	process = process_of(thread);
	if (process)
		process->nonblocking = 1;
}

/* ncclConfig_t: size, magic, version, blocking. For a communicator that is made in a group, nothing
 * else shows that it is non-blocking. */
struct user_config {
	__u64 size;
	__u32 magic, version;
	__s32 blocking;
};

#define NCCL_CONFIG_MAGIC 0xcafebeef

static __always_inline void note_config(struct thread *thread, __u64 from)
{
	struct lien_probe_process *process;
	struct user_config config = {};

	if (!from || bpf_probe_read_user(&config, sizeof(config), (void *)from) ||
		config.magic != NCCL_CONFIG_MAGIC || config.blocking)
		return;
	process = process_of(thread);
	if (process)
		process->nonblocking = 1;
}

/* --- communicators that have no address yet ----------------------------------------------------
 */

/* Calls of ncclCommSplit and ncclCommShrink in a group, or non-blocking, whose communicator does
 * not exist yet. They are reported once it does. */
struct unmade_key {
	__u32 pid;
	__u32 slot; /* less than UNMADE */
};

struct unmade {
	__u64 where; /* the caller's ncclComm_t * */
	struct lien_event event;
};

#define UNMADE 32

HASH_MAP(unmades, UNMADE_MAX, struct unmade_key, struct unmade);

static const struct unmade no_unmade;

static __always_inline int derives_comm(__u32 call)
{
	return call == LIEN_CALL_NCCL_SPLIT || call == LIEN_CALL_NCCL_SHRINK;
}

/* Returns the place where the communicator's address will be written. */
static __always_inline __u64 made_at(const struct frame *frame)
{
	return derives_comm(frame->call) ? frame->arg[3] : frame->arg[0];
}

static __always_inline struct unmade *unmade_add(
	struct unmade_key *key, struct lien_probe_process *process)
{
	struct unmade *unmade;

	key->slot = __sync_fetch_and_add(&process->unmade, 1) % UNMADE;
	unmade = bpf_map_lookup_elem(&unmades, key);
	if (unmade)
		return unmade; /* replaces the oldest one */
	if (share_take(process->account, SHARE_UNMADE))
		return 0;
	if (bpf_map_update_elem(&unmades, key, &no_unmade, BPF_NOEXIST))
		share_give(process->account, SHARE_UNMADE, 1);
	return bpf_map_lookup_elem(&unmades, key);
}

static __always_inline void unmade_drop(struct unmade_key *key, __u64 account)
{
	if (!bpf_map_delete_elem(&unmades, key))
		share_give(account, SHARE_UNMADE, 1);
}

/* Keeps the event of a communicator that is being made. Returns true if the communicator has no
 * address yet, and its record waits for it. */
static __always_inline int unmade_keep(struct thread *thread, const struct frame *frame)
{
	struct unmade_key key = {.pid = thread->pid};
	struct lien_event *event = &thread->event;
	struct lien_probe_process *process;
	struct unmade *unmade;

	if (!derives_comm(frame->call) || !succeeded(event->result) || event->comm.comm ||
		event->flags & LIEN_EVENT_PARTIAL ||
		(frame->call == LIEN_CALL_NCCL_SPLIT && event->comm.color < 0))
		return 0;
	process = process_of(thread);
	unmade = process ? unmade_add(&key, process) : 0;
	if (!unmade)
		return 0;
	unmade->where = made_at(frame);
	__builtin_memcpy(&unmade->event, event, sizeof(*event));
	return 1;
}

/* Another call will write to that place: the earlier request for it has failed. */
__noinline int unmade_forget(__u32 pid, __u64 where)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &pid);
	struct unmade_key key = {.pid = pid};
	struct unmade *unmade;
	__u32 i;

	if (!process || !process->unmade)
		return 0;
	for (i = 0; i < UNMADE; i++) {
		key.slot = i;
		unmade = bpf_map_lookup_elem(&unmades, &key);
		if (unmade && unmade->where == where)
			unmade_drop(&key, process->account);
	}
	return 0;
}

/* Handles one entry for unmade_report(). */
__noinline int unmade_report_one(struct thread *thread, __u32 slot, __u64 comm, __s32 result)
{
	struct unmade_key key = {.slot = slot};
	struct unmade *unmade;
	__u64 made = 0;

	if (!thread)
		return 0;
	key.pid = thread->pid;
	unmade = bpf_map_lookup_elem(&unmades, &key);
	if (!unmade || unmade->event.start != thread->start ||
		(!comm && (unmade->event.tid != thread->tid || unmade->event.result)))
		return 0;
	bpf_probe_read_user(&made, sizeof(made), (void *)unmade->where);
	if (comm ? made != comm : !made && succeeded(result))
		return 0;
	__builtin_memcpy(&thread->event, &unmade->event, sizeof(thread->event));
	unmade_drop(&key, thread->account);
	thread->event.comm.comm = made;
	thread->event.t_return = bpf_ktime_get_ns();
	if (made)
		emit(&thread->event, LIEN_EVENT_SIZE(comm), thread->account);
	return 0;
}

/*
 * Reports communicators that now have an address: `comm`, when it is used for the first time, or
 * (0) those that the thread requested in the group that has ended.
 */
static __always_inline void unmade_report(struct thread *thread, __u64 comm, __s32 result)
{
	struct lien_probe_process *process = process_of(thread);
	__u32 first, i;

	if (!process || !process->unmade)
		return;
	first = process->unmade; /* from the oldest one */
	for (i = 0; i < UNMADE; i++)
		unmade_report_one(thread, (first + i) % UNMADE, comm, result);
}

/* --- the communicator that NCCL works for ----------------------------------------------------- */

/* Returns the communicator that is the first argument of a call of NCCL's; 0: none is. */
static __always_inline __u64 comm_of(__u32 call, __u64 first)
{
	switch (call) {
	case LIEN_CALL_NCCL_FINALIZE:
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
	case LIEN_CALL_NCCL_REGISTER:
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_REGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
	case LIEN_CALL_NCCL_DEVICE_COMM:
		return first;
	}
	return derives_comm(call) ? first : 0;
}

/* Returns the communicator of an NCCL call: see lien_event.scope. */
static __always_inline __u64 scope_of(const struct frame *frame)
{
	return LIEN_CALL_MAKES_COMM(frame->call) || derives_comm(frame->call)
		       ? LIEN_SCOPE_INIT | frame->t_entry
		       : comm_of(frame->call, frame->arg[0]);
}

/* Returns the process, if known. */
static __always_inline struct lien_probe_process *scope_enter(struct thread *thread, __u64 scope)
{
	struct lien_probe_process *process;

	thread->scope = scope;
	thread->scope_sure = 0;
	process = process_of(thread);
	if (process)
		process->scope = scope;
	return process;
}

/*
 * A thread makes another one. What NCCL starts while it makes a communicator works for that one
 * alone: the threads of its proxy, which make its buffers later, and those that make it in the
 * background.
 */
static __noinline int scope_inherit(struct task_struct *child)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *parent = bpf_map_lookup_elem(&threads, &ktid), *thread;
	__u64 scope, account;

	if (!parent)
		return 0;
	scope = parent->depth ? scope_of(&parent->frame[0]) : 0;
	if (!(scope & LIEN_SCOPE_INIT))
		scope = parent->scope_sure ? parent->scope : 0;
	account = parent->account;
	ktid = BPF_CORE_READ(child, pid);
	thread = scope ? thread_add(ktid, account) : 0;
	if (!thread)
		return 0;
	thread->pid = parent->pid;
	thread->tid = pid_in_agent(child);
	thread->start = parent->start;
	thread->scope = scope;
	thread->scope_sure = 1;
	return 0;
}

static __always_inline void scope_fill(struct lien_event *event, struct thread *thread)
{
	struct lien_probe_process *process;

	if (thread->frame[0].call == LIEN_CALL_NCCL_MEM_ALLOC)
		return; /* a call of the application's, without a communicator */
	event->scope = scope_of(&thread->frame[0]);
	if (event->scope)
		return;
	event->scope = thread->scope;
	if (thread->scope_sure)
		return;
	if (!event->scope) {
		process = process_of(thread);
		event->scope = process ? process->scope : 0;
	}
	if (event->scope)
		event->flags |= LIEN_EVENT_INFERRED;
}

/* --- records -----------------------------------------------------------------------------------
 */

static __always_inline __u32 comm_body(struct thread *thread, struct lien_event *event,
	const struct frame *frame, const struct given *given)
{
	event->comm.nranks = event->comm.rank = -1;
	event->comm.device = device_of(thread);
	switch (frame->call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
		/* (comm *, nranks, id by value on the stack, rank): the id uses no register */
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		/* (comm *, nranks, rank, nids, id *): the first id identifies the group */
		event->comm.comm = read_user_u64(event, frame->arg[0]);
		event->comm.nranks = frame->arg[1];
		event->comm.rank = frame->arg[2];
		if (given)
			__builtin_memcpy(event->comm.id, given->bytes, sizeof(event->comm.id));
		else
			event->flags |= LIEN_EVENT_PARTIAL;
		break;
	case LIEN_CALL_NCCL_SPLIT:
		/* (comm, color, key, new comm *, config *) */
		event->comm.parent = frame->arg[0];
		event->comm.color = frame->arg[1];
		event->comm.key = frame->arg[2];
		event->comm.comm = read_user_u64(event, frame->arg[3]);
		break;
	case LIEN_CALL_NCCL_SHRINK:
		/* (comm, excluded ranks *, count, new comm *, config *, flags) */
		event->comm.parent = frame->arg[0];
		event->comm.excluded = frame->arg[2];
		event->comm.comm = read_user_u64(event, frame->arg[3]);
		if (given)
			__builtin_memcpy(event->comm.id, given->bytes, sizeof(event->comm.id));
		break;
	}
	return LIEN_EVENT_SIZE(comm);
}

/*
 * Reads the name of a context's device. verbs.h: an ibv_context begins with its device, and the
 * name is in a device after two function pointers and two enums.
 */
static __always_inline void card_name(char *name, __u64 context)
{
	__u64 device;

	if (!bpf_probe_read_user(&device, sizeof(device), (void *)context))
		bpf_probe_read_user_str(name, LIEN_CARD_BYTES, (void *)(device + 24));
}

/* The part of struct ibv_mr_init_attr that says what is registered. */
struct mr_attributes {
	__u64 bytes, access, mask, iova, va;
};
/* IBV_REG_MR_MASK_ADDR. Without it, a dma-buf is registered, which the card addresses by iova. */
#define MR_HAS_VA 2

/* verbs.h, mlx5dv.h and gdrapi.h: all return a pointer, NULL for failure, but for GDRCopy's. */
static __always_inline __u32 pinned_body(
	struct lien_event *event, const struct frame *frame, __u64 returned)
{
	struct mr_attributes attributes = {};
	__u64 context = 0;

	event->reg.va = frame->arg[1];
	event->reg.bytes = frame->arg[2];
	event->reg.handle = returned;
	__builtin_memset(event->mr.card, 0, LIEN_CARD_BYTES);
	switch (frame->call) {
	case LIEN_CALL_GDR_PIN:	   /* (gdr, address, size, token, space, handle) */
	case LIEN_CALL_GDR_PIN_V2: /* (gdr, address, size, flags, handle) */
		event->reg.handle = read_user_u64(
			event, frame->call == LIEN_CALL_GDR_PIN ? frame->arg[5] : frame->arg[4]);
		__builtin_memcpy(event->mr.card, LIEN_CARD_GDRCOPY, sizeof(LIEN_CARD_GDRCOPY));
		return LIEN_EVENT_SIZE(mr);
	case LIEN_CALL_MLX5_UMEM_REG_EX: /* (context, {address, size, ...}) */
		event->reg.va = read_user_u64(event, frame->arg[1]);
		event->reg.bytes = read_user_u64(event, frame->arg[1] + 8);
		context = frame->arg[0];
		break;
	case LIEN_CALL_MLX5_UMEM_REG: /* (context, address, size, access) */
		context = frame->arg[0];
		break;
	case LIEN_CALL_IBV_REG_DMABUF_MR: /* (pd, offset, length, iova, fd, access) */
		event->reg.va = frame->arg[3];
		break;
	case LIEN_CALL_IBV_REG_MR_EX: /* (pd, attributes) */
		read_user(event, &attributes, sizeof(attributes), frame->arg[1]);
		event->reg.va = attributes.mask & MR_HAS_VA ? attributes.va : attributes.iova;
		event->reg.bytes = attributes.bytes;
		break;
	}
	if (!context) /* a pd begins with its context */
		bpf_probe_read_user(&context, sizeof(context), (void *)frame->arg[0]);
	card_name(event->mr.card, context);
	event->result = returned ? 0 : -1;
	return LIEN_EVENT_SIZE(mr);
}

static __always_inline __u32 registration_body(struct lien_event *event, const struct frame *frame)
{
	switch (frame->call) {
	case LIEN_CALL_NCCL_REGISTER:
	case LIEN_CALL_NCCL_WINDOW_REGISTER:
		event->reg.comm = frame->arg[0];
		event->reg.va = frame->arg[1];
		event->reg.bytes = frame->arg[2];
		event->reg.handle = read_user_u64(event, frame->arg[3]);
		break;
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
		event->reg.comm = frame->arg[0];
		event->reg.handle = frame->arg[1];
		break;
	case LIEN_CALL_IBV_DEREG_MR:
	case LIEN_CALL_MLX5_UMEM_DEREG:
		event->reg.handle = frame->arg[0];
		break;
	case LIEN_CALL_GDR_UNPIN: /* (gdr, handle) */
		event->reg.handle = frame->arg[1];
		break;
	}
	return LIEN_EVENT_SIZE(reg);
}

#define INIT_ALL_MAX 16

/* ncclCommInitAll(comm *, devices, device *): emits one record for each communicator, under a
 * generated id that no other group has. */
static __always_inline void emit_all(
	struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	__u64 id[2] = {frame->t_entry, event->pid};
	__s32 device;
	__u32 i;

	event->comm.nranks = frame->arg[1];
	__builtin_memcpy(event->comm.id, id, sizeof(id));
	if (frame->arg[1] > INIT_ALL_MAX)
		event->flags |= LIEN_EVENT_PARTIAL;
#pragma clang loop unroll(disable)
	for (i = 0; i < INIT_ALL_MAX; i++) {
		if (i >= frame->arg[1])
			break;
		device = i;
		event->comm.comm = read_user_u64(event, frame->arg[0] + i * 8);
		if (frame->arg[2])
			read_user(event, &device, sizeof(device), frame->arg[2] + i * 4);
		event->comm.rank = i;
		event->comm.device = device;
		emit(event, LIEN_EVENT_SIZE(comm), thread->account);
	}
}

/* --- collectives -------------------------------------------------------------------------------
 */

/* Reads the communicator of a collective or transfer. Returns -1 if it cannot be read. */
static __always_inline int traffic_comm(const struct arguments *arguments, __u32 call, __u64 *comm)
{
	*comm = 0;
	switch (call) {
	case LIEN_CALL_NCCL_REDUCE: /* the first argument on the stack */
		return bpf_probe_read_user(comm, sizeof(*comm), (void *)(arguments->sp + 8)) ? -1
											     : 0;
	case LIEN_CALL_NCCL_ALL_GATHER:
	case LIEN_CALL_NCCL_ALL_TO_ALL:
	case LIEN_CALL_NCCL_SEND:
	case LIEN_CALL_NCCL_RECV:
		*comm = arguments->arg[4];
		return 0;
	}
	*comm = arguments->arg[5];
	return 0;
}

/* Bytes of ncclDataType_t 0 to 11, four bits each. */
#define TYPE_SIZES 0x112842884411ull

/* Returns the communicator's counters; NULL: no room. */
static __always_inline struct lien_probe_traffic *traffic_of(struct thread *thread,
	const struct lien_probe_comm *key, struct lien_probe_process *process)
{
	struct lien_probe_traffic *sums = bpf_map_lookup_elem(&traffic, key);

	if (sums)
		return sums;
	unmade_report(thread, key->comm, 0);
	if (share_take(process->account, SHARE_COMMS))
		return 0;
	if (bpf_map_update_elem(&traffic, key, &no_traffic, BPF_NOEXIST))
		share_give(process->account, SHARE_COMMS, 1);
	else
		__sync_fetch_and_add(&process->comms, 1);
	return bpf_map_lookup_elem(&traffic, key);
}

static __always_inline void count_pair(
	const struct lien_probe_comm *comm, struct lien_probe_process *process, __u32 peer)
{
	struct lien_probe_pair key = {.comm = comm->comm, .pid = comm->pid, .peer = peer};
	__u64 one = 1, *value = bpf_map_lookup_elem(&pairs, &key);

	if (value) {
		__sync_fetch_and_add(value, 1);
		return;
	}
	if (share_take(process->account, SHARE_PAIRS)) {
		count(LIEN_COUNTER_UNCOUNTED);
		process->uncounted = 1;
	} else if (bpf_map_update_elem(&pairs, &key, &one, BPF_NOEXIST)) {
		share_give(process->account, SHARE_PAIRS, 1);
		process->uncounted = 1;
	}
}

/* Unknown processes are not counted: nothing would delete their entries. */
__noinline int count_traffic(struct thread *thread, const struct arguments *arguments, __u32 call)
{
	__u32 kind = call - LIEN_TRAFFIC_FIRST, type;
	int pair = LIEN_CALL_IS_TRANSFER(call);
	struct lien_probe_process *process;
	struct lien_probe_traffic *sums;
	struct lien_probe_comm key = {};
	__u64 elements;

	if (!thread || !arguments)
		return 0;
	elements = arguments->arg[pair ? 1 : 2];
	type = arguments->arg[pair ? 2 : 3];
	key.pid = thread->pid;
	if (traffic_comm(arguments, call, &key.comm)) {
		count(LIEN_COUNTER_UNREADABLE);
		return 0;
	}
	if (!key.comm || kind >= LIEN_TRAFFIC_KINDS)
		return 0;
	process = scope_enter(thread, key.comm);
	sums = process ? traffic_of(thread, &key, process) : 0;
	if (!sums) {
		count(LIEN_COUNTER_UNCOUNTED);
		if (process)
			process->uncounted = 1;
		return 0;
	}
	__sync_fetch_and_add(&sums->calls[kind], 1);
	thread->last_sp = arguments->sp;
	bpf_probe_read_user(
		&thread->last_caller, sizeof(thread->last_caller), (void *)arguments->sp);
	if (pair)
		count_pair(&key, process, arguments->arg[3] * 2 + (call == LIEN_CALL_NCCL_RECV));
	if (type < 12)
		__sync_fetch_and_add(&sums->bytes, elements * (TYPE_SIZES >> (type * 4) & 15));
	sums->t_last = bpf_ktime_get_ns();
	return 0;
}

struct dropping {
	struct lien_probe_comm comm; /* .comm 0: the whole process */
	__u32 dropped;
};

/* For all maps whose keys begin with a struct lien_probe_comm. */
static long comms_drop(
	void *map, struct lien_probe_comm *key, void *value, struct dropping *dropping)
{
	(void)value;
	if (key->pid == dropping->comm.pid &&
		(!dropping->comm.comm || key->comm == dropping->comm.comm) &&
		!bpf_map_delete_elem(map, key))
		dropping->dropped++;
	return 0;
}

/*
 * Runs at the entry of a call that ends a communicator: once it has returned, another communicator
 * may have the address, and counters of its own.
 */
__noinline int traffic_end(struct thread *thread, __u64 comm)
{
	struct dropping dropping = {};
	struct lien_probe_process *process;
	struct lien_probe_traffic *sums;

	if (!thread)
		return 0;
	dropping.comm.comm = comm;
	dropping.comm.pid = thread->pid;
	sums = bpf_map_lookup_elem(&traffic, &dropping.comm);
	if (!sums)
		return 0;
	process = process_of(thread);
	if (sums->calls[LIEN_CALL_NCCL_SEND - LIEN_TRAFFIC_FIRST] ||
		sums->calls[LIEN_CALL_NCCL_RECV - LIEN_TRAFFIC_FIRST]) {
		bpf_for_each_map_elem(&pairs, comms_drop, &dropping, 0);
		if (process)
			share_give(process->account, SHARE_PAIRS, dropping.dropped);
	}
	if (bpf_map_delete_elem(&traffic, &dropping.comm) || !process)
		return 0;
	share_give(process->account, SHARE_COMMS, 1);
	if (process->comms)
		__sync_fetch_and_add(&process->comms, -1);
	return 0;
}

/* The process has ended. */
static __always_inline void nccl_forget(__u32 pid, const struct lien_probe_process *process)
{
	struct dropping dropping = {.comm = {.pid = pid}};
	struct unmade_key key = {.pid = pid};
	__u32 i;

	if (process->comms) {
		bpf_for_each_map_elem(&traffic, comms_drop, &dropping, 0);
		share_give(process->account, SHARE_COMMS, dropping.dropped);
		dropping.dropped = 0;
		bpf_for_each_map_elem(&pairs, comms_drop, &dropping, 0);
		share_give(process->account, SHARE_PAIRS, dropping.dropped);
	}
	for (i = 0; process->unmade && i < UNMADE; i++) {
		key.slot = i;
		unmade_drop(&key, process->account);
	}
}

#endif
