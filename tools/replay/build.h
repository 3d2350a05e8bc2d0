/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inside script building: one recorded process as it was at the record that is being looked at. An
 * apply function takes a call that succeeded, emits what is to be replayed and updates that state;
 * returns 0 or -errno.
 */
#ifndef LIEN_REPLAY_BUILD_H
#define LIEN_REPLAY_BUILD_H

#include <tools/replay/names.h>
#include <tools/replay/owner.h>
#include <tools/replay/pending.h>
#include <tools/replay/script.h>
#include <tools/replay/space.h>

struct lien_replay_build {
	RB_ENTRY(lien_replay_build) tree;
	uint32_t pid;
	uint32_t index; /* of process in the script */
	uint64_t start;
	struct lien_script *script;
	struct lien_replay_process *process;
	struct lien_replay_names names;
	struct lien_replay_space space;
	struct lien_replay_pending pending;
	struct lien_replay_owners owners;
};

typedef int (*lien_replay_apply)(struct lien_replay_build *b, const struct lien_event *ev);

/* What a call does, by its number; NULL: nothing that is replayed. */
lien_replay_apply lien_replay_memory_call(unsigned int call);
lien_replay_apply lien_replay_share_call(unsigned int call);
lien_replay_apply lien_replay_comm_call(unsigned int call);

/* Appends the call to the process's script. */
int lien_replay_emit(struct lien_replay_build *b, const struct lien_event *ev, uint64_t allocation);

/* LIEN_OP_* of a call that is not emitted yet. */
uint32_t lien_replay_op_flags(struct lien_replay_build *b, const struct lien_event *ev);

/* Leaves the call out. Returns 0. */
int lien_replay_skip(struct lien_replay_build *b, enum lien_replay_skip why);

/*
 * The driver gave this name out again although it lives here: the release of it (a call of this
 * type) has happened, whether announced or not. Applies it now.
 */
int lien_replay_give_up(struct lien_replay_build *b, unsigned int type, uint64_t name);

#endif
