// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/teams.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

static int compare_members(const void *a, const void *b)
{
	const struct lien_member *x = a, *y = b;
	int order = strcmp(x->group, y->group);

	if (!order && x->pid != y->pid)
		order = x->pid < y->pid ? -1 : 1;
	if (!order && x->rank != y->rank)
		order = x->rank < y->rank ? -1 : 1;
	return order;
}

static bool same_ranks(const struct lien_communicator *a, const struct lien_communicator *b)
{
	if (a->member_count != b->member_count)
		return false;
	for (unsigned i = 0; i < a->member_count; i++) {
		if (a->members[i].pid != b->members[i].pid ||
			a->members[i].rank != b->members[i].rank ||
			a->members[i].nranks != b->members[i].nranks)
			return false;
	}
	return true;
}

/* Members of one group are adjacent. */
static void make_communicators(struct lien_teams *teams, size_t members)
{
	for (size_t i = 0; i < members; i++) {
		const struct lien_member *member = &teams->members[i];

		if (!i || strcmp(member[-1].group, member->group))
			teams->communicators[teams->count++].members = member;
		teams->communicators[teams->count - 1].member_count++;
	}
	for (unsigned i = 0; i < teams->count; i++) {
		struct lien_communicator *communicator = &teams->communicators[i];

		while (!same_ranks(&teams->communicators[communicator->team], communicator))
			communicator->team++;
	}
}

int lien_teams_make(const json_t *reply, struct lien_teams *out)
{
	const json_t *list = json_object_get(reply, "communicators"), *one;
	size_t i, count = json_array_size(list);

	memset(out, 0, sizeof(*out));
	out->members = calloc(count + 1, sizeof(*out->members));
	out->communicators = calloc(count + 1, sizeof(*out->communicators));
	if (!out->members || !out->communicators) {
		lien_teams_free(out);
		return -ENOMEM;
	}
	json_array_foreach (list, i, one) {
		out->members[i] = (struct lien_member){
			.group = lien_get_text(one, "group"),
			.pid = lien_get_number(one, "pid"),
			.rank = lien_get_number(one, "rank"),
			.nranks = lien_get_number(one, "nranks"),
			.registrations = json_object_get(one, "registrations"),
		};
	}
	qsort(out->members, count, sizeof(*out->members), compare_members);
	make_communicators(out, count);
	return 0;
}

void lien_teams_free(struct lien_teams *teams)
{
	free(teams->members);
	free(teams->communicators);
	memset(teams, 0, sizeof(*teams));
}
