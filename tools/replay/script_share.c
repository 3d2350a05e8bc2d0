// SPDX-License-Identifier: BSD-2-Clause
/* Applies exports and imports, and matches them. */
#include <errno.h>

#include <lien/cuda_abi.h>
#include "tools/replay/build.h"

static struct lien_replay_name *handle_name(struct lien_replay_build *b, uint64_t handle)
{
	return lien_replay_names_find(&b->names, LIEN_REPLAY_NAME_HANDLE, handle);
}

static int export_handle(struct lien_replay_build *b, const struct lien_event *ev)
{
	struct lien_replay_name *name = handle_name(b, ev->share.handle);
	struct lien_replay_share *share;

	if (!name)
		return lien_replay_skip(b, LIEN_SKIP_UNKNOWN);
	if (name->tag == LIEN_NO_ALLOCATION)
		return lien_replay_skip(b, LIEN_SKIP_DEPENDENT);
	if (ev->share.handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
		ev->share.handle_type != CU_MEM_HANDLE_TYPE_FABRIC)
		return lien_replay_skip(b, LIEN_SKIP_TYPE);
	/* A repeated export gives the same fabric handle: the first one serves its imports. */
	if (ev->share.share && !lien_replay_share_find(&b->script->shares, ev->share.share)) {
		share = lien_replay_share_add(&b->script->shares, ev->share.share);
		if (!share)
			return -ENOMEM;
		share->allocation = name->tag;
		share->type = ev->share.handle_type;
		share->exporter = b->index;
		share->op = b->process->count;
	}
	return lien_replay_emit(b, ev, name->tag);
}

static int import_handle(struct lien_replay_build *b, const struct lien_event *ev)
{
	uint64_t handle = ev->share.handle, number = LIEN_NO_ALLOCATION;
	struct lien_replay_share *share = NULL;
	int err;

	/* Importing twice may give the same value, so a live one without a pending release
	 * stays. */
	while (handle_name(b, handle) &&
		lien_replay_pending_find(&b->pending, LIEN_CALL_CU_MEM_RELEASE, handle)) {
		err = lien_replay_give_up_reference(b, handle);
		if (err)
			return err;
	}
	if (ev->share.share)
		share = lien_replay_share_find(&b->script->shares, ev->share.share);
	if (share)
		number = share->allocation;
	/* Live, and of another allocation: its release was lost. */
	while (handle_name(b, handle) && handle_name(b, handle)->tag != number) {
		err = lien_replay_give_up_reference(b, handle);
		if (err)
			return err;
	}
	if (!lien_replay_names_push(&b->names, LIEN_REPLAY_NAME_HANDLE, handle, 0, number, 0))
		return -ENOMEM;
	if (!share)
		return lien_replay_skip(b, LIEN_SKIP_IMPORT);
	share->imports++;
	return lien_replay_emit(b, ev, number);
}

lien_replay_apply lien_replay_share_call(unsigned int call)
{
	switch (call) {
	case LIEN_CALL_CU_MEM_EXPORT:
		return export_handle;
	case LIEN_CALL_CU_MEM_IMPORT:
		return import_handle;
	default:
		return NULL;
	}
}
