// SPDX-License-Identifier: BSD-2-Clause
/*
 * Random jobs: offloads of parts of their memory, one over the other, undos and restores, while
 * processes and agents die, stop, and are not heard of, and while the application writes and frees
 * wherever it is not held. At all times each byte is somewhere, nothing is dropped that was written
 * to since it was saved, and what an importer lacks can be exported by its owner as long as that
 * lives. In the end everything is back.
 *
 * See seeds.h.
 */
#include "fake_processes.h"
#include "tests/unit/seeds.h"

#define HELD	 (IN(SAVED) | IN(BACK) | IN(LENT)) /* by a reference of the control library's */
#define STEPS	 10
#define RESTORES 4 /* bring all back, when nothing fails any more */

static bool heard[FAKES]; /* by the agent that is there now */
static bool told;	  /* a job is told step by step */

#define TELL(...)                                                                                  \
	do {                                                                                       \
		if (told)                                                                          \
			print_message(__VA_ARGS__);                                                \
	} while (0)

static unsigned any(unsigned below)
{
	w.random = w.random * 1103515245 + 12345;
	return (w.random >> 16) % below;
}

static bool once_in(unsigned times)
{
	return !any(times);
}

/* --- the application ------------------------------------------------------------------------- */

static bool runs(unsigned p)
{
	return !w.fake[p].dead && !w.fake[p].hung && !w.fake[p].shut;
}

static void write_to(struct memory *memory)
{
	unsigned p = any(w.n);

	if (runs(p) && memory->device && memory->mapped >> p & 1)
		memory->on_device = ++memory->written;
}

static bool item_of(unsigned p, unsigned m, unsigned states, unsigned kind)
{
	const struct fake *fake = &w.fake[p];

	for (unsigned i = 0; i < fake->count; i++)
		if (memory_of(&fake->item[i].wire) == &w.memory[m] &&
			IN(fake->item[i].state) & states && fake->item[i].wire.flags & kind)
			return true;
	return false;
}

/* Its handle may be held: then the memory stays. */
static void free_it(unsigned m)
{
	struct memory *memory = &w.memory[m];
	unsigned p = memory->owner;

	if (!runs(p) || !(memory->mapped >> p & 1) || item_of(p, m, IN(STAGED), LIEN_WIRE_OWNED))
		return;
	memory->freed = true;
	memory->mapped &= ~(1u << p);
	memory->device = memory->mapped || item_of(p, m, HELD, LIEN_WIRE_OWNED);
}

/* The process does not hear of the agent for too long (control/orders/serve.c). */
static void silence(unsigned p)
{
	struct fake *fake = &w.fake[p];

	if (fake->dead || fake->hung || fake->busy || !fake->shut || any_in(fake, AWAY) ||
		any_in(fake, BACK))
		return;
	TELL("  process %u hears nothing\n", PID(p));
	let_go(fake);
	fake->expired = true;
}

static void meanwhile(void)
{
	write_to(&w.memory[any(w.memories)]);
	if (once_in(40))
		free_it(any(w.memories));
	if (once_in(12))
		silence(any(w.n));
}

/* --- promises --------------------------------------------------------------------------------- */

static void check_exportable(const char *when)
{
	for (unsigned p = 0; p < w.n; p++)
		for (unsigned i = 0; i < w.fake[p].count && !w.fake[p].dead; i++) {
			unsigned m = memory_of(&w.fake[p].item[i].wire) - w.memory;
			unsigned owner = w.memory[m].owner;

			if (w.fake[p].item[i].state != AWAY || owner == p || w.fake[owner].dead ||
				item_of(owner, m, ~IN(STAGED), LIEN_WIRE_SHARED))
				continue;
			BROKEN("%s: process %u can never get memory %u again", when, PID(p), m);
			return;
		}
}

static void check_descriptors(void)
{
	for (unsigned p = 0; p < w.n; p++)
		if (w.fake[p].late)
			return; /* they are in what it has not sent yet */
	if (fds_open())
		BROKEN("%u descriptors are still open", fds_open());
	w.fds = 0;
}

static void check_all_back(void)
{
	for (unsigned m = 0; m < w.memories; m++) {
		const struct memory *memory = &w.memory[m];
		unsigned those = memory->importers;

		if (w.fake[memory->owner].dead)
			continue;
		if (!memory->freed)
			those |= 1u << memory->owner;
		for (unsigned p = 0; p < w.n; p++)
			if (those >> p & 1 && !w.fake[p].dead && !(memory->mapped >> p & 1))
				BROKEN("process %u does not have memory %u", PID(p), m);
		if (memory->mapped && (!memory->device || memory->on_device != memory->written))
			BROKEN("memory %u is not what was written last", m);
		if (memory->device && !memory->mapped)
			BROKEN("memory %u is held by nobody but lien", m);
	}
	for (unsigned p = 0; p < w.n; p++) {
		if (w.fake[p].dead)
			continue;
		item_forget(&w.fake[p], IN(STAGED)); /* late: it is nothing yet */
		if (w.fake[p].count)
			BROKEN("process %u still has %u items", PID(p), w.fake[p].count);
		if (w.fake[p].shut)
			BROKEN("process %u is still held", PID(p));
	}
}

/* --- the agent -------------------------------------------------------------------------------- */

static int gate(void *context, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	(void)context, (void)pid, (void)step, (void)why, (void)size;
	return 0;
}

static enum lien_rest at_rest(void *context, struct lien_resting *resting)
{
	(void)context;
	*resting->why = 0;
	return resting->levelling ? LIEN_REST_LEVEL : LIEN_REST_REACHED;
}

/* One order at a time: a process that has not answered an earlier one gets none. */
static int send(void *context, uint32_t pid, const struct lien_wire_header *order, const void *body,
	const int *fds, unsigned count)
{
	int err = w.fake[pid - PID(0)].hung ? -EBUSY
					    : fake_send(context, pid, order, body, fds, count);

	TELL("  process %u: order %u, flags 0x%x, arg %llu%s\n", pid, order->type, order->flags,
		(unsigned long long)order->arg, err ? ": not sent" : "");
	return err;
}

static bool unheard(void *context, uint32_t pid, uint64_t token)
{
	(void)token;
	assert_ptr_equal(context, &w);
	for (unsigned p = 0; p < w.n; p++)
		if (PID(p) != pid && !heard[p] && !w.fake[p].dead)
			return true;
	return false;
}

static struct lien_transaction_ops ops(void)
{
	struct lien_transaction_ops ops = fake_ops;

	ops.fds_max = w.random & 8 ? 6 : 0;
	ops.unheard = unheard;
	ops.send = send;
	ops.gate = gate;
	ops.at_rest = at_rest;
	return ops;
}

/* It goes on, with the order that it was given, whoever has given it. */
static void wake_up(unsigned p)
{
	struct fake *fake = &w.fake[p];

	if (fake->dead || !fake->hung)
		return;
	TELL("process %u goes on, with order %u\n", PID(p), fake->order.type);
	if (!fake->late)
		answer(fake, p, NO_FAULT);
	fake->late = true; /* nobody waits for it */
	while (fake->next < fake->replies)
		deliver_reply(p);
	wake(p);
}

/* Its orders are obeyed, and their answers read by nobody. The next one asks who holds what, and
 * opens the gate of those from whom nothing is away. */
static void agent_dies(void)
{
	unsigned p;

	TELL("  the agent dies\n");
	lien_transaction_free(w.transaction);
	w.transaction = NULL;
	for (p = 0; p < w.n; p++)
		while (w.fake[p].busy && !w.fake[p].hung && !w.fake[p].dead)
			happen(p);
	for (p = 0; p < w.n; p++) {
		if (once_in(2))
			silence(p);
		heard[p] = !w.fake[p].dead && !w.fake[p].hung;
		if (heard[p] && !any_in(&w.fake[p], AWAY) && !any_in(&w.fake[p], BACK))
			let_go(&w.fake[p]);
	}
}

/* To the end, or until the agent dies. */
static void play_for(unsigned events)
{
	unsigned ticks = 0;
	int p;

	while (!w.done && events--) {
		meanwhile();
		check_exportable("in a transaction");
		if (once_in(100) &&
			lien_transaction_cancel(w.transaction, -ECANCELED, "cancelled")) {
			TELL("cancel\n");
			lien_transaction_react(w.transaction);
			continue;
		}
		p = pick();
		if (p >= 0) {
			happen(p);
			continue;
		}
		for (p = 0; p < (int)w.n && !w.done; p++)
			if (w.fake[p].dead)
				tell_gone(p);
		if (w.done || pick() >= 0)
			continue;
		w.now_ms += 5000;
		assert_true(++ticks < 200);
		tick();
	}
	if (!w.done)
		agent_dies();
	else
		TELL("  done: %d, %s; %s\n", w.result.error, w.result.text, w.result.undo_text);
	if (w.transaction)
		lien_transaction_free(w.transaction);
	w.transaction = NULL;
	check_descriptors();
	check_exportable("after a transaction");
}

static unsigned lifetime(void)
{
	return once_in(5) ? 1 + any(40) : 5000;
}

static bool can_move(unsigned m)
{
	const struct memory *memory = &w.memory[m];

	if (w.fake[memory->owner].dead || memory->freed || !memory->device)
		return false;
	for (unsigned p = 0; p < w.n; p++)
		if (!w.fake[p].dead && (memory->importers | 1u << memory->owner) >> p & 1 &&
			(!heard[p] || item_of(p, m, ~UNTOUCHED, ~0u)))
			return false;
	return true;
}

/* Some of what is there. */
static void offload_some(void)
{
	struct lien_transaction_ops with = ops();
	struct lien_plan plan = {.processes = calloc(FAKES, sizeof(*plan.processes))};
	bool moves[MEMORIES], away[MEMORIES];

	for (unsigned m = 0; m < w.memories; m++) {
		moves[m] = can_move(m) && once_in(2);
		away[m] = !w.memory[m].device;
	}
	for (unsigned p = 0; p < w.n; p++) {
		struct lien_plan_process *part = &plan.processes[plan.processes_count];

		part->pid = PID(p);
		part->items = calloc(ITEMS, sizeof(*part->items));
		for (unsigned m = 0; m < w.memories && heard[p] && !w.fake[p].dead; m++)
			if (moves[m] && (w.memory[m].owner == p || w.memory[m].importers >> p & 1))
				plan_item(part, p, m);
		if (part->items_count)
			plan.processes_count++;
		else
			free(part->items);
	}
	transaction_begins();
	if (!plan.processes_count) {
		lien_plan_clear(&plan);
		return;
	}
	assert_int_equal(lien_transaction_offload(&w.transaction, &plan, BASE, 0, 60000, &with), 0);
	lien_plan_clear(&plan);
	TELL("offload\n");
	lien_transaction_start(w.transaction);
	play_for(lifetime());
	for (unsigned m = 0; m < w.memories; m++)
		if (away[m] && w.memory[m].device)
			BROKEN("an offload brought back memory %u, which an earlier one moved", m);
}

static void restore_some(unsigned events, const uint32_t *pids, unsigned count)
{
	struct lien_transaction_ops with = ops();
	uint32_t all[FAKES];
	unsigned n = 0;

	transaction_begins();
	for (unsigned p = 0; p < w.n; p++)
		if (heard[p] && !w.fake[p].dead)
			all[n++] = PID(p);
	assert_int_equal(restore_new(&w.transaction, all, n, pids, count, 60000, &with), 0);
	TELL("restore\n");
	lien_transaction_start(w.transaction);
	play_for(events);
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void begin_job(unsigned seed)
{
	memset(&w, 0, sizeof(w));
	w.random = seed * 2654435761u;
	w.order = 2;
	w.now_ms = 1;
	w.n = 2 + any(FAKES - 1);
	for (unsigned i = 0, n = 3 + any(8); i < n; i++)
		memory_new(any(w.n), any(1u << w.n), any(2));
	for (unsigned p = 0; p < w.n; p++)
		heard[p] = true;
	w.reborn = once_in(2);
}

static void end_process(unsigned p)
{
	TELL("process %u is gone\n", PID(p));
	die(p);
	w.fake[p].hung = false;
	for (unsigned m = 0; m < w.memories; m++) {
		struct memory *memory = &w.memory[m];

		memory->importers &= ~(1u << p);
		if (memory->freed && !item_of(memory->owner, m, HELD, LIEN_WIRE_OWNED))
			memory->device = memory->mapped;
	}
}

static void step(void)
{
	unsigned p;

	no_faults();
	for (unsigned i = 0; i < 2; i++)
		if (once_in(3))
			w.fault[i] =
				(struct fault){1 + any(FAULT_KINDS - 1), any(w.n), 1 + any(14)};
	switch (any(8)) {
	case 0:
	case 1:
	case 2:
	case 3:
		offload_some();
		break;
	case 4:
	case 5:
		restore_some(lifetime(), NULL, 0);
		break;
	case 6:
		p = any(w.n);
		if (!w.fake[p].dead)
			restore_some(lifetime(), (const uint32_t[]){PID(p)}, 1);
		break;
	case 7:
		if (once_in(3))
			end_process(any(w.n));
		break;
	}
	for (p = 0; p < w.n; p++) {
		if (w.fake[p].dead)
			end_process(p);
		if (once_in(2))
			wake_up(p);
		if (!w.fake[p].hung)
			heard[p] = true; /* it has said what it holds */
	}
	check_exportable("after a step");
}

/* Nothing fails any more, and one agent is there. */
static void end_job(void)
{
	no_faults();
	for (unsigned p = 0; p < w.n; p++)
		wake_up(p);
	for (unsigned p = 0; p < w.n; p++) {
		silence(p);
		heard[p] = true;
	}
	for (unsigned i = 0; i < RESTORES; i++) {
		restore_some(5000, NULL, 0);
		if (!w.result.error)
			break;
		if (w.result.error != -EOWNERDEAD || i + 1 == RESTORES)
			BROKEN("restore %u: %s", i + 1, w.result.text);
	}
	check_all_back();
}

static void test_random(void **state)
{
	unsigned seed = lien_test_seed(), count = lien_test_sequences(2000);
	unsigned broken = 0, end = seed + count;

	(void)state;
	told = count == 1;
	for (; seed != end && broken < 5; seed++) {
		begin_job(seed);
		for (unsigned i = 0; i < STEPS && !w.broken; i++)
			step();
		if (!w.broken)
			end_job();
		if (w.broken)
			print_error("^ LIEN_SEED=%u\n", seed);
		broken += w.broken != 0;
	}
	assert_int_equal(broken, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests_name("transaction_random", tests, NULL, NULL);
}
