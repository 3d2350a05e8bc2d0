// SPDX-License-Identifier: BSD-2-Clause
#include <stdlib.h>

#include "tools/replay/names.h"

/* libbsd's tree.h uses it and leaves it undefined. */
#ifndef __unused
#define __unused __attribute__((__unused__))
#endif

static int compare(const struct lien_replay_name *a, const struct lien_replay_name *b)
{
	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return (a->recorded > b->recorded) - (a->recorded < b->recorded);
}

RB_GENERATE_STATIC(lien_replay_name_tree, lien_replay_name, tree, compare)

void lien_replay_names_init(struct lien_replay_names *names)
{
	RB_INIT(&names->tree);
	TAILQ_INIT(&names->order);
}

static void drop(struct lien_replay_names *names, struct lien_replay_name *name)
{
	RB_REMOVE(lien_replay_name_tree, &names->tree, name);
	TAILQ_REMOVE(&names->order, name, order);
	free(name->actual);
	free(name);
}

void lien_replay_names_clear(struct lien_replay_names *names)
{
	while (!TAILQ_EMPTY(&names->order))
		drop(names, TAILQ_FIRST(&names->order));
}

struct lien_replay_name *lien_replay_names_find(
	struct lien_replay_names *names, enum lien_replay_name_kind kind, uint64_t recorded)
{
	struct lien_replay_name key = {.kind = kind, .recorded = recorded};

	return RB_FIND(lien_replay_name_tree, &names->tree, &key);
}

struct lien_replay_name *lien_replay_names_push(struct lien_replay_names *names,
	enum lien_replay_name_kind kind, uint64_t recorded, uint64_t actual, uint64_t tag,
	uint32_t flags)
{
	struct lien_replay_name *name = lien_replay_names_find(names, kind, recorded);
	uint32_t room;
	void *more;

	if (!name) {
		name = calloc(1, sizeof(*name));
		if (!name)
			return NULL;
		name->kind = kind;
		name->recorded = recorded;
		name->tag = tag;
		name->flags = flags;
		RB_INSERT(lien_replay_name_tree, &names->tree, name);
		TAILQ_INSERT_TAIL(&names->order, name, order);
	}
	if (name->count == name->room) {
		room = name->room ? name->room * 2 : 2;
		more = reallocarray(name->actual, room, sizeof(*name->actual));
		if (!more) {
			if (!name->count)
				drop(names, name);
			return NULL;
		}
		name->actual = more;
		name->room = room;
	}
	name->actual[name->count++] = actual;
	return name;
}

uint64_t lien_replay_names_pop(struct lien_replay_names *names, struct lien_replay_name *name)
{
	uint64_t actual = name->actual[--name->count];

	if (!name->count)
		drop(names, name);
	return actual;
}

uint64_t lien_replay_name_actual(const struct lien_replay_name *name)
{
	return name->actual[name->count - 1];
}
