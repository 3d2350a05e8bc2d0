// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/rest_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"

static int place_cmp(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

bool lien_rest_index_pids(struct rest *rest)
{
	unsigned i;

	rest->places = calloc(rest->count + 1, sizeof(*rest->places));
	if (!rest->places)
		return false;
	for (i = 0; i < rest->count; i++)
		rest->places[i] = (struct place){rest->pids[i], i};
	if (rest->count)
		qsort(rest->places, rest->count, sizeof(*rest->places), place_cmp);
	return true;
}

int lien_rest_index_of(const struct rest *rest, uint32_t pid)
{
	const struct place key = {.pid = pid}, *found;

	found = rest->count ? bsearch(&key, rest->places, rest->count, sizeof(key), place_cmp)
			    : NULL;
	return found ? (int)found->index : -1;
}

int lien_rest_gather(
	void *context, const struct lien_probe_held_key *who, const struct lien_probe_held *held)
{
	struct rest *rest = context;

	if (lien_rest_index_of(rest, who->pid) < 0)
		return 0;
	if (lien_array_grow(&rest->waiting, rest->waiting_count, &rest->waiting_room,
		    sizeof(*rest->waiting)))
		return -ENOMEM;
	rest->waiting[rest->waiting_count++] = (struct waiting){*who, *held};
	return 0;
}

int lien_rest_note_pair(void *context, const struct lien_probe_pair *which, uint64_t calls)
{
	struct rest *rest = context;

	if (lien_rest_index_of(rest, which->pid) < 0)
		return 0;
	if (lien_array_grow(
		    &rest->begun, rest->begun_count, &rest->begun_room, sizeof(*rest->begun)))
		return -ENOMEM;
	rest->begun[rest->begun_count++] = (struct begun){*which, calls};
	return 0;
}

static int waiting_cmp(const void *a, const void *b)
{
	const struct waiting *x = a, *y = b;

	if (x->who.pid != y->who.pid)
		return x->who.pid < y->who.pid ? -1 : 1;
	if (x->held.comm != y->held.comm)
		return x->held.comm < y->held.comm ? -1 : 1;
	if (x->held.call != y->held.call)
		return x->held.call < y->held.call ? -1 : 1;
	return (x->held.peer > y->held.peer) - (x->held.peer < y->held.peer);
}

unsigned lien_rest_first_waiting(
	const struct rest *rest, uint32_t pid, uint64_t comm, uint32_t call, uint32_t peer)
{
	const struct waiting key = {
		.who.pid = pid, .held.comm = comm, .held.call = call, .held.peer = peer};
	unsigned low = 0, high = rest->waiting_count, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (waiting_cmp(&rest->waiting[mid], &key) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

const struct waiting *lien_rest_waiting_on(
	const struct rest *rest, unsigned i, uint32_t pid, uint64_t comm)
{
	const struct waiting *waiting = rest->waiting + i;

	return i < rest->waiting_count && waiting->who.pid == pid && waiting->held.comm == comm
		       ? waiting
		       : NULL;
}

static int thread_cmp(const void *a, const void *b)
{
	const struct lien_probe_held_key *x = a, *y = b;

	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return (x->tid > y->tid) - (x->tid < y->tid);
}

bool lien_rest_index_threads(struct rest *rest)
{
	unsigned i;

	rest->by_thread = calloc(rest->waiting_count + 1, sizeof(*rest->by_thread));
	if (!rest->by_thread)
		return false;
	for (i = 0; i < rest->waiting_count; i++)
		rest->by_thread[i] = rest->waiting[i].who;
	if (rest->waiting_count)
		qsort(rest->by_thread, rest->waiting_count, sizeof(*rest->by_thread), thread_cmp);
	return true;
}

static int begun_cmp(const void *a, const void *b)
{
	const struct begun *x = a, *y = b;

	return memcmp(&x->which, &y->which, sizeof(x->which));
}

void lien_rest_sort(struct rest *rest)
{
	if (rest->waiting_count)
		qsort(rest->waiting, rest->waiting_count, sizeof(*rest->waiting), waiting_cmp);
	if (rest->begun_count)
		qsort(rest->begun, rest->begun_count, sizeof(*rest->begun), begun_cmp);
}

unsigned lien_rest_held_in(const struct rest *rest, uint32_t pid)
{
	return lien_rest_first_waiting(rest, pid + 1, 0, 0, 0) -
	       lien_rest_first_waiting(rest, pid, 0, 0, 0);
}

bool lien_rest_is_held(const struct rest *rest, const struct lien_probe_thread *thread)
{
	const struct lien_probe_held_key key = {thread->pid, thread->tid};

	return rest->waiting_count &&
	       bsearch(&key, rest->by_thread, rest->waiting_count, sizeof(key), thread_cmp);
}

const struct begun *lien_rest_pairs(
	const struct rest *rest, uint32_t pid, uint64_t comm, unsigned *count)
{
	const struct begun key = {.which = {.comm = comm, .pid = pid}};
	const struct begun *all = rest->begun;
	unsigned low = 0, high = rest->begun_count, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (begun_cmp(&all[mid], &key) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	for (*count = 0, high = low; high < rest->begun_count && all[high].which.pid == pid &&
				     all[high].which.comm == comm;
		high++)
		++*count;
	return all + low;
}
