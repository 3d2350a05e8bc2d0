/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A recording begins with a snapshot (lien/state.h): what processes had, not the calls by which
 * they got it. A replay needs calls, so these are derived here, once the snapshot is complete:
 * memory is made by its owner, and shared, and mapped, and what was released since is released. An
 * owner that has ended makes its memory, too, and ends.
 */
#ifndef LIEN_REPLAY_SNAPSHOT_H
#define LIEN_REPLAY_SNAPSHOT_H

#include "tools/replay/script.h"

/* Takes a record of a snapshot. -EBADMSG: it does not fit those before; -ENOMEM, -E2BIG. */
int lien_replay_snapshot_add(struct lien_script *script, const struct lien_event *ev);

/* Adds the calls, if there was a snapshot. -ENOMEM, -E2BIG. */
int lien_replay_snapshot_end(struct lien_script *script);

#endif
