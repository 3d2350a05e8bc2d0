/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps serve all users of the node, and users' processes fill them. Each user (users.h) has a
 * share of each map, so that nobody can fill one up for the others.
 */
#ifndef LIEN_BPF_ACCOUNT_H
#define LIEN_BPF_ACCOUNT_H

#include "users.h"

/* Sizes of the maps, for all users together. */
#define THREADS_MAX   32768
#define PROCESSES_MAX 16384
#define COMMS_MAX     65536
#define PAIRS_MAX     65536
#define UNMADE_MAX    4096

/* A user's share of a map: an eighth; root's is three quarters. */
#define SHARE_OF_USER(entries) ((entries) / 8)
#define SHARE_OF_ROOT(entries) ((entries) / 4 * 3)

enum share {
	SHARE_THREADS,
	SHARE_PROCESSES,
	SHARE_COMMS,
	SHARE_PAIRS,
	SHARE_UNMADE,
	SHARE_COUNT,
};

/* The size of map `threads` as it was created, and by how many bits those of the others are smaller
 * than above. */
const volatile __u32 lien_threads_max = THREADS_MAX;
const volatile __u32 lien_room_shift = 0;

struct account {
	__u32 used[SHARE_COUNT];
	__u32 exports[2]; /* total ever made, by the job and by restores (sharing.h) */
	__u32 window;	  /* of the ring, in which */
	__u32 reported;	  /* this many bytes were written for the user */
};

/* An LRU map: the least recently used accounts are dropped. A new entry starts at zero, and its
 * counts never fall below that. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct account);
} accounts SEC(".maps");

static const struct account no_account;

static __always_inline __u32 share_max(enum share share, __u64 account)
{
	__u32 entries = share == SHARE_PROCESSES ? PROCESSES_MAX
			: share == SHARE_COMMS	 ? COMMS_MAX
			: share == SHARE_PAIRS	 ? PAIRS_MAX
						 : UNMADE_MAX;

	entries = share == SHARE_THREADS ? lien_threads_max : entries >> lien_room_shift;
	return account == ACCOUNT_ROOT ? SHARE_OF_ROOT(entries) : SHARE_OF_USER(entries);
}

static __always_inline struct account *account_get(__u64 account)
{
	struct account *found = bpf_map_lookup_elem(&accounts, &account);

	if (found)
		return found;
	bpf_map_update_elem(&accounts, &account, &no_account, BPF_NOEXIST);
	return bpf_map_lookup_elem(&accounts, &account);
}

/* Takes one more entry of a map. Returns -1 if the user's share is used up. */
static __always_inline int share_take(__u64 account, enum share share)
{
	struct account *user = account_get(account);

	if (!user)
		return -1;
	if (__sync_fetch_and_add(&user->used[share], 1) < share_max(share, account))
		return 0;
	__sync_fetch_and_add(&user->used[share], -1);
	return -1;
}

static __always_inline void share_give(__u64 account, enum share share, __u32 entries)
{
	struct account *user = bpf_map_lookup_elem(&accounts, &account);

	if (user && user->used[share] >= entries)
		__sync_fetch_and_add(&user->used[share], -entries);
}

#endif
