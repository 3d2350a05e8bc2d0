/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tag of the calling thread, which the control library keeps in a variable of the thread's
 * (control/tag/tag.c). */
#ifndef LIEN_BPF_TAG_H
#define LIEN_BPF_TAG_H

#include "control.h"

/* Adds the thread's tag, if it has one, to the event of a call that makes memory. Returns the size
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
