// SPDX-License-Identifier: BSD-2-Clause
/* The tags that processes give to their memory. A tag is known as long as memory has it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

static int lien_tag_cmp(const struct lien_tag *a, const struct lien_tag *b)
{
	if (a->uid != b->uid)
		return a->uid < b->uid ? -1 : 1;
	return strcmp(a->text, b->text);
}

LIEN_TREE(lien_tag_tree, lien_tag, by_text, lien_tag_cmp)

/* Has the user as many tags as are kept? */
static bool user_full(struct lien_graph *graph, uint32_t uid)
{
	const struct lien_tag first = {.uid = uid};
	struct lien_tag *tag = RB_NFIND(lien_tag_tree, &graph->tags, (struct lien_tag *)&first);
	unsigned count = 0;

	for (; tag && tag->uid == uid && count < LIEN_TAGS_MAX;
		tag = RB_NEXT(lien_tag_tree, &graph->tags, tag))
		count++;
	return count == LIEN_TAGS_MAX;
}

int lien_allocation_set_tag(struct lien_graph *graph, struct lien_allocation *allocation,
	uint32_t uid, const char text[LIEN_TAG_BYTES])
{
	struct lien_tag key = {.uid = uid}, *tag;

	allocation->tag_unknown = true;
	if (!lien_tag_valid(text))
		return 0;
	strcpy(key.text, text);
	tag = RB_FIND(lien_tag_tree, &graph->tags, &key);
	if (!tag) {
		if (user_full(graph, uid))
			return 0;
		tag = malloc(sizeof(*tag));
		if (!tag)
			return -ENOMEM;
		*tag = key;
		RB_INSERT(lien_tag_tree, &graph->tags, tag);
	}
	tag->allocations++;
	allocation->tag = tag;
	allocation->tag_unknown = false;
	return 0;
}

void lien_allocation_drop_tag(struct lien_graph *graph, struct lien_allocation *allocation)
{
	struct lien_tag *tag = allocation->tag;

	allocation->tag = NULL;
	if (!tag || --tag->allocations)
		return;
	RB_REMOVE(lien_tag_tree, &graph->tags, tag);
	free(tag);
}

const char *lien_allocation_tag(const struct lien_allocation *allocation)
{
	return allocation->tag ? allocation->tag->text : NULL;
}

bool lien_allocation_tag_known(const struct lien_allocation *allocation)
{
	return allocation->tag || !(allocation->tag_unknown || allocation->found ||
					  allocation->origin == LIEN_ORIGIN_IMPORT);
}
