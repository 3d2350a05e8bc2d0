/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Internal to script building: one recorded process in its state at the current record. An apply
 * function takes a call that succeeded, emits the op to replay and updates that state; returns 0 or
 * -errno.
 */
#ifndef LIEN_REPLAY_BUILD_H
#define LIEN_REPLAY_BUILD_H

#include "tools/replay/names.h"
#include "tools/replay/pending.h"
#include "tools/replay/script.h"
#include "tools/replay/space.h"

struct lien_replay_build {
	RB_ENTRY(lien_replay_build) tree;
	uint32_t pid;
	uint32_t index; /* of the process in the script */
	uint64_t start;
	struct lien_script *script;
	struct lien_replay_process *process;
	struct lien_replay_names names;
	struct lien_replay_space space;
	struct lien_replay_pending pending;
};

typedef int (*lien_replay_apply)(struct lien_replay_build *b, const struct lien_event *ev);

/* Return the apply function for a call's number; NULL: nothing to replay. */
lien_replay_apply lien_replay_memory_call(unsigned int call);
lien_replay_apply lien_replay_share_call(unsigned int call);
lien_replay_apply lien_replay_comm_call(unsigned int call);

/* Takes an event that is no record of its own. */
int lien_script_take(struct lien_script *script, const struct lien_event *ev);

/* Appends the call to the process's script. */
int lien_replay_emit(struct lien_replay_build *b, const struct lien_event *ev, uint64_t allocation);

/* Returns the LIEN_OP_* flags of a call that is not emitted yet: NCCL makes it if the outermost
 * traced frame is one of NCCL's functions, or returns into a libnccl.so. */
uint32_t lien_replay_op_flags(struct lien_replay_build *b, const struct lien_event *ev);

/* Counts the call as left out. Returns 0. */
int lien_replay_skip(struct lien_replay_build *b, enum lien_replay_skip why);

/*
 * Called when the driver gave this name out again although it is live here: its release (a call of
 * this type, which `release` applies) has happened, announced or not. Applies it now.
 */
int lien_replay_give_up(
	struct lien_replay_build *b, unsigned int type, uint64_t name, lien_replay_apply release);
/* The same for one reference to a handle. */
int lien_replay_give_up_reference(struct lien_replay_build *b, uint64_t handle);

#endif
