// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Watches the CUDA driver, its runtime and NCCL. Two programs serve all probes: the probe's cookie
 * says which call it is (include/lien/calls.h). A call's arguments are kept from entry to return in
 * a small stack of frames per thread, which also tells who called whom.
 */
#define LIEN_BPF
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "pids.h"
#include <lien/event.h>
#include <lien/probe.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define NCCL_IN_PROGRESS 7

#define FRAMES	 4
#define CONTEXTS 4

struct frame {
	__u64 sp; /* at entry: where the return address lies */
	__u64 t_entry;
	__u64 caller;
	__u64 arg[6];
	__u32 call;
	__u32 attachment;
	__u32 flags; /* LIEN_CALL_* */
	__u32 control;
	__u32 given; /* map `givens` has something for this frame */
	__u32 zero;
	__u64 share; /* import: the export it was joined to, at entry */
};

struct arguments {
	__u64 arg[6];
	__u64 sp; /* the seventh is above the return address */
};

struct thread {
	__u32 pid, tid;
	__u64 start;
	__u32 announced;
	__u32 depth;
	__u64 context[CONTEXTS]; /* pushed one over the other; the last one is current */
	__u32 contexts;
	__u64 t_context; /* when that was seen to change */
	/* The last call that is seen entering only, to know it again if it is probed twice. */
	__u32 quick_call, quick_attachment;
	__u64 quick_sp;
	__u64 scope; /* of the NCCL call that it entered last */
	/* The last collective or transfer: where its return address lies, and which it is. While it
	 * has not returned, that word does not change. */
	__u64 last_sp, last_caller;
	__u64 gate_sp;	    /* the gated call that it is in; 0: none */
	__u32 gate_turn;    /* the gate that has seen it */
	__u32 group;	    /* NCCL groups that it has opened, as the gate has seen */
	__u32 group_calls;  /* in them, that were let in */
	__u32 group_known;  /* no other is open */
	__u32 group_inside; /* it counts as inside until it has closed them */
	struct frame frame[FRAMES];
	struct lien_event
		event; /* made here: too large for the stack, and a thread makes one at a time */
};

struct mmap_args {
	__u64 length, offset;
	__s64 fd;
};

struct context_key {
	__u64 context;
	__u32 pid, zero;
};

/* A frame: calls within a call may have been given something, too. */
struct given_key {
	__u64 sp;
	__u32 ktid, zero;
};

/* What a call was given in memory that may change until it returns. */
struct given {
	__u8 bytes[128];
};

/* ncclCommSplit and ncclCommShrink in a group, or non-blocking, say what they made when it is made.
 */
struct unmade_key {
	__u32 pid;
	__u32 slot; /* below UNMADE */
};

struct unmade {
	__u64 where; /* the ncclComm_t of the caller */
	struct lien_event event;
};

#define UNMADE 32

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} events SEC(".maps");

/* Threads that made a traced call, by kernel tid; removed when they exit. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

/* Processes that mapped the driver, by pid. The agent enters those that ran before it did. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct lien_probe_process);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct lien_probe_followed);
} followed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct lien_probe_control);
} controls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64); /* inode */
	__type(value, struct lien_probe_layout);
} control_files SEC(".maps");

/* Exported files to the number of their export. A file pointer is reused once the file is closed,
 * so the join is made here, at the moment of the import, and a new export replaces what was there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct lien_probe_share);
	__type(value, __u64);
} shares SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct mmap_args);
} mmaps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct given_key);
	__type(value, struct given);
} givens SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct unmade_key);
	__type(value, struct unmade);
} unmades SEC(".maps");

/* Contexts to their devices. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct context_key);
	__type(value, __s32);
} contexts SEC(".maps");

/* Of live communicators of live processes: an entry goes when either ends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct lien_probe_comm);
	__type(value, struct lien_probe_traffic);
} traffic SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct lien_probe_pair);
	__type(value, __u64);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct lien_probe_gate);
} gates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct lien_probe_shut);
} shut SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct lien_probe_held_key);
	__type(value, struct lien_probe_held);
} held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIEN_COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Lost records by pid, for the agent to mark these processes incomplete. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* The kernel cannot probe one process alone: contexts are seen in all. */
const volatile __u32 lien_all_contexts = 0;

__u64 next_share = 0;
static const struct thread no_thread;
static const struct lien_probe_traffic no_traffic;
static const struct unmade no_unmade;

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		__sync_fetch_and_add(value, 1);
}

static __always_inline void count_lost(__u32 pid)
{
	__u64 one = 1, *value;

	count(LIEN_COUNTER_LOST);
	value = bpf_map_lookup_elem(&lost, &pid);
	if (value)
		__sync_fetch_and_add(value, 1);
	else
		bpf_map_update_elem(&lost, &pid, &one, BPF_NOEXIST);
}

static __always_inline __u32 leader_pid(struct task_struct *task)
{
	return pid_in_agent(BPF_CORE_READ(task, group_leader));
}

static __always_inline __u64 start_ticks(struct task_struct *task)
{
	return BPF_CORE_READ(task, group_leader, start_boottime) / LIEN_TICK_NS;
}

static __always_inline int emit(struct lien_event *event, __u32 size)
{
	event->size = size;
	if (bpf_ringbuf_output(&events, event, size, 0)) {
		count_lost(event->pid);
		return -1;
	}
	return 0;
}

/*
 * Calls whose frames lie below `sp` on the machine stack were left without a return (longjmp,
 * exceptions): whether the driver did what they asked for will not be known. Returns how many
 * frames remain.
 */
static __noinline __u32 frames_left(struct thread *thread, __u64 sp)
{
	__u32 depth = thread->depth, i, unknown = 0;
	struct frame *frame;

	for (i = 0; i < FRAMES; i++) {
		if (!depth || depth > FRAMES)
			break;
		frame = &thread->frame[(depth - 1) & (FRAMES - 1)];
		if (frame->sp >= sp)
			break;
		unknown |= !(frame->flags & LIEN_CALL_FRAME);
		depth--;
	}
	if (unknown)
		count_lost(thread->pid);
	return depth;
}

/* Where a function returns to whose return is probed, which is what the stack holds then. A
 * function that begins with it was jumped to from the end of a traced one. */
static __noinline __u64 trampoline(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return bpf_core_field_exists(struct xol_area, vaddr)
		       ? BPF_CORE_READ(task, mm, uprobes_state.xol_area, vaddr)
		       : 0;
}

/* The record of the calling thread, made at its first traced call. */
static __noinline struct thread *thread_get(void)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);
	struct task_struct *task;
	__u32 pid;

	if (thread)
		return thread;
	task = (void *)bpf_get_current_task();
	pid = leader_pid(task);
	if (!pid)
		return 0;
	if (bpf_map_update_elem(&threads, &ktid, &no_thread, BPF_ANY)) {
		count_lost(pid);
		return 0;
	}
	thread = bpf_map_lookup_elem(&threads, &ktid);
	if (!thread)
		return 0;
	thread->pid = pid;
	thread->tid = pid_in_agent(task);
	thread->start = start_ticks(task);
	return thread;
}

static __always_inline struct lien_event *event_init(struct thread *thread, __u16 type)
{
	struct lien_event *event = &thread->event;

	__builtin_memset(event, 0, sizeof(*event));
	event->type = type;
	event->pid = thread->pid;
	event->tid = thread->tid;
	event->start = thread->start;
	return event;
}

/* First sight of a process: complete when the call is cuInit, which precedes all others. */
static __noinline void announce(struct thread *thread, __u32 complete)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct lien_probe_process *known = bpf_map_lookup_elem(&processes, &thread->pid);
	struct lien_probe_process process = {
		.start = thread->start, .announced = 1, .whole = complete};
	struct lien_event *event;

	thread->announced = 1;
	if (known && known->start == thread->start &&
		__sync_lock_test_and_set(&known->announced, 1))
		return;
	if (bpf_map_update_elem(&processes, &thread->pid, &process, BPF_ANY)) {
		count_lost(thread->pid);
		return;
	}
	event = event_init(thread, LIEN_EVENT_PROCESS);
	event->t_entry = event->t_return = bpf_ktime_get_ns();
	event->process.uid = (__u32)bpf_get_current_uid_gid();
	event->process.complete = complete;
	BPF_CORE_READ_STR_INTO(&event->process.comm, task, group_leader, comm);
	emit(event, LIEN_EVENT_SIZE(process));
}

static __noinline struct file *file_of_fd(__s64 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	struct file **table, *file = 0;

	if (fd < 0 || !fdt || fd >= BPF_CORE_READ(fdt, max_fds))
		return 0;
	table = BPF_CORE_READ(fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), table + fd);
	return file;
}

static __always_inline int file_key(struct lien_probe_share *key, __s64 fd)
{
	struct file *file = file_of_fd(fd);

	key->file = (__u64)file;
	key->private_data = file ? (__u64)BPF_CORE_READ(file, private_data) : 0;
	key->inode = file ? BPF_CORE_READ(file, f_inode, i_ino) : 0;
	key->device = file ? BPF_CORE_READ(file, f_inode, i_sb, s_dev) : 0;
	return file ? 0 : -1;
}

/* lien_control_state in the process's memory (wire.h). */
struct user_state {
	__u64 magic;
	__u32 version, pid;
	__u64 handler;
	__u32 signal, agent_fd;
	__u64 agent_ino, translate, translate_end;
};

/* The control library's constructor has run, if it ever does, before the program uses CUDA. */
static __noinline int read_state(struct lien_probe_control *control)
{
	struct user_state state;

	if (bpf_probe_read_user(&state, sizeof(state), (void *)control->state) ||
		state.magic != LIEN_PROBE_CONTROL_MAGIC ||
		state.version != LIEN_PROBE_CONTROL_VERSION)
		return -1;
	control->handler = state.handler;
	control->signal = state.signal;
	control->translate = state.translate;
	control->translate_end = state.translate_end;
	control->state = 0;
	return 0;
}

/*
 * Will this thread run the control library's handler, now, if it is sent the signal? Nothing else
 * may come of it: the process says which signal that is, and may have changed its mind.
 */
static __noinline int takes_signal(struct lien_probe_control *control)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct sighand_struct *sighand = BPF_CORE_READ(task, sighand);
	__u32 index = control->signal - 1;
	__u64 blocked, handler = 0;
	void *action;

	if (index >= 64 || control->handler < control->text ||
		control->handler >= control->text_end)
		return 0;
	blocked = BPF_CORE_READ(task, blocked.sig[0]);
	if (blocked >> index & 1)
		return 0;
	action = (void *)sighand + bpf_core_field_offset(struct sighand_struct, action) +
		 index * bpf_core_type_size(struct k_sigaction) +
		 bpf_core_field_offset(struct k_sigaction, sa) +
		 bpf_core_field_offset(struct sigaction, sa_handler);
	bpf_probe_read_kernel(&handler, sizeof(handler), action);
	return handler == control->handler;
}

/*
 * Starts the control thread: the signal's handler runs in this thread before the traced function's
 * first instruction, which is a point where it may do what a called function may do.
 */
static __noinline void wake(struct lien_probe_control *control)
{
	__u32 armed;

	if (!takes_signal(control))
		return;
	armed = __sync_lock_test_and_set(&control->wake, 0);
	if (!armed)
		return;
	if (bpf_send_signal_thread(control->signal))
		control->wake = armed;
	else
		count(LIEN_COUNTER_WOKEN);
}

static __always_inline void read_user(struct lien_event *event, void *to, __u32 size, __u64 from)
{
	if (bpf_probe_read_user(to, size, (void *)from)) {
		__builtin_memset(to, 0, size);
		event->flags |= LIEN_EVENT_PARTIAL;
		count(LIEN_COUNTER_UNREADABLE);
	}
}

static __always_inline __u64 read_user_u64(struct lien_event *event, __u64 from)
{
	__u64 value = 0;

	read_user(event, &value, sizeof(value), from);
	return value;
}

/* CUmemAllocationProp in the caller's memory. */
struct user_prop {
	__u32 type, handle_types, location_type;
	__s32 location_id;
	__u64 win32;
	__u8 compression, rdma;
	__u16 usage;
	__u8 reserved[4];
};

static __always_inline void read_prop(struct lien_event *event, __u64 from)
{
	struct lien_prop *to = &event->create.prop;
	struct user_prop prop;

	read_user(event, &prop, sizeof(prop), from);
	to->type = prop.type;
	to->handle_types = prop.handle_types;
	to->location_type = prop.location_type;
	to->location_id = prop.location_id;
	to->compression = prop.compression;
	to->rdma = prop.rdma;
	to->usage = prop.usage;
}

/* CUmemAccessDesc in the caller's memory. */
struct user_access {
	__u32 location_type;
	__s32 location_id;
	__u32 flags;
};

static __always_inline __u32 read_access(struct lien_event *event, __u64 from, __u64 n)
{
	struct user_access access;
	__u32 i;

	if (n > LIEN_ACCESS_MAX) {
		n = LIEN_ACCESS_MAX;
		event->flags |= LIEN_EVENT_PARTIAL;
	}
	event->access.count = n;
#pragma clang loop unroll(disable)
	for (i = 0; i < LIEN_ACCESS_MAX; i++) {
		if (i >= n)
			break;
		read_user(event, &access, sizeof(access), from + i * sizeof(access));
		event->access.access[i].location_type = access.location_type;
		event->access.access[i].location_id = access.location_id;
		event->access.access[i].flags = access.flags;
	}
	return LIEN_EVENT_SIZE(access) - (LIEN_ACCESS_MAX - (n & 31)) * sizeof(struct lien_access);
}

static __always_inline void context_key(
	struct context_key *key, const struct thread *thread, __u64 context)
{
	key->context = context;
	key->pid = thread->pid;
	key->zero = 0;
}

static __always_inline int is_followed(const struct thread *thread, __u64 t)
{
	struct lien_probe_followed *since;

	if (lien_all_contexts)
		return 1;
	since = bpf_map_lookup_elem(&followed, &thread->pid);
	return since && since->start == thread->start && since->t_since <= t;
}

/* The thread's current one; 0: not known. */
static __noinline __u64 context_of(struct thread *thread)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &thread->pid);
	__u32 top = thread->contexts - 1;

	if (process && process->whole && !process->contexts_many)
		return process->context;
	if (!is_followed(thread, thread->t_context))
		return 0;
	return top < CONTEXTS ? thread->context[top & (CONTEXTS - 1)] : 0;
}

/* Of the thread's current context; -1: not known. */
static __noinline __s32 device_of(struct thread *thread)
{
	struct context_key key;
	__s32 *device;

	context_key(&key, thread, context_of(thread));
	device = bpf_map_lookup_elem(&contexts, &key);
	return device ? *device : -1;
}

/* Of contexts that lie deeper than there is room for, only the number is known. */
static __always_inline void context_push(struct thread *thread, __u64 context)
{
	__u32 top = thread->contexts;

	if (top < CONTEXTS)
		thread->context[top & (CONTEXTS - 1)] = context;
	thread->contexts = top + 1;
}

static __always_inline void context_pop(struct thread *thread)
{
	if (thread->contexts)
		thread->contexts--;
}

/* Before a change that is seen: what was known before the process was followed may be wrong. */
static __always_inline void context_changes(struct thread *thread)
{
	if (!is_followed(thread, thread->t_context))
		thread->contexts = 0;
	thread->t_context = bpf_ktime_get_ns();
}

/* Of a process that has one context there is nothing else to know. */
static __always_inline void context_count(struct lien_probe_process *process, __u64 context)
{
	__u64 first = __sync_val_compare_and_swap(&process->context, 0, context);

	if (first && first != context)
		process->contexts_many = 1;
}

static __noinline void context_made(
	struct thread *thread, struct lien_event *event, const struct frame *frame, __u64 device)
{
	struct lien_probe_process *process;
	struct context_key key;
	__s32 value = (__s32)device;

	event->context.context = read_user_u64(event, frame->arg[0]);
	event->context.device = value;
	if (event->result)
		return;
	context_key(&key, thread, event->context.context);
	bpf_map_update_elem(&contexts, &key, &value, BPF_ANY);
	process = bpf_map_lookup_elem(&processes, &thread->pid);
	if (process)
		context_count(process, event->context.context);
	if (frame->call != LIEN_CALL_CU_CONTEXT_PRIMARY) {
		context_changes(thread);
		context_push(thread, event->context.context);
	}
}

static __always_inline __u32 alloc_body(
	struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	event->alloc.va = read_user_u64(event, frame->arg[0]);
	event->alloc.bytes = frame->arg[1];
	event->alloc.context = context_of(thread);
	event->alloc.device = device_of(thread);
	return LIEN_EVENT_SIZE(alloc);
}

/* An fd that the call has made for others. */
static __always_inline __u64 share_of(struct lien_event *event, __u64 from, __s32 *fd)
{
	struct lien_probe_share key;
	__u64 number;

	read_user(event, fd, sizeof(*fd), from);
	if (file_key(&key, *fd))
		return 0;
	number = __sync_fetch_and_add(&next_share, 1) + 1;
	return bpf_map_update_elem(&shares, &key, &number, BPF_ANY) ? 0 : number;
}

#define HANDLE_FD     1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
#define HANDLE_FABRIC 8 /* CU_MEM_HANDLE_TYPE_FABRIC */

/* The size of an export's or import's record: only fabric handles are told. */
#define SHARE_SIZE (LIEN_EVENT_SIZE(share) - LIEN_KEY_BYTES)

static __always_inline __u32 export_body(struct lien_event *event, const struct frame *frame)
{
	__s32 fd = -1;

	event->share.handle = frame->arg[1];
	event->share.handle_type = frame->arg[2];
	if (event->share.handle_type == HANDLE_FABRIC && !event->result) {
		event->share.fd = -1;
		read_user(event, event->share.key, LIEN_KEY_BYTES, frame->arg[0]);
		return LIEN_EVENT_SIZE(share);
	}
	if (event->share.handle_type == HANDLE_FD && !event->result)
		event->share.share = share_of(event, frame->arg[0], &fd);
	event->share.fd = fd;
	return SHARE_SIZE;
}

static __always_inline __u32 import_body(
	struct lien_event *event, const struct frame *frame, const struct given *given)
{
	event->share.handle = read_user_u64(event, frame->arg[0]);
	event->share.handle_type = frame->arg[2];
	event->share.fd = -1;
	event->share.share = frame->share;
	if (event->share.handle_type == HANDLE_FABRIC) {
		if (given)
			__builtin_memcpy(event->share.key, given->bytes, LIEN_KEY_BYTES);
		return LIEN_EVENT_SIZE(share);
	}
	if (event->share.handle_type == HANDLE_FD)
		event->share.fd = (__s32)frame->arg[1];
	return SHARE_SIZE;
}

static __noinline __u32 pool_body(struct lien_event *event, const struct frame *frame)
{
	__s32 location[2], fd = -1;

	switch (frame->call) {
	case LIEN_CALL_CU_POOL_CREATE:
		/* CUmemPoolProps: allocType, handleTypes, location { type, id } */
		read_user(event, location, sizeof(location), frame->arg[1] + 8);
		event->pool.pool = read_user_u64(event, frame->arg[0]);
		event->pool.device = location[0] == 1 ? location[1] : -1;
		break;
	case LIEN_CALL_CU_POOL_DESTROY:
		event->pool.pool = frame->arg[0];
		break;
	case LIEN_CALL_CU_POOL_EXPORT:
		event->pool.pool = frame->arg[1];
		event->pool.handle_type = frame->arg[2];
		if (event->pool.handle_type == HANDLE_FD && !event->result)
			event->pool.share = share_of(event, frame->arg[0], &fd);
		event->pool.fd = fd;
		break;
	case LIEN_CALL_CU_POOL_IMPORT:
		event->pool.pool = read_user_u64(event, frame->arg[0]);
		event->pool.handle_type = frame->arg[2];
		event->pool.fd = (__s32)frame->arg[1];
		event->pool.share = frame->share;
		break;
	}
	return LIEN_EVENT_SIZE(pool);
}

/* Memory that is named by 64 bytes. */
static __noinline __u32 key_body(struct thread *thread, struct lien_event *event,
	const struct frame *frame, const struct given *given)
{
	switch (frame->call) {
	case LIEN_CALL_CU_IPC_GET:
	case LIEN_CALL_CU_POOL_EXPORT_POINTER:
		event->key.va = frame->arg[1];
		if (!event->result)
			read_user(event, event->key.key, LIEN_KEY_BYTES, frame->arg[0]);
		break;
	case LIEN_CALL_CU_IPC_OPEN:
	case LIEN_CALL_CU_POOL_IMPORT_POINTER:
		event->key.va = read_user_u64(event, frame->arg[0]);
		if (frame->call == LIEN_CALL_CU_IPC_OPEN)
			event->key.context = context_of(thread);
		if (given)
			__builtin_memcpy(event->key.key, given->bytes, LIEN_KEY_BYTES);
		else
			event->flags |= LIEN_EVENT_PARTIAL;
		break;
	}
	return LIEN_EVENT_SIZE(key);
}

static __noinline __u32 multicast_body(struct lien_event *event, const struct frame *frame)
{
	event->multicast.handle = frame->arg[0];
	switch (frame->call) {
	case LIEN_CALL_CU_MULTICAST_CREATE:
		/* CUmulticastObjectProp: numDevices, size */
		event->multicast.handle = read_user_u64(event, frame->arg[0]);
		event->multicast.device = (__s32)read_user_u64(event, frame->arg[1]);
		event->multicast.bytes = read_user_u64(event, frame->arg[1] + 8);
		break;
	case LIEN_CALL_CU_MULTICAST_DEVICE:
		event->multicast.device = (__s32)frame->arg[1];
		break;
	case LIEN_CALL_CU_MULTICAST_BIND:
		event->multicast.offset = frame->arg[1];
		event->multicast.memory = frame->arg[2];
		event->multicast.memory_offset = frame->arg[3];
		event->multicast.bytes = frame->arg[4];
		break;
	case LIEN_CALL_CU_MULTICAST_BIND_ADDRESS:
		event->multicast.offset = frame->arg[1];
		event->multicast.memory = frame->arg[2];
		event->multicast.bytes = frame->arg[3];
		break;
	case LIEN_CALL_CU_MULTICAST_UNBIND:
		event->multicast.device = (__s32)frame->arg[1];
		event->multicast.offset = frame->arg[2];
		event->multicast.bytes = frame->arg[3];
		break;
	}
	return LIEN_EVENT_SIZE(multicast);
}

static __noinline __u32 comm_body(struct thread *thread, struct lien_event *event,
	const struct frame *frame, const struct given *given)
{
	event->comm.nranks = event->comm.rank = -1;
	event->comm.device = device_of(thread);
	switch (frame->call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
		/* (comm *, nranks, id by value on the stack, rank): the id takes no register */
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		/* (comm *, nranks, rank, nids, id *): the first id names the group */
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
		/* (comm, ranks left out *, how many, new comm *, config *, flags) */
		event->comm.parent = frame->arg[0];
		event->comm.excluded = frame->arg[2];
		event->comm.comm = read_user_u64(event, frame->arg[3]);
		if (given)
			__builtin_memcpy(event->comm.id, given->bytes, sizeof(event->comm.id));
		break;
	}
	return LIEN_EVENT_SIZE(comm);
}

/* Fills the body of a returned call from the arguments kept at entry and what it wrote to the
 * caller's memory. Returns the record's size, 0 for a call that makes no record. */
static __always_inline __u32 body(struct thread *thread, struct lien_event *event,
	const struct frame *frame, const struct given *given, __u64 returned)
{
	switch (frame->call) {
	case LIEN_CALL_CU_MEM_CREATE:
		event->create.handle = read_user_u64(event, frame->arg[0]);
		event->create.bytes = frame->arg[1];
		read_prop(event, frame->arg[2]);
		return LIEN_EVENT_SIZE(create);
	case LIEN_CALL_CU_MEM_RELEASE:
		event->release.handle = frame->arg[0];
		return LIEN_EVENT_SIZE(release);
	case LIEN_CALL_CU_MEM_RETAIN:
		event->retain.handle = read_user_u64(event, frame->arg[0]);
		event->retain.va = frame->arg[1];
		return LIEN_EVENT_SIZE(retain);
	case LIEN_CALL_CU_MEM_RESERVE:
		event->reserve.va = read_user_u64(event, frame->arg[0]);
		event->reserve.bytes = frame->arg[1];
		event->reserve.align = frame->arg[2];
		return LIEN_EVENT_SIZE(reserve);
	case LIEN_CALL_CU_MEM_FREE:
	case LIEN_CALL_CU_MEM_FREE_ASYNC:
	case LIEN_CALL_CU_MEM_FREE_ASYNC_PTSZ:
	case LIEN_CALL_CU_FREE_HOST:
	case LIEN_CALL_CU_HOST_UNREGISTER:
	case LIEN_CALL_CU_IPC_CLOSE:
		event->range.va = frame->arg[0];
		return LIEN_EVENT_SIZE(range);
	case LIEN_CALL_CU_MEM_ADDRESS_FREE:
	case LIEN_CALL_CU_MEM_UNMAP:
		event->range.va = frame->arg[0];
		event->range.bytes = frame->arg[1];
		return LIEN_EVENT_SIZE(range);
	case LIEN_CALL_CU_MEM_MAP:
		event->map.va = frame->arg[0];
		event->map.bytes = frame->arg[1];
		event->map.offset = frame->arg[2];
		event->map.handle = frame->arg[3];
		return LIEN_EVENT_SIZE(map);
	case LIEN_CALL_CU_MEM_SET_ACCESS:
		event->access.va = frame->arg[0];
		event->access.bytes = frame->arg[1];
		return read_access(event, frame->arg[2], frame->arg[3]);
	case LIEN_CALL_CU_MEM_EXPORT:
		return export_body(event, frame);
	case LIEN_CALL_CU_MEM_IMPORT:
		return import_body(event, frame, given);
	case LIEN_CALL_CU_MEM_ALLOC:
	case LIEN_CALL_CU_MEM_ALLOC_ASYNC:
	case LIEN_CALL_CU_MEM_ALLOC_ASYNC_PTSZ:
	case LIEN_CALL_CU_ALLOC_HOST:
		return alloc_body(thread, event, frame);
	case LIEN_CALL_CU_MEM_ALLOC_MANAGED:
	case LIEN_CALL_CU_HOST_ALLOC:
		event->alloc.flags = frame->arg[2];
		return alloc_body(thread, event, frame);
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL:
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL_PTSZ:
		event->alloc.pool = frame->arg[2];
		return alloc_body(thread, event, frame);
	case LIEN_CALL_CU_MEM_ALLOC_PITCH:
		/* (address *, pitch *, width, height, element) */
		alloc_body(thread, event, frame);
		event->alloc.bytes = read_user_u64(event, frame->arg[1]) * frame->arg[3];
		return LIEN_EVENT_SIZE(alloc);
	case LIEN_CALL_CU_HOST_REGISTER:
		event->alloc.va = frame->arg[0];
		event->alloc.bytes = frame->arg[1];
		event->alloc.flags = frame->arg[2];
		event->alloc.context = context_of(thread);
		event->alloc.device = -1;
		return LIEN_EVENT_SIZE(alloc);
	case LIEN_CALL_CU_POOL_CREATE:
	case LIEN_CALL_CU_POOL_DESTROY:
	case LIEN_CALL_CU_POOL_EXPORT:
	case LIEN_CALL_CU_POOL_IMPORT:
		return pool_body(event, frame);
	case LIEN_CALL_CU_IPC_GET:
	case LIEN_CALL_CU_IPC_OPEN:
	case LIEN_CALL_CU_POOL_EXPORT_POINTER:
	case LIEN_CALL_CU_POOL_IMPORT_POINTER:
		return key_body(thread, event, frame, given);
	case LIEN_CALL_CU_MULTICAST_CREATE:
	case LIEN_CALL_CU_MULTICAST_DEVICE:
	case LIEN_CALL_CU_MULTICAST_BIND:
	case LIEN_CALL_CU_MULTICAST_BIND_ADDRESS:
	case LIEN_CALL_CU_MULTICAST_UNBIND:
		return multicast_body(event, frame);
	case LIEN_CALL_CU_RANGE_HANDLE:
		event->range_handle.va = frame->arg[1];
		event->range_handle.bytes = frame->arg[2];
		event->range_handle.handle_type = frame->arg[3];
		event->range_handle.fd = -1;
		if (!event->result)
			read_user(event, &event->range_handle.fd, sizeof(__s32), frame->arg[0]);
		return LIEN_EVENT_SIZE(range_handle);
	case LIEN_CALL_CU_CONTEXT_CREATE:
		context_made(thread, event, frame, frame->arg[2]);
		return LIEN_EVENT_SIZE(context);
	case LIEN_CALL_CU_CONTEXT_CREATE_V3:
		context_made(thread, event, frame, frame->arg[4]);
		return LIEN_EVENT_SIZE(context);
	case LIEN_CALL_CU_CONTEXT_CREATE_V4:
		context_made(thread, event, frame, frame->arg[3]);
		return LIEN_EVENT_SIZE(context);
	case LIEN_CALL_CU_CONTEXT_PRIMARY:
		context_made(thread, event, frame, frame->arg[1]);
		return LIEN_EVENT_SIZE(context);
	case LIEN_CALL_CU_CONTEXT_DESTROY:
		event->context.context = frame->arg[0];
		/* One that is current is popped as well. */
		if (event->t_return && !event->result && context_of(thread) == frame->arg[0])
			context_pop(thread);
		return LIEN_EVENT_SIZE(context);
	case LIEN_CALL_CU_CAPTURE_BEGIN:
	case LIEN_CALL_CU_CAPTURE_BEGIN_PTSZ:
	case LIEN_CALL_CU_CAPTURE_TO_GRAPH:
	case LIEN_CALL_CU_CAPTURE_TO_GRAPH_PTSZ:
	case LIEN_CALL_CU_CAPTURE_END:
	case LIEN_CALL_CU_CAPTURE_END_PTSZ:
	case LIEN_CALL_CU_STREAM_DESTROY:
		event->capture.stream = frame->arg[0];
		return LIEN_EVENT_SIZE(capture);
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
	case LIEN_CALL_NCCL_SPLIT:
	case LIEN_CALL_NCCL_SHRINK:
		return comm_body(thread, event, frame, given);
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
	case LIEN_CALL_NCCL_FINALIZE:
		event->comm_end.comm = frame->arg[0];
		return LIEN_EVENT_SIZE(comm_end);
	case LIEN_CALL_NCCL_REGISTER:
	case LIEN_CALL_NCCL_WINDOW_REGISTER:
		event->reg.comm = frame->arg[0];
		event->reg.va = frame->arg[1];
		event->reg.bytes = frame->arg[2];
		event->reg.handle = read_user_u64(event, frame->arg[3]);
		return LIEN_EVENT_SIZE(reg);
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
		event->reg.comm = frame->arg[0];
		event->reg.handle = frame->arg[1];
		return LIEN_EVENT_SIZE(reg);
	case LIEN_CALL_IBV_REG_MR:
	case LIEN_CALL_IBV_REG_MR_IOVA:
	case LIEN_CALL_IBV_REG_MR_IOVA2:
		/* (pd, address, length, ...): returns a pointer, NULL for failure */
		event->reg.va = frame->arg[1];
		event->reg.bytes = frame->arg[2];
		event->reg.handle = returned;
		event->result = returned ? 0 : -1;
		return LIEN_EVENT_SIZE(reg);
	case LIEN_CALL_IBV_REG_DMABUF_MR:
		/* (pd, offset, length, iova, fd, access): by iova the card knows the address */
		event->reg.va = frame->arg[3];
		event->reg.bytes = frame->arg[2];
		event->reg.handle = returned;
		event->result = returned ? 0 : -1;
		return LIEN_EVENT_SIZE(reg);
	case LIEN_CALL_IBV_DEREG_MR:
		event->reg.handle = frame->arg[0];
		return LIEN_EVENT_SIZE(reg);
	}
	return 0;
}

/* Where the bytes are that a call was given, and how many; 0: it is none of these calls. */
static __always_inline __u32 given_at(const struct frame *frame, __u64 *from)
{
	switch (frame->call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
		*from = frame->sp + 8;
		return 128;
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
		*from = frame->arg[4];
		return 128;
	case LIEN_CALL_NCCL_SHRINK:
		*from = frame->arg[1];
		return frame->arg[2] < 32 ? (__u32)frame->arg[2] * 4 : 128;
	case LIEN_CALL_CU_IPC_OPEN:
		*from = frame->sp + 8;
		return LIEN_KEY_BYTES;
	case LIEN_CALL_CU_POOL_IMPORT_POINTER:
		*from = frame->arg[2];
		return LIEN_KEY_BYTES;
	case LIEN_CALL_CU_MEM_IMPORT:
		*from = frame->arg[1];
		return (__u32)frame->arg[2] == HANDLE_FABRIC ? LIEN_KEY_BYTES : 0;
	}
	return 0;
}

static __always_inline void given_key(struct given_key *key, const struct frame *frame)
{
	key->sp = frame->sp;
	key->ktid = (__u32)bpf_get_current_pid_tgid();
	key->zero = 0;
}

static __noinline void given_keep(struct frame *frame, __u64 from, __u32 size)
{
	struct given given = {};
	struct given_key key;

	if (size > sizeof(given) || bpf_probe_read_user(&given, size, (void *)from))
		return;
	given_key(&key, frame);
	frame->given = !bpf_map_update_elem(&givens, &key, &given, BPF_ANY);
}

/* The arguments' memory may change while the call runs: what is needed of it is read at entry. */
static __noinline void entry_extras(struct frame *frame)
{
	struct lien_probe_share key;
	__u64 *number, from = 0;
	__u32 size;

	if ((frame->call == LIEN_CALL_CU_MEM_IMPORT || frame->call == LIEN_CALL_CU_POOL_IMPORT) &&
		(__u32)frame->arg[2] == HANDLE_FD && !file_key(&key, (__s32)frame->arg[1])) {
		number = bpf_map_lookup_elem(&shares, &key);
		frame->share = number ? *number : 0;
	}
	size = given_at(frame, &from);
	if (size)
		given_keep(frame, from, size);
}

/* The communicator that a call of NCCL is about: see lien_event.scope. */
static __always_inline __u64 scope_of(const struct frame *frame)
{
	switch (frame->call) {
	case LIEN_CALL_NCCL_INIT_RANK:
	case LIEN_CALL_NCCL_INIT_RANK_CONFIG:
	case LIEN_CALL_NCCL_INIT_RANK_SCALABLE:
	case LIEN_CALL_NCCL_INIT_ALL:
	case LIEN_CALL_NCCL_SPLIT:
	case LIEN_CALL_NCCL_SHRINK:
		return LIEN_SCOPE_INIT | frame->t_entry;
	case LIEN_CALL_NCCL_FINALIZE:
	case LIEN_CALL_NCCL_DESTROY:
	case LIEN_CALL_NCCL_ABORT:
	case LIEN_CALL_NCCL_REGISTER:
	case LIEN_CALL_NCCL_DEREGISTER:
	case LIEN_CALL_NCCL_WINDOW_REGISTER:
	case LIEN_CALL_NCCL_WINDOW_DEREGISTER:
		return frame->arg[0];
	}
	return 0;
}

/* Returns the process, if it is known. */
static __always_inline struct lien_probe_process *scope_enter(struct thread *thread, __u64 scope)
{
	struct lien_probe_process *process;

	thread->scope = scope;
	process = bpf_map_lookup_elem(&processes, &thread->pid);
	if (process)
		process->scope = scope;
	return process;
}

static __always_inline void scope_fill(struct lien_event *event, struct thread *thread)
{
	struct lien_probe_process *process;

	if (thread->frame[0].call == LIEN_CALL_NCCL_MEM_ALLOC)
		return; /* the application's, for no communicator */
	event->scope = scope_of(&thread->frame[0]);
	if (event->scope)
		return;
	event->scope = thread->scope;
	if (!event->scope) {
		process = bpf_map_lookup_elem(&processes, &thread->pid);
		event->scope = process ? process->scope : 0;
	}
	if (event->scope)
		event->flags |= LIEN_EVENT_INFERRED;
}

#define INIT_ALL_MAX 16

/* ncclCommInitAll(comm *, devices, device *): one record for each communicator, under an id made up
 * of what no other group has. */
static __noinline void emit_all(struct lien_event *event, const struct frame *frame)
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
		emit(event, LIEN_EVENT_SIZE(comm));
	}
}

static __always_inline int succeeded(__s32 result)
{
	return !result || result == NCCL_IN_PROGRESS;
}

/* Where the address of a communicator will be. */
static __always_inline __u64 made_at(const struct frame *frame)
{
	return frame->call == LIEN_CALL_NCCL_SPLIT || frame->call == LIEN_CALL_NCCL_SHRINK
		       ? frame->arg[3]
		       : frame->arg[0];
}

/* A communicator that is being made: true if it has no address yet, and its record waits for it. */
static __noinline int unmade_keep(struct thread *thread, const struct frame *frame)
{
	struct unmade_key key = {.pid = thread->pid};
	struct lien_event *event = &thread->event;
	struct lien_probe_process *process;
	struct unmade *unmade;

	if ((frame->call != LIEN_CALL_NCCL_SPLIT && frame->call != LIEN_CALL_NCCL_SHRINK) ||
		!succeeded(event->result) || event->comm.comm ||
		event->flags & LIEN_EVENT_PARTIAL ||
		(frame->call == LIEN_CALL_NCCL_SPLIT && event->comm.color < 0))
		return 0;
	process = bpf_map_lookup_elem(&processes, &thread->pid);
	if (!process)
		return 0;
	key.slot = __sync_fetch_and_add(&process->unmade, 1) % UNMADE;
	if (bpf_map_update_elem(&unmades, &key, &no_unmade, BPF_ANY))
		return 0;
	unmade = bpf_map_lookup_elem(&unmades, &key);
	if (!unmade)
		return 0;
	unmade->where = made_at(frame);
	__builtin_memcpy(&unmade->event, event, sizeof(*event));
	return 1;
}

/* Another one is to be at that place: what was asked for there before has failed. */
static __noinline void unmade_forget(struct thread *thread, __u64 where)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &thread->pid);
	struct unmade_key key = {.pid = thread->pid};
	struct unmade *unmade;
	__u32 i;

	if (!process || !process->unmade)
		return;
	for (i = 0; i < UNMADE; i++) {
		key.slot = i;
		unmade = bpf_map_lookup_elem(&unmades, &key);
		if (unmade && unmade->where == where)
			bpf_map_delete_elem(&unmades, &key);
	}
}

/*
 * Tells of communicators that have an address now: of `comm`, when it is used for the first time,
 * or (0) of those that the thread asked for in the group that has ended.
 */
static __noinline void unmade_tell(struct thread *thread, __u64 comm, __s32 result)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &thread->pid);
	struct unmade_key key = {.pid = thread->pid};
	struct unmade *unmade;
	__u32 first, i;
	__u64 made;

	if (!process || !process->unmade)
		return;
	first = process->unmade;
	for (i = 0; i < UNMADE; i++) {
		key.slot = (first + i) % UNMADE; /* the oldest one first */
		unmade = bpf_map_lookup_elem(&unmades, &key);
		if (!unmade || unmade->event.start != thread->start ||
			(!comm && (unmade->event.tid != thread->tid || unmade->event.result)))
			continue;
		made = 0;
		bpf_probe_read_user(&made, sizeof(made), (void *)unmade->where);
		if (comm ? made != comm : !made && succeeded(result))
			continue;
		__builtin_memcpy(&thread->event, &unmade->event, sizeof(thread->event));
		bpf_map_delete_elem(&unmades, &key);
		thread->event.comm.comm = made;
		thread->event.t_return = bpf_ktime_get_ns();
		if (made)
			emit(&thread->event, LIEN_EVENT_SIZE(comm));
	}
}

static __noinline void emit_call(
	struct thread *thread, struct frame *frame, __u64 t_return, __u64 returned, __u32 flags)
{
	struct lien_event *event = event_init(thread, frame->call);
	struct given *given = 0;
	struct given_key key;
	__u32 size;

	event->flags = flags | (frame->control ? LIEN_EVENT_CONTROL : 0);
	event->t_entry = frame->t_entry;
	event->t_return = t_return;
	event->result = (__s32)returned;
	event->outer = thread->frame[0].call;
	event->caller = thread->frame[0].caller;
	scope_fill(event, thread);
	if (frame->call == LIEN_CALL_NCCL_INIT_ALL) {
		emit_all(event, frame);
		return;
	}
	if (frame->given) {
		given_key(&key, frame);
		given = bpf_map_lookup_elem(&givens, &key);
	}
	size = body(thread, event, frame, given, returned);
	/* The control library borrows the application's contexts. */
	if (frame->control && frame->call >= LIEN_CALL_CU_CONTEXT_CREATE &&
		frame->call <= LIEN_CALL_CU_CONTEXT_DESTROY)
		size = 0;
	if (given)
		bpf_map_delete_elem(&givens, &key);
	if (size && !unmade_keep(thread, frame))
		emit(event, size);
}

/* Where each collective has its communicator: the number of an argument; 6 is the first on the
 * stack. */
static __always_inline __u32 comm_argument(__u32 call)
{
	switch (call) {
	case LIEN_CALL_NCCL_REDUCE:
		return 6;
	case LIEN_CALL_NCCL_ALL_GATHER:
	case LIEN_CALL_NCCL_ALL_TO_ALL:
	case LIEN_CALL_NCCL_SEND:
	case LIEN_CALL_NCCL_RECV:
		return 4;
	}
	return 5;
}

/* Bytes of ncclDataType_t 0 to 11, four bits each. */
#define TYPE_SIZES 0x112842884411ull

/* What is counted of the communicator; NULL: no room. */
static __noinline struct lien_probe_traffic *traffic_of(struct thread *thread,
	const struct lien_probe_comm *key, struct lien_probe_process *process)
{
	struct lien_probe_traffic *sums = bpf_map_lookup_elem(&traffic, key);

	if (sums)
		return sums;
	unmade_tell(thread, key->comm, 0);
	if (process->comms >= LIEN_PROBE_COMMS_MAX)
		return 0;
	if (!bpf_map_update_elem(&traffic, key, &no_traffic, BPF_NOEXIST))
		__sync_fetch_and_add(&process->comms, 1);
	return bpf_map_lookup_elem(&traffic, key);
}

static __noinline void count_pair(const struct lien_probe_comm *comm, __u32 peer)
{
	struct lien_probe_pair key = {.comm = comm->comm, .pid = comm->pid, .peer = peer};
	__u64 one = 1, *value = bpf_map_lookup_elem(&pairs, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
	else
		bpf_map_update_elem(&pairs, &key, &one, BPF_NOEXIST);
}

/* Processes that are not known have no end at which their entries would go. */
static __always_inline void count_traffic(
	struct thread *thread, const struct arguments *arguments, __u32 call)
{
	__u32 kind = call - LIEN_TRAFFIC_FIRST, at = comm_argument(call);
	int pair = LIEN_CALL_IS_TRANSFER(call);
	__u64 elements = arguments->arg[pair ? 1 : 2];
	__u32 type = arguments->arg[pair ? 2 : 3];
	struct lien_probe_comm key = {.pid = thread->pid};
	struct lien_probe_process *process;
	struct lien_probe_traffic *sums;

	key.comm = arguments->arg[at == 4 ? 4 : 5];
	if (at == 6 &&
		bpf_probe_read_user(&key.comm, sizeof(key.comm), (void *)(arguments->sp + 8))) {
		count(LIEN_COUNTER_UNREADABLE);
		return;
	}
	if (!key.comm || kind >= LIEN_TRAFFIC_KINDS)
		return;
	process = scope_enter(thread, key.comm);
	sums = process ? traffic_of(thread, &key, process) : 0;
	if (!sums) {
		count(LIEN_COUNTER_UNCOUNTED);
		return;
	}
	__sync_fetch_and_add(&sums->calls[kind], 1);
	thread->last_sp = arguments->sp;
	bpf_probe_read_user(
		&thread->last_caller, sizeof(thread->last_caller), (void *)arguments->sp);
	if (pair)
		count_pair(&key, arguments->arg[3] * 2 + (call == LIEN_CALL_NCCL_RECV));
	if (type < 12)
		__sync_fetch_and_add(&sums->bytes, elements * (TYPE_SIZES >> (type * 4) & 15));
	sums->t_last = bpf_ktime_get_ns();
}

/*
 * When the call that ends a communicator is entered: once it has returned, another one may have the
 * address, and counts of its own.
 */
static long pairs_drop(
	void *map, struct lien_probe_pair *key, __u64 *value, struct lien_probe_comm *comm)
{
	(void)value;
	if (key->pid == comm->pid && (!comm->comm || key->comm == comm->comm))
		bpf_map_delete_elem(map, key);
	return 0;
}

static __noinline void traffic_end(const struct thread *thread, __u64 comm)
{
	struct lien_probe_comm key = {.comm = comm, .pid = thread->pid};
	struct lien_probe_traffic *sums = bpf_map_lookup_elem(&traffic, &key);
	struct lien_probe_process *process;

	if (!sums)
		return;
	if (sums->calls[LIEN_CALL_NCCL_SEND - LIEN_TRAFFIC_FIRST] ||
		sums->calls[LIEN_CALL_NCCL_RECV - LIEN_TRAFFIC_FIRST])
		bpf_for_each_map_elem(&pairs, pairs_drop, &key, 0);
	if (bpf_map_delete_elem(&traffic, &key))
		return;
	process = bpf_map_lookup_elem(&processes, &thread->pid);
	if (process && process->comms)
		__sync_fetch_and_add(&process->comms, -1);
}

static long traffic_drop(
	void *map, struct lien_probe_comm *key, struct lien_probe_traffic *sums, __u32 *pid)
{
	(void)sums;
	if (key->pid == *pid)
		bpf_map_delete_elem(map, key);
	return 0;
}

static __noinline void context_call(
	struct thread *thread, const struct arguments *arguments, __u32 call)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &thread->pid);
	__u32 top;

	context_changes(thread);
	if (process) {
		__sync_fetch_and_add(&process->contexts_set, 1);
		if (call != LIEN_CALL_CU_CONTEXT_POP && arguments->arg[0] && process->context &&
			process->context != arguments->arg[0])
			process->contexts_many = 1;
	}
	switch (call) {
	case LIEN_CALL_CU_CONTEXT_SET:
		if (!arguments->arg[0]) {
			context_pop(thread);
			break;
		}
		if (!thread->contexts)
			thread->contexts = 1;
		top = thread->contexts - 1;
		if (top < CONTEXTS)
			thread->context[top & (CONTEXTS - 1)] = arguments->arg[0];
		break;
	case LIEN_CALL_CU_CONTEXT_PUSH:
		context_push(thread, arguments->arg[0]);
		break;
	case LIEN_CALL_CU_CONTEXT_POP:
		context_pop(thread);
		break;
	}
}

/* The second of one call's two hits, of another attachment to the same file. */
static __always_inline int quick_again(struct thread *thread, __u64 sp, __u64 cookie)
{
	if (thread->quick_sp == sp && thread->quick_call == LIEN_COOKIE_CALL(cookie) &&
		thread->quick_attachment != LIEN_COOKIE_ATTACHMENT(cookie)) {
		thread->quick_sp = 0;
		return 1;
	}
	thread->quick_sp = sp;
	thread->quick_call = LIEN_COOKIE_CALL(cookie);
	thread->quick_attachment = LIEN_COOKIE_ATTACHMENT(cookie);
	return 0;
}

SEC("uprobe")
int lien_entry(struct pt_regs *ctx)
{
	struct arguments arguments = {
		.arg = {ctx->di, ctx->si, ctx->dx, ctx->cx, ctx->r8, ctx->r9}, .sp = ctx->sp};
	__u64 cookie = bpf_get_attach_cookie(ctx), sp = arguments.sp;
	struct lien_probe_control *control;
	struct thread *thread = thread_get();
	__u64 scope, caller = 0;
	struct frame *frame;
	__u32 depth;

	if (!thread)
		return 0;
	/* Others than users of CUDA register memory with network cards, too. */
	if (LIEN_COOKIE_CALL(cookie) >= LIEN_CALL_IBV_REG_MR &&
		LIEN_COOKIE_CALL(cookie) <= LIEN_CALL_IBV_DEREG_MR &&
		!bpf_map_lookup_elem(&processes, &thread->pid))
		return 0;
	if (LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_QUICK) {
		if (quick_again(thread, sp, cookie))
			return 0;
		if (LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_CONTEXT)
			context_call(thread, &arguments, LIEN_COOKIE_CALL(cookie));
		else
			count_traffic(thread, &arguments, LIEN_COOKIE_CALL(cookie));
		return 0;
	}
	if (LIEN_COOKIE_CALL(cookie) < LIEN_CALL_CUDA_MALLOC && !thread->announced)
		announce(thread, LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_FIRST ? 1 : 0);

	depth = frames_left(thread, sp);
	bpf_probe_read_user(&caller, sizeof(caller), (void *)sp);
	if (depth && depth <= FRAMES) {
		frame = &thread->frame[(depth - 1) & (FRAMES - 1)];
		if (frame->sp == sp && frame->call == LIEN_COOKIE_CALL(cookie) &&
			frame->attachment != LIEN_COOKIE_ATTACHMENT(cookie))
			return 0;
		/* Not jumped to from the call above, so that one was left, too. */
		if (frame->sp == sp && caller != trampoline())
			depth = frames_left(thread, sp + 1);
	}
	if (depth >= FRAMES) {
		if (!(LIEN_COOKIE_FLAGS(cookie) & LIEN_CALL_FRAME))
			count_lost(thread->pid);
		return 0;
	}
	frame = &thread->frame[depth & (FRAMES - 1)];
	frame->sp = sp;
	frame->t_entry = bpf_ktime_get_ns();
	frame->call = LIEN_COOKIE_CALL(cookie);
	frame->flags = LIEN_COOKIE_FLAGS(cookie);
	frame->attachment = LIEN_COOKIE_ATTACHMENT(cookie);
	__builtin_memcpy(frame->arg, arguments.arg, sizeof(frame->arg));
	frame->share = 0;
	frame->given = 0;
	frame->control = 0;
	frame->caller = caller;
	thread->depth = depth + 1;

	control = bpf_map_lookup_elem(&controls, &thread->pid);
	if (control && control->state && read_state(control))
		control = 0;
	if (control) {
		/* The control library passes on a call of the application: its frame tells whose.
		 */
		if (frame->caller >= control->translate && frame->caller < control->translate_end)
			bpf_probe_read_user(
				&frame->caller, sizeof(frame->caller), (void *)(ctx->bp + 8));
		frame->control =
			frame->caller >= control->text && frame->caller < control->text_end;
		/* A program may only have looked whether there is a GPU, before it forks. */
		if (control->wake && !frame->control &&
			(control->wake == LIEN_PROBE_WAKE_ANY || !(frame->flags & LIEN_CALL_FIRST)))
			wake(control);
	}
	entry_extras(frame);
	scope = scope_of(frame);
	if (scope) {
		scope_enter(thread, scope);
		unmade_tell(thread, scope & LIEN_SCOPE_INIT ? frame->arg[0] : scope, 0);
		if (scope & LIEN_SCOPE_INIT)
			unmade_forget(thread, made_at(frame));
	}
	if (frame->call == LIEN_CALL_NCCL_DESTROY || frame->call == LIEN_CALL_NCCL_ABORT)
		traffic_end(thread, frame->arg[0]);
	if (frame->flags & LIEN_CALL_RELEASES)
		emit_call(thread, frame, 0, 0, LIEN_EVENT_ENTRY);
	return 0;
}

SEC("uprobe")
int lien_return(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx), sp = ctx->sp - 8;
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);
	struct frame *frame;
	__u32 depth;

	if (!thread)
		return 0;
	depth = frames_left(thread, sp);
	thread->depth = depth;
	if (!depth || depth > FRAMES)
		return 0;
	frame = &thread->frame[(depth - 1) & (FRAMES - 1)];
	if (frame->sp != sp || frame->call != LIEN_COOKIE_CALL(cookie) ||
		frame->attachment != LIEN_COOKIE_ATTACHMENT(cookie))
		return 0;
	if (!(frame->flags & LIEN_CALL_FRAME))
		emit_call(thread, frame, bpf_ktime_get_ns(), ctx->ax, 0);
	else if (frame->call == LIEN_CALL_NCCL_GROUP_END)
		unmade_tell(thread, 0, (__s32)ctx->ax);
	thread->depth = depth - 1;
	return 0;
}

#include "gate.h"

/* The process is gone or has become another program. */
static __always_inline void process_end(__u32 pid, __u16 type)
{
	struct lien_probe_comm comm = {.pid = pid};
	struct lien_probe_process *process;
	struct lien_event event;

	bpf_map_delete_elem(&controls, &pid);
	bpf_map_delete_elem(&followed, &pid);
	gate_end(pid);
	process = bpf_map_lookup_elem(&processes, &pid);
	if (!process)
		return;
	__builtin_memset(&event, 0, sizeof(event));
	event.type = type;
	event.pid = event.tid = pid;
	event.start = process->start;
	event.t_entry = event.t_return = bpf_ktime_get_ns();
	bpf_map_delete_elem(&processes, &pid);
	bpf_for_each_map_elem(&traffic, traffic_drop, &pid, 0);
	bpf_for_each_map_elem(&pairs, pairs_drop, &comm, 0);
	emit(&event, LIEN_EVENT_HEADER);
}

SEC("raw_tp/sched_process_exec")
int lien_exec(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid(), old = (__u32)ctx->args[1];

	/* A thread other than the first takes over the first one's number. */
	bpf_map_delete_elem(&threads, &old);
	bpf_map_delete_elem(&threads, &ktid);
	process_end(leader_pid((void *)ctx->args[0]), LIEN_EVENT_EXEC);
	return 0;
}

#define SIGNAL_GROUP_EXIT 4

SEC("raw_tp/sched_process_exit")
int lien_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)ctx->args[0];
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct thread *thread = bpf_map_lookup_elem(&threads, &ktid);

	/* In the middle of a call, while the process goes on. */
	if (thread && !(BPF_CORE_READ(task, signal, flags) & SIGNAL_GROUP_EXIT))
		frames_left(thread, ~0ull);
	if (thread) {
		gate_leave(thread);
		gate_leave_group(thread);
	}
	bpf_map_delete_elem(&threads, &ktid);
	if (!BPF_CORE_READ(task, signal, live.counter))
		process_end(leader_pid(task), LIEN_EVENT_EXIT);
	return 0;
}

/* A child has its parent's libraries; the thread that served them it has not. */
SEC("raw_tp/sched_process_fork")
int lien_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *child = (void *)ctx->args[1];
	struct lien_probe_control control, *of_parent;
	__u32 pid;

	if (BPF_CORE_READ(child, pid) != BPF_CORE_READ(child, tgid))
		return 0;
	pid = leader_pid((void *)ctx->args[0]);
	of_parent = pid ? bpf_map_lookup_elem(&controls, &pid) : 0;
	pid = pid_in_agent(child);
	if (!of_parent || !pid)
		return 0;
	control = *of_parent;
	control.wake = LIEN_PROBE_WAKE;
	bpf_map_update_elem(&controls, &pid, &control, BPF_ANY);
	return 0;
}

#define PROT_EXEC 4

SEC("tracepoint/syscalls/sys_enter_mmap")
int lien_mmap_enter(struct syscall_enter *ctx)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid();
	struct mmap_args args = {};

	if (!(ctx->arg[2] & PROT_EXEC) || (__s32)ctx->arg[4] < 0)
		return 0;
	args.length = ctx->arg[1];
	args.fd = (__s32)ctx->arg[4];
	args.offset = ctx->arg[5];
	bpf_map_update_elem(&mmaps, &ktid, &args, BPF_ANY);
	return 0;
}

static __always_inline int starts(const char *name, const char *with, int n)
{
	int i;

	for (i = 0; i < n; i++)
		if (name[i] != with[i])
			return 0;
	return 1;
}

/* Without waiting for the agent to look: the program may make all its calls before that. */
static __noinline void control_mapped(__u32 pid, const struct lien_event *event)
{
	__u64 inode = event->library.inode;
	struct lien_probe_layout *layout = bpf_map_lookup_elem(&control_files, &inode);
	struct lien_probe_control control = {
		.text = event->library.start,
		.text_end = event->library.start + event->library.length,
		.wake = LIEN_PROBE_WAKE,
	};

	if (!layout || layout->text_offset != event->library.offset)
		return;
	control.state = event->library.start + layout->state;
	bpf_map_update_elem(&controls, &pid, &control, BPF_ANY);
}

SEC("tracepoint/syscalls/sys_exit_mmap")
int lien_mmap_exit(struct syscall_exit *ctx)
{
	__u32 ktid = (__u32)bpf_get_current_pid_tgid(), pid, dev;
	struct mmap_args *args = bpf_map_lookup_elem(&mmaps, &ktid);
	struct task_struct *task = (void *)bpf_get_current_task();
	struct lien_probe_process process = {};
	struct lien_event event;
	struct file *file;

	if (!args)
		return 0;
	__builtin_memset(&event, 0, sizeof(event));
	event.library.length = args->length;
	event.library.offset = args->offset;
	file = file_of_fd(args->fd);
	bpf_map_delete_elem(&mmaps, &ktid);
	if (ctx->result < 0 && ctx->result > -4096)
		return 0;
	pid = leader_pid(task);
	if (!file || !pid)
		return 0;
	BPF_CORE_READ_INTO(&event.library.inode, file, f_inode, i_ino);
	dev = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
	event.library.dev_major = dev >> 20;
	event.library.dev_minor = dev & 0xfffff;
	bpf_probe_read_kernel_str(event.library.name, sizeof(event.library.name),
		BPF_CORE_READ(file, f_path.dentry, d_name.name));
	process.start = start_ticks(task);
	if (starts(event.library.name, "libcuda", 7) || starts(event.library.name, "libnccl", 7) ||
		starts(event.library.name, "liblien", 7))
		bpf_map_update_elem(&processes, &pid, &process, BPF_NOEXIST);
	else if (!starts(event.library.name, "libibverbs", 10) &&
		 !bpf_map_lookup_elem(&processes, &pid))
		return 0;
	event.type = LIEN_EVENT_LIBRARY;
	event.pid = pid;
	event.tid = pid_in_agent(task);
	event.start = process.start;
	event.t_entry = event.t_return = bpf_ktime_get_ns();
	event.library.start = ctx->result;
	if (starts(event.library.name, "liblien", 7))
		control_mapped(pid, &event);
	emit(&event, LIEN_EVENT_SIZE(library));
	return 0;
}
