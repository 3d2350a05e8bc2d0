// SPDX-License-Identifier: BSD-2-Clause
#include "agent/offload/wish.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Leaves no pointer to what it could not copy. */
static int copy_discards(struct lien_selection *to, const struct lien_selection *from)
{
	struct lien_discard *copies = calloc(from->discard_count + 1, sizeof(*copies));
	unsigned i;

	to->discard = copies;
	to->discard_count = 0;
	if (!copies)
		return -ENOMEM;
	for (i = 0; i < from->discard_count; i++) {
		copies[i] = from->discard[i];
		if (copies[i].owner && !(copies[i].owner = strdup(copies[i].owner)))
			return -ENOMEM;
		to->discard_count++;
	}
	return 0;
}

int lien_wish_copy(struct lien_wish *wish, const struct lien_selection *selection,
	const struct lien_offload_how *how)
{
	struct lien_selection *to = &wish->selection;
	uint32_t *pids = calloc(selection->pids_count + 1, sizeof(*pids));
	int err;

	*wish = (struct lien_wish){.selection = *selection, .how = *how};
	to->owner = selection->owner ? strdup(selection->owner) : NULL;
	to->pids = pids;
	err = copy_discards(to, selection);
	if (!pids || (selection->owner && !to->owner))
		err = -ENOMEM;
	if (err)
		lien_wish_clear(wish);
	else if (to->pids_count)
		memcpy(pids, selection->pids, to->pids_count * sizeof(*pids));
	return err;
}

void lien_wish_clear(struct lien_wish *wish)
{
	unsigned i;

	for (i = 0; i < wish->selection.discard_count; i++)
		free((char *)wish->selection.discard[i].owner);
	free((void *)wish->selection.discard);
	free((void *)wish->selection.pids);
	free((char *)wish->selection.owner);
	memset(wish, 0, sizeof(*wish));
}
