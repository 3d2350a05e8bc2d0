// SPDX-License-Identifier: BSD-2-Clause
/* Adoption, from the moment at which all processes are at rest. */
#include "agent/graph/array.h"
#include "agent/transaction/transaction_internal.h"

#define CHUNK                                                                                      \
	((LIEN_WIRE_MESSAGE_MAX - sizeof(struct lien_wire_header)) / sizeof(struct lien_wire_adopt))

/* Limit of one process's descriptors that are taken for exports. */
#define OPEN_MAX 4096

static struct lien_adoption_process *part_of(const struct lien_transaction *t, unsigned index)
{
	return lien_adoption_process(t->adoption, t->processes[index].pid);
}

/* COUNT sends a process its own entries. MARKS sends it the marks of all processes of its user, and
 * the entries that it is to look at or mark itself. Knowing another user's mark, a process could
 * claim memory that it does not have, and the bytes below a mark are not its to read. A process
 * that does have such memory still finds the mark there. */
static bool is_told(const struct lien_transaction *t, const struct lien_adoption_process *own,
	const struct lien_adoption_process *part, const struct lien_wire_adopt *entry)
{
	if (t->phase == LIEN_PHASE_ADOPT_COUNT)
		return part == own;
	return part->uid == own->uid &&
	       (entry->flags & LIEN_WIRE_ADOPT_OWN ||
		       (part == own && entry->flags & LIEN_WIRE_ADOPT_LOOK));
}

/* Returns the next entry to send to the process, and advances to it; NULL: all have been sent. */
static const struct lien_wire_adopt *next_told(struct lien_transaction *t, unsigned index)
{
	const struct lien_adoption_process *own = part_of(t, index), *part;
	struct participant *participant = &t->participants[index];

	for (; participant->part < t->adoption->count; participant->part++) {
		part = &t->adoption->processes[participant->part];
		for (; participant->asked < part->count; participant->asked++)
			if (is_told(t, own, part, &part->entries[participant->asked]))
				return &part->entries[participant->asked];
		participant->asked = 0;
	}
	return NULL;
}

static void send_entries(struct lien_transaction *t, unsigned index)
{
	const struct lien_adoption_process *own = part_of(t, index);
	struct participant *participant = &t->participants[index];
	uint32_t flags = participant->part || participant->asked ? 0 : LIEN_WIRE_FIRST;
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
	flags |= next ? 0 : LIEN_WIRE_LAST;
	lien_transaction_order(t, index, t->phase, t->phase == LIEN_PHASE_MARKS ? flags : 0, table,
		n * sizeof(table[0]));
}

/* Is there anything to ask the process in the current phase? */
static bool is_asked(struct lien_transaction *t, unsigned index)
{
	const struct lien_adoption_process *part = part_of(t, index);
	struct participant *participant = &t->participants[index];

	participant->part = participant->asked = participant->answered = 0;
	participant->finished = !part || !part->count;
	if (!participant->finished)
		participant->count = part->count; /* determines how long it may take */
	return !participant->finished;
}

static void entries_order(struct lien_transaction *t, unsigned index)
{
	if (is_asked(t, index))
		send_entries(t, index);
}

static void mark_order(struct lien_transaction *t, unsigned index)
{
	if (is_asked(t, index))
		lien_transaction_order(t, index, t->phase,
			t->phase == LIEN_PHASE_MARK_UNKNOWN ? LIEN_WIRE_LAST : 0, NULL, 0);
}

static bool count_enter(struct lien_transaction *t)
{
	char why[400] = "";
	int err = t->ops.adopt(t->ops.context, &t->adoption, why, sizeof(why));

	if (err)
		lien_transaction_fail(t, err, 0, "%s", why);
	return !err;
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
					      sizeof(*entry), lien_u64_cmp)
				    : NULL;
		if (!entry)
			return -EPROTO;
		memcpy(entry->bytes, answers[i].bytes, sizeof(entry->bytes));
		if (phase == LIEN_PHASE_ADOPT_COUNT) {
			if (answers[i].references > LIEN_WIRE_REFERENCES_MAX)
				return -EPROTO;
			entry->handle = answers[i].handle;
			entry->references = answers[i].references;
			entry->flags |=
				answers[i].flags & (LIEN_WIRE_ADOPT_PART | LIEN_WIRE_ADOPT_FABRIC);
		}
		participant->answered++;
	}
	return 0;
}

/* Stores the answers that the process sends. */
static void take_part(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	if (part_of(t, index) && take_answers(t, index, t->phase, reply->body,
					 reply->size / sizeof(struct lien_wire_adopt)))
		lien_transaction_fail(t, -EPROTO, t->processes[index].pid,
			"process %u answered what it was not asked", t->processes[index].pid);
}

static void entries_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	const struct participant *participant = &t->participants[index];

	if (!participant->finished && !t->stopping && !reply->result) {
		send_entries(t, index);
		return;
	}
	if (t->phase == LIEN_PHASE_ADOPT_COUNT && !t->stopping &&
		participant->answered != part_of(t, index)->count)
		lien_transaction_fail(t, -EPROTO, t->processes[index].pid,
			"process %u did not answer for all of its memory", t->processes[index].pid);
	lien_phase_finished(t, index);
}

/* Everything is as it was, and whatever could be found out is known. */
static void adopted(struct lien_transaction *t)
{
	t->result.match_ns = t->ops.now_ns(t->ops.context) - t->t_marks;
	if (!t->result.error && t->ops.adopted)
		t->ops.adopted(t->ops.context);
	lien_phase_begin(t, LIEN_PHASE_OPEN);
}

static void counted(struct lien_transaction *t)
{
	t->t_marks = t->ops.now_ns(t->ops.context);
	if (t->adoption->marks)
		lien_phase_next(t);
	else
		adopted(t);
}

static void marked(struct lien_transaction *t)
{
	lien_phase_begin(t, t->adoption->untyped ? LIEN_PHASE_MARK_UNKNOWN : LIEN_PHASE_LOOK);
}

const struct phase lien_phase_adopt_count = {
	.name = "count",
	.type = LIEN_WIRE_COUNT,
	.limit_ms = 10000,
	.limit_ms_per_item = 10,
	.held = true,
	.enter = count_enter,
	.order = entries_order,
	.part = take_part,
	.reply = entries_reply,
	.next = counted,
};

/* From here on, marks may have been written. */
const struct phase lien_phase_marks = {
	.name = "marks",
	.type = LIEN_WIRE_MARKS,
	.limit_ms = 10000,
	.limit_ms_per_item = 1,
	.held = true,
	.order = entries_order,
	.reply = entries_reply,
	.stop = LIEN_PHASE_UNMARK,
};

const struct phase lien_phase_mark = {
	.name = "mark",
	.type = LIEN_WIRE_MARK,
	.limit_ms = 10000,
	.limit_ms_per_item = 10,
	.held = true,
	.order = mark_order,
	.next = marked,
	.stop = LIEN_PHASE_UNMARK,
};

/* After all others: memory that has types of handles keeps its owner's mark. */
const struct phase lien_phase_mark_unknown = {
	.name = "mark",
	.type = LIEN_WIRE_MARK,
	.limit_ms = 10000,
	.limit_ms_per_item = 10,
	.held = true,
	.order = mark_order,
	.stop = LIEN_PHASE_UNMARK,
};

const struct phase lien_phase_look = {
	.name = "look",
	.type = LIEN_WIRE_LOOK,
	.limit_ms = 10000,
	.limit_ms_per_item = 10,
	.held = true,
	.order = mark_order,
	.part = take_part,
	.stop = LIEN_PHASE_UNMARK,
};

const struct phase lien_phase_unmark = {
	.name = "unmark",
	.type = LIEN_WIRE_UNMARK,
	.limit_ms = 10000,
	.limit_ms_per_item = 10,
	.held = true,
	.order = mark_order,
	.next = adopted,
};
