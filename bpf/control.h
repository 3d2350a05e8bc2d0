/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The control library in a process: its addresses, and the signal of its handler. */
#ifndef LIEN_BPF_CONTROL_H
#define LIEN_BPF_CONTROL_H

#include "thread.h"

/* Key: pid. An entry is deleted with its process in map `processes`. */
HASH_MAP(controls, PROCESSES_MAX, __u32, struct lien_probe_control);

HASH_MAP(control_files, 1024, __u64, struct lien_probe_layout);

/* Reads lien_control_state from the process's memory (wire.h). */
struct user_state {
	__u64 magic;
	__u32 version, pid;
	__u64 handler;
	__u32 signal, agent_fd;
	__u64 agent_ino, translate, translate_end;
	__s64 tag;
};

/* The control library's constructor, if it runs at all, runs before the program uses CUDA. */
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
	control->tag = state.tag;
	control->state = 0;
	return 0;
}

/*
 * Returns true if the signal would run the control library's handler in the thread now. The signal
 * must have no other effect: the process itself names the signal, and may have changed its
 * disposition.
 */
static __noinline int takes_signal(
	const struct lien_probe_control *control, struct task_struct *task)
{
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
 * first instruction, a point where it may do whatever a called function may do.
 */
static __noinline void wake(struct lien_probe_control *control)
{
	__u32 armed;

	if (!takes_signal(control, (void *)bpf_get_current_task()))
		return;
	armed = __sync_lock_test_and_set(&control->wake, 0);
	if (!armed)
		return;
	if (bpf_send_signal_thread(control->signal))
		control->wake = armed;
	else
		count(LIEN_COUNTER_WOKEN);
}

/* Returns the record of the process, once its state could be read. NULL: it has no control library,
 * or that has not started. */
static __always_inline struct lien_probe_control *control_of(__u32 pid)
{
	struct lien_probe_control *control = bpf_map_lookup_elem(&controls, &pid);

	return control && control->state && read_state(control) ? 0 : control;
}

/* Returns true for the control library's own calls, but not for those that it makes for the
 * application. */
static __always_inline int called_by_control(
	const struct lien_probe_control *control, __u64 return_address)
{
	return control && return_address >= control->text && return_address < control->text_end &&
	       !(return_address >= control->translate && return_address < control->translate_end);
}

/* Adds the thread's tag, which the control library keeps in a variable of the thread's
 * (control/tag/tag.c), to the event of a call that makes memory. Returns the size
 * of the record. */
__noinline int tag_add(struct thread *thread, struct lien_event *event, __u32 size)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	const struct lien_probe_control *control;
	__u64 name = 0;

	if (!thread || !event)
		return size;
	control = control_of(thread->pid);
	if (!control || !control->tag)
		return size;
	/* Written when the thread is made. It is not in use before a library has been loaded. */
	if (bpf_probe_read_user(&name, sizeof(name),
		    (void *)(BPF_CORE_READ(task, thread.fsbase) + control->tag)) ||
		!name)
		return size;
	/* Not a lost argument: what becomes of the memory is known. */
	if (bpf_probe_read_user_str(event->tagged.tag, sizeof(event->tagged.tag), (void *)name) <
		0) {
		event->tagged.tag[0] = 1; /* no tag has that */
		event->tagged.tag[1] = 0;
		count(LIEN_COUNTER_UNREADABLE);
	}
	return LIEN_EVENT_SIZE(tagged);
}

#endif
