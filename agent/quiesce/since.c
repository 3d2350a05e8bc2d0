// SPDX-License-Identifier: BSD-2-Clause
#include "agent/quiesce/since.h"

#include <bsd/sys/tree.h>
#include <stdlib.h>

struct note {
	RB_ENTRY(note) entry;
	uint32_t comm; /* its number in the graph, which no other ever has */
	struct lien_counts counts;
};

static int note_cmp(const struct note *a, const struct note *b)
{
	return (a->comm > b->comm) - (a->comm < b->comm);
}

RB_HEAD(lien_since_notes, note);
RB_PROTOTYPE(lien_since_notes, note, entry, note_cmp);
RB_GENERATE(lien_since_notes, note, entry, note_cmp);

struct lien_since {
	struct lien_since_notes notes;
};

uint64_t lien_since_number(const struct lien_tracked *tracked)
{
	return tracked->since_number;
}

static int pair_cmp(const void *a, const void *b)
{
	const struct lien_counts_pair *x = a, *y = b;

	return (x->peer > y->peer) - (x->peer < y->peer);
}

uint64_t lien_counts_pair(const struct lien_counts *counts, uint32_t peer)
{
	const struct lien_counts_pair key = {.peer = peer};
	const struct lien_counts_pair *found =
		bsearch(&key, counts->pairs, counts->pairs_count, sizeof(key), pair_cmp);

	return found ? found->calls : 0;
}

static void note_free(struct note *note)
{
	free(note->counts.pairs);
	free(note);
}

void lien_since_note(
	struct lien_tracked *tracked, const struct lien_comm *comm, struct lien_counts *counts)
{
	struct note *note = calloc(1, sizeof(*note));

	if (!tracked->since)
		tracked->since = calloc(1, sizeof(*tracked->since));
	if (!note || !tracked->since) {
		free(counts->pairs);
		free(note);
		return;
	}
	note->comm = comm->number;
	note->counts = *counts;
	qsort(counts->pairs, counts->pairs_count, sizeof(*counts->pairs), pair_cmp);
	if (RB_INSERT(lien_since_notes, &tracked->since->notes, note))
		note_free(note);
}

const struct lien_counts *lien_since_rest(
	const struct lien_tracked *tracked, const struct lien_comm *comm)
{
	struct note key = {.comm = comm->number}, *note;

	note = tracked->since ? RB_FIND(lien_since_notes, &tracked->since->notes, &key) : NULL;
	return note ? &note->counts : NULL;
}

void lien_since_clear(struct lien_tracked *tracked, uint64_t number)
{
	struct note *note;

	while (tracked->since && (note = RB_ROOT(&tracked->since->notes))) {
		RB_REMOVE(lien_since_notes, &tracked->since->notes, note);
		note_free(note);
	}
	free(tracked->since);
	tracked->since = NULL;
	tracked->since_number = number;
}
