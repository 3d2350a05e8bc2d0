// SPDX-License-Identifier: BSD-2-Clause
#include "agent/plan/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* NULL stays NULL. */
static const char *copy_text(const char *text, int *err)
{
	const char *copy = text ? strdup(text) : NULL;

	if (text && !copy)
		*err = -ENOMEM;
	return copy;
}

/* On failure leaves no pointer to what was not copied. */
static int copy_discards(struct lien_selection *to, const struct lien_selection *from)
{
	struct lien_discard *copies = calloc(from->discard_count + 1, sizeof(*copies));
	unsigned i;
	int err = 0;

	to->discard = copies;
	to->discard_count = 0;
	if (!copies)
		return -ENOMEM;
	for (i = 0; i < from->discard_count; i++) {
		copies[i] = from->discard[i];
		copies[i].owner = copy_text(from->discard[i].owner, &err);
		copies[i].tag = copy_text(from->discard[i].tag, &err);
		to->discard_count++;
	}
	return err;
}

static int copy_tags(struct lien_selection *to, const struct lien_selection *from)
{
	const char **copies = calloc(from->tags_count + 1, sizeof(*copies));
	unsigned i;
	int err = 0;

	to->tags = copies;
	to->tags_count = copies ? from->tags_count : 0;
	for (i = 0; i < to->tags_count; i++)
		copies[i] = copy_text(from->tags[i], &err);
	return copies ? err : -ENOMEM;
}

int lien_offload_request_copy(struct lien_offload_request *request,
	const struct lien_selection *selection, const struct lien_offload_how *how)
{
	struct lien_selection *to = &request->selection;
	uint32_t *pids = calloc(selection->pids_count + 1, sizeof(*pids));
	struct lien_uuid *gpus = calloc(selection->gpus_count + 1, sizeof(*gpus));
	uint64_t *groups = calloc(selection->groups_count + 1, sizeof(*groups));
	int err;

	*request = (struct lien_offload_request){.selection = *selection, .how = *how};
	to->owner = selection->owner ? strdup(selection->owner) : NULL;
	to->pids = pids;
	to->gpus = gpus;
	to->groups = groups;
	to->within = NULL;
	to->within_count = 0;
	err = copy_discards(to, selection);
	if (copy_tags(to, selection))
		err = -ENOMEM;
	if (!pids || !gpus || !groups || (selection->owner && !to->owner))
		err = -ENOMEM;
	if (err) {
		lien_offload_request_clear(request);
		return err;
	}
	if (to->pids_count)
		memcpy(pids, selection->pids, to->pids_count * sizeof(*pids));
	if (to->gpus_count)
		memcpy(gpus, selection->gpus, to->gpus_count * sizeof(*gpus));
	if (to->groups_count)
		memcpy(groups, selection->groups, to->groups_count * sizeof(*groups));
	return 0;
}

int lien_offload_request_limit(struct lien_offload_request *request, const struct lien_plan *plan)
{
	uint32_t *within;
	unsigned i;

	if (!request->selection.free)
		return 0;
	within = calloc(plan->processes_count + 1, sizeof(*within));
	if (!within)
		return -ENOMEM;
	for (i = 0; i < plan->processes_count; i++)
		within[i] = plan->processes[i].pid; /* which are sorted */
	request->selection.within = within;
	request->selection.within_count = plan->processes_count;
	return 0;
}

void lien_offload_request_clear(struct lien_offload_request *request)
{
	unsigned i;

	for (i = 0; i < request->selection.discard_count; i++) {
		free((char *)request->selection.discard[i].owner);
		free((char *)request->selection.discard[i].tag);
	}
	for (i = 0; i < request->selection.tags_count; i++)
		free((char *)request->selection.tags[i]);
	free((void *)request->selection.tags);
	free((void *)request->selection.discard);
	free((void *)request->selection.pids);
	free((void *)request->selection.gpus);
	free((void *)request->selection.within);
	free((void *)request->selection.groups);
	free((char *)request->selection.owner);
	memset(request, 0, sizeof(*request));
}
