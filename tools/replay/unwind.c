// SPDX-License-Identifier: BSD-2-Clause
/*
 * Gives everything back like an application that ends cleanly: the latest first, registrations
 * before communicators, mappings before handles, handles before addresses.
 */
#include <inttypes.h>

#include "tools/replay/worker.h"

static int judge(struct lien_replay_worker *w, const char *call, uint64_t what, CUresult result)
{
	if (result == CUDA_SUCCESS)
		return lien_replay_progress(w);
	return lien_replay_wrong(
		w, "free: %s of 0x%" PRIx64 ": %s", call, what, lien_replay_error_name(result));
}

static int withdraw(struct lien_replay_worker *w, struct lien_replay_name *name)
{
	struct lien_replay_name *owner =
		lien_replay_names_find(&w->names, LIEN_REPLAY_NAME_COMM, name->tag);
	bool window = name->kind == LIEN_REPLAY_NAME_WINDOW;
	void *comm, *handle = (void *)lien_replay_names_pop(&w->names, name);
	int result;

	/* Its communicator was destroyed first, which removed it. */
	if (!owner)
		return 0;
	comm = (void *)lien_replay_name_actual(owner);
	result = window ? lien_replay_nccl.window_withdraw(comm, handle)
			: lien_replay_nccl.withdraw(comm, handle);
	return result ? lien_replay_wrong(w, "free: deregistration: ncclResult_t %d", result) : 0;
}

static int destroy(struct lien_replay_worker *w, struct lien_replay_name *name)
{
	int result = lien_replay_nccl.destroy((void *)lien_replay_names_pop(&w->names, name));

	return result ? lien_replay_wrong(w, "free: ncclCommDestroy: ncclResult_t %d", result) : 0;
}

static int release(struct lien_replay_worker *w, struct lien_replay_name *name)
{
	uint32_t flags = name->flags;
	uint64_t handle = lien_replay_names_pop(&w->names, name);

	return judge(
		w, "cuMemRelease", handle, LIEN_REPLAY_CALL(w, flags, cuMemRelease, (long)handle));
}

/* Gives back all names of some kinds (bits), as often as they are referenced. */
static int give_back(struct lien_replay_worker *w, unsigned int kinds,
	int (*give)(struct lien_replay_worker *w, struct lien_replay_name *name))
{
	struct lien_replay_name *name, *before;
	uint32_t held;
	int err;

	for (name = TAILQ_LAST(&w->names.order, lien_replay_name_list); name; name = before) {
		before = TAILQ_PREV(name, lien_replay_name_list, order);
		if (!(kinds >> name->kind & 1))
			continue;
		for (held = name->count; held > 0; held--) {
			err = give(w, name);
			if (err)
				return err;
		}
	}
	return 0;
}

static int unmap(struct lien_replay_worker *w)
{
	struct lien_replay_mapping *m, *before;
	uint64_t va, bytes;
	uint32_t flags;
	int err;

	for (m = TAILQ_LAST(&w->space.mappings, lien_replay_mapping_list); m; m = before) {
		before = TAILQ_PREV(m, lien_replay_mapping_list, order);
		if (m->linear)
			continue;
		va = lien_replay_space_actual(&w->space, m->va);
		bytes = m->bytes;
		flags = m->flags;
		lien_replay_space_unmap(&w->space, m);
		err = judge(w, "cuMemUnmap", va,
			LIEN_REPLAY_CALL(w, flags, cuMemUnmap, (long)va, (long)bytes));
		if (err)
			return err;
	}
	return 0;
}

static int free_ranges(struct lien_replay_worker *w)
{
	struct lien_replay_range *range;
	uint64_t va, bytes;
	uint32_t flags;
	bool linear;
	int err;

	while ((range = TAILQ_LAST(&w->space.ranges, lien_replay_range_list))) {
		va = range->actual;
		bytes = range->bytes;
		flags = range->flags;
		linear = range->linear;
		if (linear)
			lien_replay_space_unmap(
				&w->space, lien_replay_space_mapping(&w->space, range->va, 1));
		lien_replay_space_unreserve(&w->space, range);
		if (linear)
			err = judge(w, "cuMemFree_v2", va,
				LIEN_REPLAY_CALL(w, flags, cuMemFree_v2, (long)va));
		else
			err = judge(w, "cuMemAddressFree", va,
				LIEN_REPLAY_CALL(
					w, flags, cuMemAddressFree, (long)va, (long)bytes));
		if (err)
			return err;
	}
	return 0;
}

int lien_replay_unwind(struct lien_replay_worker *w)
{
	int err;

	err = give_back(
		w, 1u << LIEN_REPLAY_NAME_REGISTRATION | 1u << LIEN_REPLAY_NAME_WINDOW, withdraw);
	if (!err)
		err = give_back(w, 1u << LIEN_REPLAY_NAME_COMM, destroy);
	if (!err)
		err = unmap(w);
	if (!err)
		err = give_back(w, 1u << LIEN_REPLAY_NAME_HANDLE, release);
	return err ? err : free_ranges(w);
}
