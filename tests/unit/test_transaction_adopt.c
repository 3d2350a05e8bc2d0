// SPDX-License-Identifier: BSD-2-Clause
/* Adoption among processes that fail, die and hang at any order: no mark stays, nobody stays held.
 */
#include "fake_processes.h"

#define OWN_EACH  3
#define LOOK_EACH 2
#define LONG	  2500 /* entries: several messages */

/* Memory: what is where it begins. A view of another process's is the same cell. */
static struct {
	uint8_t cell[FAKES][LONG][LIEN_WIRE_MARK_BYTES], was[FAKES][LONG][LIEN_WIRE_MARK_BYTES];
	struct lien_wire_adopt *table[FAKES];
	unsigned told[FAKES], own;
	bool ready[FAKES], shut[FAKES], opened[FAKES];
	struct lien_adoption adoption;
	uint32_t references; /* that each says it has; 0: 7 */
	unsigned adopted;
	bool refuse, foreign; /* the last process is another user's */
	bool untyped;	      /* views may be memory of the process's own */
} a;

/* Own memory of p: p * 2^32 + i * 2^12; its view of what the next process owns: 2^11 further. */
static uint64_t own_va(unsigned p, unsigned i)
{
	return ((uint64_t)(p + 1) << 32) + ((uint64_t)i << 12);
}

static uint64_t view_va(unsigned p, unsigned i)
{
	return own_va(p, i) + (1 << 11);
}

static uint8_t *cell_at(unsigned p, uint64_t va)
{
	unsigned i = (va & UINT32_MAX) >> 12;

	assert_int_equal(va >> 32, p + 1);
	return va & 1 << 11 ? a.cell[(p + 1) % w.n][i] : a.cell[p][i];
}

static unsigned uid_of(unsigned p)
{
	return 1000 + (a.foreign && p == w.n - 1);
}

/* Does the order write this one's mark? */
static bool is_due(const struct fake *fake, const struct lien_wire_adopt *entry)
{
	bool unknown = entry->flags & LIEN_WIRE_ADOPT_LOOK;

	return entry->va && entry->flags & LIEN_WIRE_ADOPT_OWN &&
	       unknown == !!(fake->order.flags & LIEN_WIRE_LAST);
}

static int obey_adopt(struct fake *fake, unsigned p)
{
	const struct lien_wire_adopt *wire = (const void *)fake->body;
	unsigned n = (fake->order.length - sizeof(fake->order)) / sizeof(*wire), i, j;
	struct lien_wire_adopt one;
	struct reply *reply = NULL;

	if (fake->order.type >= LIEN_WIRE_COUNT && fake->order.type <= LIEN_WIRE_LOOK)
		for (i = 0; i < w.n; i++) /* all are held */
			assert_true(a.shut[i] || !well(i));
	switch (fake->order.type) {
	case LIEN_WIRE_COUNT:
		reply = reply_new(fake);
		for (i = 0; i < n; i++) {
			one = wire[i];
			one.references = a.references ? a.references : 7;
			memcpy(one.bytes, cell_at(p, one.va), sizeof(one.bytes));
			add_to_body(reply, &one, sizeof(one));
		}
		return 0;
	case LIEN_WIRE_MARKS:
		if (fake->order.flags & LIEN_WIRE_FIRST)
			a.told[p] = 0;
		a.table[p] = realloc(a.table[p], (a.told[p] + n + 1) * sizeof(*wire));
		memcpy(a.table[p] + a.told[p], wire, n * sizeof(*wire));
		a.told[p] += n;
		for (i = 0; i < n; i++)
			if (wire[i].mark[0] && uid_of(wire[i].mark[0] - 1) != uid_of(p))
				BROKEN("process %u is told another user's marks", PID(p));
		a.ready[p] = fake->order.flags & LIEN_WIRE_LAST;
		return 0;
	case LIEN_WIRE_MARK:
		for (i = 0; i < w.n; i++) /* whoever may have to put them back knows them */
			if (!a.ready[i] && well(i))
				BROKEN("marks are written, and process %u does not know them",
					PID(i));
		for (i = 0; i < a.told[p]; i++)
			if (is_due(fake, &a.table[p][i]) &&
				!memcmp(cell_at(p, a.table[p][i].va), a.table[p][i].bytes,
					LIEN_WIRE_MARK_BYTES))
				memcpy(cell_at(p, a.table[p][i].va), a.table[p][i].mark,
					LIEN_WIRE_MARK_BYTES);
		return 0;
	case LIEN_WIRE_LOOK:
		for (i = 0; i < a.told[p]; i++) {
			if (!a.table[p][i].va)
				continue;
			if (!reply || reply->header.length > LIEN_WIRE_MESSAGE_MAX / 2)
				reply = reply_new(fake);
			one = a.table[p][i];
			memcpy(one.bytes, cell_at(p, one.va), sizeof(one.bytes));
			add_to_body(reply, &one, sizeof(one));
		}
		return 0;
	case LIEN_WIRE_GATE:
		if (fake->order.arg != LIEN_WIRE_GATE_OPEN)
			return 0;
		__attribute__((fallthrough)); /* not to be let go with marks */
	case LIEN_WIRE_UNMARK:
		for (i = 0; i < a.told[p]; i++)
			for (j = 0; a.table[p][i].va && j < a.told[p]; j++)
				if (a.table[p][j].flags & LIEN_WIRE_ADOPT_OWN &&
					!memcmp(cell_at(p, a.table[p][i].va), a.table[p][j].mark,
						LIEN_WIRE_MARK_BYTES))
					memcpy(cell_at(p, a.table[p][i].va), a.table[p][j].bytes,
						LIEN_WIRE_MARK_BYTES);
		a.told[p] = 0;
		return 0;
	}
	return 0;
}

static int gate(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	assert_ptr_equal(context, &w);
	(void)why;
	(void)size;
	if (step == LIEN_GATE_SHUT)
		a.shut[pid - PID(0)] = true;
	if (step == LIEN_GATE_OPEN) {
		a.shut[pid - PID(0)] = false;
		a.opened[pid - PID(0)] = true;
		if (a.told[pid - PID(0)])
			BROKEN("process %u is let go while it has marks", pid);
	}
	return 0;
}

static enum lien_rest at_rest(void *context, struct lien_resting *resting)
{
	(void)context;
	return resting->levelling ? LIEN_REST_LEVEL : LIEN_REST_REACHED;
}

static struct lien_wire_adopt *entry_new(unsigned p, uint64_t va, uint32_t flags)
{
	struct lien_adoption_process *part = &a.adoption.processes[p];
	struct lien_wire_adopt *entry = &part->entries[part->count++];

	*entry = (struct lien_wire_adopt){.va = va, .flags = flags};
	return entry;
}

static int by_va(const void *x, const void *y)
{
	const struct lien_wire_adopt *first = x, *second = y;

	return (first->va > second->va) - (first->va < second->va);
}

static int adopt(void *context, struct lien_adoption **out, char *why, size_t size)
{
	struct lien_adoption_process *part;
	unsigned p, i;

	assert_ptr_equal(context, &w);
	if (a.refuse) {
		snprintf(why, size, "not now");
		return -EBUSY;
	}
	a.adoption.processes = calloc(w.n, sizeof(*a.adoption.processes));
	a.adoption.count = w.n;
	a.adoption.marks = true;
	a.adoption.untyped = a.untyped;
	for (p = 0; p < w.n; p++) {
		part = &a.adoption.processes[p];
		part->pid = PID(p);
		part->uid = uid_of(p);
		part->entries = calloc(a.own + LOOK_EACH, sizeof(*part->entries));
		for (i = 0; i < a.own; i++)
			memset(entry_new(
				       p, own_va(p, i), LIEN_WIRE_ADOPT_OWN | LIEN_WIRE_ADOPT_COUNT)
					->mark,
				1 + p, LIEN_WIRE_MARK_BYTES / 2);
		for (i = 0; i < a.own; i++)
			memcpy(part->entries[i].mark + 8, &(uint64_t){i + 1}, 8);
		for (i = 0; i < LOOK_EACH; i++)
			memset(entry_new(p, view_va(p, i),
				       LIEN_WIRE_ADOPT_LOOK | LIEN_WIRE_ADOPT_COUNT |
					       (a.untyped ? LIEN_WIRE_ADOPT_OWN : 0))
					->mark,
				1 + p, a.untyped ? 1 + i : 0);
		qsort(part->entries, part->count, sizeof(*part->entries), by_va);
	}
	*out = &a.adoption;
	return 0;
}

/* All are still held when the answers are taken. */
static void adopted(void *context)
{
	assert_ptr_equal(context, &w);
	a.adopted++;
	for (unsigned p = 0; p < w.n; p++)
		if (well(p) && !a.shut[p])
			BROKEN("process %u goes on before what it has is known", PID(p));
}

static void adoption_of(unsigned n, unsigned own)
{
	struct lien_transaction_ops ops = fake_ops;
	uint32_t pids[FAKES];
	unsigned p, i;

	obey_more = obey_adopt;
	ops.gate = gate;
	ops.at_rest = at_rest;
	ops.adopt = adopt;
	ops.adopted = adopted;
	a.own = own;
	for (p = 0; p < n; p++) {
		pids[p] = PID(p);
		for (i = 0; i < own; i++)
			memset(a.cell[p][i], 0x80 + p + i % 64, LIEN_WIRE_MARK_BYTES);
	}
	memcpy(a.was, a.cell, sizeof(a.was));
	transaction_begins();
	assert_int_equal(lien_transaction_new(
				 &w.transaction, LIEN_TRANSACTION_ADOPTION, pids, n, 100000, &ops),
		0);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

static void end(void)
{
	for (unsigned p = 0; p < FAKES; p++)
		free(a.table[p]);
	lien_adoption_clear(&a.adoption);
	memset(&a, 0, sizeof(a));
}

/* Where somebody is left who has it, memory is as it was. */
static void check_cells(const char *when)
{
	for (unsigned p = 0; p < w.n; p++)
		for (unsigned i = 0; i < a.own; i++)
			if ((well(p) || (i < LOOK_EACH && well((p + w.n - 1) % w.n))) &&
				memcmp(a.cell[p][i], a.was[p][i], LIEN_WIRE_MARK_BYTES))
				BROKEN("%s: memory %u of process %u has a mark in it", when, i,
					PID(p));
}

static void check_open(const char *when)
{
	for (unsigned p = 0; p < w.n; p++)
		if (well(p) && a.shut[p])
			BROKEN("%s: process %u is still held", when, PID(p));
}

static void test_all_is_well(void **state)
{
	const unsigned sizes[] = {OWN_EACH, LONG, OWN_EACH, OWN_EACH};

	(void)state;
	for (unsigned s = 0; s < 4; s++) {
		memset(&w, 0, sizeof(w));
		w.n = 3;
		a.foreign = s == 1 || s == 2;
		a.untyped = s == 3;
		adoption_of(3, sizes[s]);
		assert_int_equal(w.result.error, 0);
		assert_int_equal(a.adopted, 1);
		check_cells("after it");
		check_open("after it");
		for (unsigned p = 0; p < 3; p++) {
			const struct lien_adoption_process *part = &a.adoption.processes[p];

			for (unsigned i = 0; i < part->count; i++) {
				const struct lien_wire_adopt *entry = &part->entries[i];
				unsigned owner =
					entry->flags & LIEN_WIRE_ADOPT_LOOK ? (p + 1) % 3 : p;
				const struct lien_adoption_process *of =
					&a.adoption.processes[owner];
				unsigned n = (entry->va & UINT32_MAX) >> 12, j;

				assert_int_equal(entry->references, 7);
				for (j = 0; of->entries[j].va != own_va(owner, n); j++)
					;
				assert_memory_equal(
					entry->bytes, of->entries[j].mark, LIEN_WIRE_MARK_BYTES);
			}
		}
		end();
	}
	assert_int_equal(w.broken, 0);
}

/* Its word for how many references it has is what so many releases may be told by. */
static void test_too_many_references(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	w.n = 2;
	a.references = LIEN_WIRE_REFERENCES_MAX + 1;
	adoption_of(2, OWN_EACH);
	assert_int_equal(w.result.error, -EPROTO);
	check_cells("refused");
	check_open("refused");
	end();
	assert_int_equal(w.broken, 0);
}

static void test_refused(void **state)
{
	(void)state;
	memset(&w, 0, sizeof(w));
	w.n = 2;
	a.refuse = true;
	adoption_of(2, OWN_EACH);
	assert_int_equal(w.result.error, -EBUSY);
	assert_string_equal(w.result.text, "not now");
	check_cells("refused");
	check_open("refused");
	end();
	assert_int_equal(w.broken, 0);
}

static void test_every_fault(void **state)
{
	char when[80];
	unsigned hit = 0, order;

	(void)state;
	/* The fakes give a late answer as soon as others have got an order, which may be to hear
	 * that we are alive: HANGS_AFTER is no fault here. */
	for (enum fault_kind kind = REFUSES; kind < HANGS_AFTER; kind++)
		for (unsigned turn = 0; turn < 3; turn++)
			for (unsigned p = 0; p < 3; p++)
				for (order = 1; order < 12; order++) {
					memset(&w, 0, sizeof(w));
					w.n = 3;
					w.order = turn;
					w.random = order * 7 + p;
					a.untyped = order % 2;
					w.fault[0] = (struct fault){kind, p, order};
					adoption_of(3, OWN_EACH);
					snprintf(when, sizeof(when), "fault %u in %u at order %u",
						kind, PID(p), order);
					hit += w.fake[p].orders >= order;
					check_cells(when);
					if (!a.adopted != !!w.result.error)
						BROKEN("%s: told %u times, and: %s", when,
							a.adopted, w.result.text);
					check_open(when);
					if (w.broken)
						fail_msg("%s", when);
					end();
				}
	assert_true(hit > 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_is_well),
		cmocka_unit_test(test_too_many_references),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_every_fault),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
