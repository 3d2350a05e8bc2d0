// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>
#include <unistd.h>

#include "tools/replay/share.h"

/* libbsd's tree.h uses it and leaves it undefined. */
#ifndef __unused
#define __unused __attribute__((__unused__))
#endif

static int compare(const struct lien_replay_share *a, const struct lien_replay_share *b)
{
	return (a->number > b->number) - (a->number < b->number);
}

RB_GENERATE_STATIC(lien_replay_share_tree, lien_replay_share, tree, compare)

struct lien_replay_share *lien_replay_share_find(
	struct lien_replay_share_tree *shares, uint64_t number)
{
	struct lien_replay_share key = {.number = number};

	return RB_FIND(lien_replay_share_tree, shares, &key);
}

struct lien_replay_share *lien_replay_share_add(
	struct lien_replay_share_tree *shares, uint64_t number)
{
	struct lien_replay_share *share = calloc(1, sizeof(*share));

	if (!share)
		return NULL;
	share->number = number;
	share->fd = -1;
	RB_INSERT(lien_replay_share_tree, shares, share);
	return share;
}

void lien_replay_share_clear(struct lien_replay_share_tree *shares)
{
	struct lien_replay_share *share;

	while ((share = RB_ROOT(shares))) {
		RB_REMOVE(lien_replay_share_tree, shares, share);
		if (share->fd >= 0)
			close(share->fd);
		free(share);
	}
}

struct lien_replay_share *lien_replay_share_first(struct lien_replay_share_tree *shares)
{
	return RB_MIN(lien_replay_share_tree, shares);
}

struct lien_replay_share *lien_replay_share_next(struct lien_replay_share *share)
{
	return lien_replay_share_tree_RB_NEXT(share);
}
