/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The context, and so the device, in which a thread allocates. A process with one context needs no
 * watching. In other processes the calls that make a context current are probed
 * (loader/probes/follow.h), and a thread's context is known from its next such call on.
 */
#ifndef LIEN_BPF_CONTEXT_H
#define LIEN_BPF_CONTEXT_H

#include "thread.h"

HASH_MAP(followed, PROCESSES_MAX, __u32, struct lien_probe_followed);

/* Limit per process. The device of further contexts is unknown. */
#define MADE_MAX 16

struct made {
	__u64 context; /* 0: none */
	__s32 device;
	__u32 zero;
};

/* The contexts that a process has made, by pid. An entry is deleted with its process in map
 * `processes`. */
struct contexts {
	struct made made[MADE_MAX];
};

HASH_MAP(contexts, PROCESSES_MAX, __u32, struct contexts);

static const struct contexts no_contexts;

/* The kernel cannot probe single processes, so contexts are followed in all of them. */
const volatile __u32 lien_all_contexts = 0;

static __always_inline struct contexts *contexts_of(const struct thread *thread)
{
	__u32 pid = thread->pid;

	return bpf_map_lookup_elem(&contexts, &pid);
}

static __always_inline int is_followed(const struct thread *thread, __u64 t)
{
	struct lien_probe_followed *since;
	__u32 pid = thread->pid;

	if (lien_all_contexts)
		return 1;
	since = bpf_map_lookup_elem(&followed, &pid);
	return since && since->start == thread->start && since->t_since <= t;
}

/* Returns the thread's current one; 0: unknown. */
static __noinline __u64 context_of(struct thread *thread)
{
	struct lien_probe_process *process = process_of(thread);
	__u32 top = thread->contexts - 1;

	if (process && process->whole && !process->contexts_many)
		return process->context;
	if (!is_followed(thread, thread->t_context))
		return 0;
	return top < CONTEXTS ? thread->context[top & (CONTEXTS - 1)] : 0;
}

/* Returns the device of the thread's current context; -1: unknown. */
static __noinline __s32 device_of(struct thread *thread)
{
	struct contexts *known = contexts_of(thread);
	__u64 context = context_of(thread);
	__u32 i;

	if (!known || !context)
		return -1;
#pragma clang loop unroll(disable)
	for (i = 0; i < MADE_MAX; i++)
		if (known->made[i].context == context)
			return known->made[i].device;
	return -1;
}

/* Contexts deeper than the limit are only counted. */
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

/* Called before a recorded change: the state from before the process was followed may be wrong. */
static __always_inline void context_changes(struct thread *thread)
{
	if (!is_followed(thread, thread->t_context))
		thread->contexts = 0;
	thread->t_context = bpf_ktime_get_ns();
}

/* Records a context's device. A process with one context needs nothing else. */
static __noinline int context_note(__u32 pid, __u64 context, __s32 device)
{
	struct lien_probe_process *process = bpf_map_lookup_elem(&processes, &pid);
	struct contexts *known;
	__u64 there;
	__u32 i;

	if (!process)
		return 0;
	there = __sync_val_compare_and_swap(&process->context, 0, context);
	if (there && there != context)
		process->contexts_many = 1;
	bpf_map_update_elem(&contexts, &pid, &no_contexts, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&contexts, &pid);
	if (!known)
		return 0;
#pragma clang loop unroll(disable)
	for (i = 0; i < MADE_MAX; i++) {
		there = __sync_val_compare_and_swap(&known->made[i].context, 0, context);
		if (there && there != context)
			continue;
		known->made[i].device = device;
		break;
	}
	return 0;
}

static __always_inline void context_made(
	struct thread *thread, struct lien_event *event, const struct frame *frame, __u64 device)
{
	event->context.context = read_user_u64(event, frame->arg[0]);
	event->context.device = (__s32)device;
	if (event->result || !event->context.context)
		return;
	context_note(thread->pid, event->context.context, event->context.device);
	if (frame->call != LIEN_CALL_CU_CONTEXT_PRIMARY) {
		context_changes(thread);
		context_push(thread, event->context.context);
	}
}

/* Returns the index of the device argument, which depends on the call's version. */
static __always_inline __u64 context_device(const struct frame *frame)
{
	switch (frame->call) {
	case LIEN_CALL_CU_CONTEXT_PRIMARY:
		return frame->arg[1];
	case LIEN_CALL_CU_CONTEXT_CREATE_V4:
		return frame->arg[3];
	case LIEN_CALL_CU_CONTEXT_CREATE_V3:
		return frame->arg[4];
	default:
		return frame->arg[2];
	}
}

static __always_inline __u32 context_body(
	struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	context_made(thread, event, frame, context_device(frame));
	return LIEN_EVENT_SIZE(context);
}

/* Destroying the current context pops it. Its address may be reused. */
static __always_inline void context_destroyed(struct thread *thread, __u64 context)
{
	struct contexts *known = contexts_of(thread);
	__u32 i;

	if (context_of(thread) == context)
		context_pop(thread);
#pragma clang loop unroll(disable)
	for (i = 0; known && i < MADE_MAX; i++)
		if (known->made[i].context == context)
			known->made[i].context = 0;
}

static __noinline int context_call(
	struct thread *thread, const struct arguments *arguments, __u32 call)
{
	struct lien_probe_process *process = process_of(thread);
	__u64 context = arguments->arg[0];
	__u32 top;

	context_changes(thread);
	if (process) {
		__sync_fetch_and_add(&process->contexts_set, 1);
		if (call != LIEN_CALL_CU_CONTEXT_POP && context && process->context &&
			process->context != context)
			process->contexts_many = 1;
	}
	switch (call) {
	case LIEN_CALL_CU_CONTEXT_SET:
		if (!context) {
			context_pop(thread);
			break;
		}
		if (!thread->contexts)
			thread->contexts = 1;
		top = thread->contexts - 1;
		if (top < CONTEXTS)
			thread->context[top & (CONTEXTS - 1)] = context;
		break;
	case LIEN_CALL_CU_CONTEXT_PUSH:
		context_push(thread, context);
		break;
	case LIEN_CALL_CU_CONTEXT_POP:
		context_pop(thread);
		break;
	}
	return 0;
}

#endif
