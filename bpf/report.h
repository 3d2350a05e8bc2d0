/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends records to the agent, and counts those that are lost. */
#ifndef LIEN_BPF_REPORT_H
#define LIEN_BPF_REPORT_H

#include "account.h"
#include <lien/event.h>

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LIEN_COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* Processes that mapped the driver, by pid. The agent adds those that ran before it started. */
HASH_MAP(processes, PROCESSES_MAX, __u32, struct lien_probe_process);

/* Lost records of known processes, by pid, so that the agent can mark them incomplete. An entry is
 * deleted with its process, so there is room for each. */
HASH_MAP(lost, PROCESSES_MAX, __u32, __u64);

static __always_inline void count(__u32 counter)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	if (value)
		__sync_fetch_and_add(value, 1);
}

/* Increment the counter last: the agent looks for the process when it changes. */
static __always_inline void count_lost(__u32 pid)
{
	__u64 one = 1, *value;

	value = bpf_map_lookup_elem(&lost, &pid);
	if (!value && bpf_map_lookup_elem(&processes, &pid) &&
		bpf_map_update_elem(&lost, &pid, &one, BPF_NOEXIST))
		value = bpf_map_lookup_elem(&lost, &pid); /* another thread added it first */
	if (value)
		__sync_fetch_and_add(value, 1);
	count(LIEN_COUNTER_LOST);
}

/* Counts the times that the agent has read nearly everything. The data written for a user since
 * then is the user's part of the unread data. */
__u32 ring_window = 0;

/* Returns true if another record may be written for this user: always while the ring is less than
 * half full, then only for users who have not filled their share of it. */
static __always_inline int ring_admits(__u64 account, __u32 size)
{
	__u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	__u64 all = bpf_ringbuf_query(&events, BPF_RB_RING_SIZE);
	struct account *user = account_get(account);
	__u64 share = account == ACCOUNT_ROOT ? SHARE_OF_ROOT(all) : SHARE_OF_USER(all);

	if (waiting < all / 16)
		ring_window++;
	if (!user)
		return waiting < all / 2;
	if (user->window != ring_window) {
		user->window = ring_window;
		user->reported = 0;
	}
	if (waiting >= all / 2 && user->reported >= share)
		return 0;
	__sync_fetch_and_add(&user->reported, size);
	return 1;
}

/* Reports an event and charges it to the account. Returns -1 if it is lost; then it is counted. */
__noinline int emit(struct lien_event *event, __u32 size, __u64 account)
{
	if (!event || size > sizeof(*event))
		return -1;
	event->size = size;
	if (!ring_admits(account, size) || bpf_ringbuf_output(&events, event, size, 0)) {
		count_lost(event->pid);
		return -1;
	}
	return 0;
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

#endif
