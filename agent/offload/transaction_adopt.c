// SPDX-License-Identifier: BSD-2-Clause
/* Adoption, from the moment when all processes are at rest. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/offload/transaction_internal.h"

#define CHUNK                                                                                      \
	((LIEN_WIRE_MESSAGE_MAX - sizeof(struct lien_wire_header)) / sizeof(struct lien_wire_adopt))

/* Descriptors of one process that are believed to be exports. */
#define OPEN_MAX 4096

static struct lien_adoption_process *part_of(const struct lien_transaction *t, unsigned index)
{
	return lien_adoption_process(t->adoption, t->processes[index].pid);
}

/* The marks of all others of its user, and what is looked at or marked here: what MARKS tells a
 * process. Another user's could be answered for memory that it does not have, and the bytes below
 * them are not its to read; one that has such memory still finds the mark there. */
static bool is_told(const struct lien_adoption_process *own,
	const struct lien_adoption_process *part, const struct lien_wire_adopt *entry)
{
	return part->uid == own->uid &&
	       (entry->flags & LIEN_WIRE_ADOPT_OWN ||
		       (part == own && entry->flags & LIEN_WIRE_ADOPT_LOOK));
}

/* The next one that the process is told, and where it is; NULL: it has been told all. */
static const struct lien_wire_adopt *next_told(struct lien_transaction *t, unsigned index)
{
	const struct lien_adoption_process *own = part_of(t, index), *part;
	struct participant *participant = &t->participants[index];

	for (; participant->part < t->adoption->count; participant->part++) {
		part = &t->adoption->processes[participant->part];
		for (; participant->asked < part->count; participant->asked++)
			if (is_told(own, part, &part->entries[participant->asked]))
				return &part->entries[participant->asked];
		participant->asked = 0;
	}
	return NULL;
}

static void send_table(struct lien_transaction *t, unsigned index)
{
	const struct lien_adoption_process *own = part_of(t, index);
	struct participant *participant = &t->participants[index];
	bool first = !participant->part && !participant->asked;
	struct lien_wire_adopt table[CHUNK];
	const struct lien_wire_adopt *next;
	unsigned n = 0;

	while ((next = next_told(t, index)) && n < CHUNK) {
		table[n] = *next;
		if (&t->adoption->processes[participant->part] != own)
			table[n].va = 0;
		n++;
		participant->asked++;
	}
	participant->finished = !next;
	lien_transaction_order(t, index, LIEN_PHASE_MARKS,
		(first ? LIEN_WIRE_FIRST : 0) | (next ? 0 : LIEN_WIRE_LAST), table,
		n * sizeof(table[0]), NULL, 0);
}

static void send_questions(struct lien_transaction *t, unsigned index)
{
	struct participant *participant = &t->participants[index];
	const struct lien_adoption_process *part = part_of(t, index);
	unsigned first = participant->asked, n = part->count - first;

	if (n > CHUNK)
		n = CHUNK;
	participant->asked += n;
	participant->finished = participant->asked == part->count;
	lien_transaction_order(t, index, LIEN_PHASE_ADOPT_COUNT, 0, part->entries + first,
		n * sizeof(part->entries[0]), NULL, 0);
}

void lien_adopt_order(struct lien_transaction *t, unsigned index, enum lien_phase phase)
{
	struct participant *participant = &t->participants[index];

	if (phase == LIEN_PHASE_GATE || phase == LIEN_PHASE_DRAIN) {
		lien_transaction_order(t, index, phase, 0, NULL, 0, NULL, 0);
		return;
	}
	participant->finished = true;
	participant->part = participant->asked = participant->answered = 0;
	if (!part_of(t, index) || !part_of(t, index)->count)
		return;
	participant->finished = false;
	participant->count = part_of(t, index)->count; /* how long it may take */
	if (phase == LIEN_PHASE_ADOPT_COUNT)
		send_questions(t, index);
	else if (phase == LIEN_PHASE_MARKS)
		send_table(t, index);
	else
		lien_transaction_order(t, index, phase, 0, NULL, 0, NULL, 0);
}

void lien_adopt_rest(struct lien_transaction *t)
{
	char why[400] = "";
	int err = t->ops.adopt(t->ops.context, &t->adoption, why, sizeof(why));

	if (err)
		lien_transaction_fail(t, err, "%s", why);
	else
		lien_transaction_phase_begin(t, LIEN_PHASE_ADOPT_COUNT);
	if (!err && lien_transaction_idle(t))
		lien_adopt_advance(t);
}

static int by_address(const void *a, const void *b)
{
	const struct lien_wire_adopt *x = a, *y = b;

	return (x->va > y->va) - (x->va < y->va);
}

static int take_answers(struct lien_transaction *t, unsigned index, enum lien_phase phase,
	const struct lien_wire_adopt *answers, unsigned count)
{
	struct participant *participant = &t->participants[index];
	struct lien_adoption_process *part = part_of(t, index);
	struct lien_wire_adopt *entry;
	unsigned i;

	for (i = 0; i < count; i++) {
		if (phase == LIEN_PHASE_LOOK && answers[i].flags & LIEN_WIRE_ADOPT_OPEN) {
			if (part->open_count >= OPEN_MAX ||
				lien_adoption_open(part, answers[i].bytes))
				return -ENOMEM;
			continue;
		}
		entry = part->count ? bsearch(&answers[i], part->entries, part->count,
					      sizeof(*entry), by_address)
				    : NULL;
		if (!entry)
			return -EPROTO;
		memcpy(entry->bytes, answers[i].bytes, sizeof(entry->bytes));
		if (phase == LIEN_PHASE_ADOPT_COUNT) {
			if (answers[i].references > LIEN_WIRE_REFERENCES_MAX)
				return -EPROTO;
			entry->handle = answers[i].handle;
			entry->references = answers[i].references;
			entry->flags |= answers[i].flags & LIEN_WIRE_ADOPT_PART;
		}
		participant->answered++;
	}
	return 0;
}

void lien_adopt_reply(struct lien_transaction *t, unsigned index,
	const struct lien_wire_header *reply, const void *body)
{
	struct participant *participant = &t->participants[index];
	unsigned count = (reply->length - sizeof(*reply)) / sizeof(struct lien_wire_adopt);
	struct lien_adoption_process *part = part_of(t, index);
	bool answers = t->phase == LIEN_PHASE_ADOPT_COUNT || t->phase == LIEN_PHASE_LOOK;

	if (answers && part && take_answers(t, index, t->phase, body, count))
		lien_transaction_fail(t, -EPROTO, "process %u answered what it was not asked",
			t->processes[index].pid);
	if (!(reply->flags & LIEN_WIRE_LAST))
		return;
	if (participant->finished || t->stopping || reply->result) {
		participant->finished = true;
		if (t->phase == LIEN_PHASE_ADOPT_COUNT && !t->stopping &&
			participant->answered != part->count)
			lien_transaction_fail(t, -EPROTO,
				"process %u did not answer for all of its memory",
				t->processes[index].pid);
		lien_transaction_progress(t);
	} else if (t->phase == LIEN_PHASE_ADOPT_COUNT) {
		send_questions(t, index);
	} else if (t->phase == LIEN_PHASE_MARKS) {
		send_table(t, index);
	} else {
		participant->finished = true;
		lien_transaction_progress(t);
	}
}

/* Nobody has an order left. */
void lien_adopt_advance(struct lien_transaction *t)
{
	bool marked = t->adoption && t->adoption->marks && t->phase >= LIEN_PHASE_MARKS &&
		      t->phase <= LIEN_PHASE_LOOK;

	if (!t->t_marks) /* all has been counted */
		t->t_marks = t->ops.now_ns(t->ops.context);
	if (t->stopping && !marked) {
		lien_transaction_open(t);
	} else if (t->stopping || t->phase == LIEN_PHASE_LOOK) {
		t->stopping = false;
		lien_transaction_phase_begin(t, LIEN_PHASE_UNMARK);
		if (lien_transaction_idle(t))
			lien_adopt_advance(t);
	} else if (t->phase == LIEN_PHASE_UNMARK ||
		   (t->phase == LIEN_PHASE_ADOPT_COUNT && !t->adoption->marks)) {
		t->result.match_ns = t->ops.now_ns(t->ops.context) - t->t_marks;
		if (!t->result.error && t->ops.adopted)
			t->ops.adopted(t->ops.context);
		lien_transaction_open(t);
	} else {
		lien_transaction_phase_begin(t, t->phase + 1);
		if (lien_transaction_idle(t))
			lien_adopt_advance(t);
	}
}
