// SPDX-License-Identifier: BSD-2-Clause
#include "agent/offload/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* On failure leaves no pointer to what was not copied. */
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

int lien_offload_request_copy(struct lien_offload_request *request,
	const struct lien_selection *selection, const struct lien_offload_how *how)
{
	struct lien_selection *to = &request->selection;
	uint32_t *pids = calloc(selection->pids_count + 1, sizeof(*pids));
	int err;

	*request = (struct lien_offload_request){.selection = *selection, .how = *how};
	to->owner = selection->owner ? strdup(selection->owner) : NULL;
	to->pids = pids;
	err = copy_discards(to, selection);
	if (!pids || (selection->owner && !to->owner))
		err = -ENOMEM;
	if (err)
		lien_offload_request_clear(request);
	else if (to->pids_count)
		memcpy(pids, selection->pids, to->pids_count * sizeof(*pids));
	return err;
}

void lien_offload_request_clear(struct lien_offload_request *request)
{
	unsigned i;

	for (i = 0; i < request->selection.discard_count; i++)
		free((char *)request->selection.discard[i].owner);
	free((void *)request->selection.discard);
	free((void *)request->selection.pids);
	free((char *)request->selection.owner);
	memset(request, 0, sizeof(*request));
}
