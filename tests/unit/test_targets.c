// SPDX-License-Identifier: BSD-2-Clause
/*
 * Jobs of random programs come to rest, whenever they are stopped, and no rank goes further than it
 * must. A program is a list of collectives over random groups, and of transfers; each rank carries
 * out its part in the order of the list, which is what keeps NCCL's users from deadlocks. A call
 * returns at once; the device carries calls out in their order, and is busy until all ranks of the
 * group have come. Some calls one rank is done with alone: a sender, the root of a broadcast.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/targets/targets.h"
#include "tests/unit/seeds.h"

#define RANKS	6
#define GROUPS	5
#define OPS	80
#define THREADS 2 /* of a rank */
#define ROUNDS	200000

static uint64_t seed;

static unsigned below(unsigned n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % n;
}

struct op {
	unsigned group, thread; /* the thread is the same in all ranks */
	int from, to;		/* of a transfer; -1: a collective */
	int alone;		/* this rank waits for no other; -1: none */
};

/* By rank and op: */
enum state { AHEAD, BEGUN, DONE };

static struct {
	unsigned ranks, groups, ops, threads;
	bool member[GROUPS][RANKS];
	uint8_t id[GROUPS][LIEN_TARGETS_GROUP];
	struct op op[OPS];
	enum state state[OPS][RANKS];
	bool counted;
	bool rested; /* calls are counted since a rest, at which so many had begun */
	uint64_t collectives_then[GROUPS][RANKS], transfers_then[GROUPS][RANKS][RANKS][2];
	/* the gate */
	bool shut;
	int held[RANKS][THREADS]; /* op; -1: not held */
	uint64_t since[RANKS][THREADS];
	bool pass[RANKS][THREADS];
	uint64_t credit[GROUPS][RANKS]; /* collectives that may begin unasked */
	uint64_t now;
	unsigned asked; /* rounds in which somebody was let in */
} w;

static bool takes_part(const struct op *op, unsigned rank)
{
	return op->from < 0 ? w.member[op->group][rank]
			    : op->from == (int)rank || op->to == (int)rank;
}

static void make_job(void)
{
	memset(&w, 0, sizeof(w));
	memset(w.held, -1, sizeof(w.held));
	w.ranks = 2 + below(RANKS - 1);
	w.groups = 1 + below(GROUPS);
	w.ops = 1 + below(OPS);
	w.threads = 1;
	for (unsigned g = 0; g < w.groups; g++) {
		memset(w.id[g], g + 1, LIEN_TARGETS_GROUP);
		do
			for (unsigned r = 0; r < w.ranks; r++)
				w.member[g][r] = !g || below(2);
		while (!memchr(w.member[g], true, w.ranks));
	}
	for (unsigned i = 0; i < w.ops; i++) {
		struct op *op = &w.op[i];

		*op = (struct op){.group = below(w.groups), .from = -1, .to = -1, .alone = -1};
		if (below(3))
			continue;
		op->from = below(w.ranks);
		op->to = below(w.ranks);
		if (op->from == op->to || !w.member[op->group][op->from] ||
			!w.member[op->group][op->to])
			op->from = op->to = -1;
	}
}

/* Returns the next op of a thread of a rank; -1: none. */
static int next_of(unsigned rank, unsigned thread)
{
	for (unsigned i = 0; i < w.ops; i++)
		if (w.op[i].thread == thread && takes_part(&w.op[i], rank) &&
			w.state[i][rank] == AHEAD)
			return i;
	return -1;
}

/* The thread goes on for one call, or is held before it. Returns false if it cannot. */
static bool step(unsigned rank, unsigned thread)
{
	int i = next_of(rank, thread);

	if (i < 0)
		return false;
	if (w.shut && !w.pass[rank][thread]) {
		if (w.op[i].from < 0 && w.credit[w.op[i].group][rank]) {
			w.credit[w.op[i].group][rank]--;
		} else {
			if (w.held[rank][thread] < 0)
				w.since[rank][thread] = w.now;
			w.held[rank][thread] = i;
			return false;
		}
	}
	w.pass[rank][thread] = false;
	w.held[rank][thread] = -1;
	w.state[i][rank] = BEGUN;
	return true;
}

static bool all_have_begun(unsigned i)
{
	for (unsigned r = 0; r < w.ranks; r++)
		if (takes_part(&w.op[i], r) && w.state[i][r] == AHEAD)
			return false;
	return true;
}

/* Has the rank's device carried out what it was given before? */
static bool is_first(unsigned i, unsigned rank)
{
	for (unsigned j = 0; j < i; j++)
		if (takes_part(&w.op[j], rank) && w.op[j].thread == w.op[i].thread &&
			w.state[j][rank] != DONE)
			return false;
	return true;
}

/* The others wait for that one alone. */
static bool carry_out_alone(unsigned i)
{
	const int alone = w.op[i].alone;
	bool any = false;

	for (unsigned r = 0; r < w.ranks; r++)
		if (w.state[i][r] == BEGUN && is_first(i, r) &&
			((int)r == alone || w.state[i][alone] == DONE)) {
			w.state[i][r] = DONE;
			any = true;
		}
	return any;
}

/* Each device carries out the first op that is not done, if all have come. */
static void devices(void)
{
	bool more = true;

	while (more) {
		more = false;
		for (unsigned i = 0; i < w.ops; i++) {
			bool first = true;

			if (w.op[i].alone >= 0)
				more |= carry_out_alone(i);
			if (w.op[i].alone >= 0 || !all_have_begun(i))
				continue;
			for (unsigned r = 0; r < w.ranks; r++)
				first &= !takes_part(&w.op[i], r) || is_first(i, r);
			for (unsigned r = 0; first && r < w.ranks; r++)
				if (takes_part(&w.op[i], r) && w.state[i][r] != DONE) {
					w.state[i][r] = DONE;
					more = true;
				}
		}
	}
}

static bool is_busy(unsigned rank)
{
	for (unsigned i = 0; i < w.ops; i++)
		if (w.state[i][rank] == BEGUN)
			return true;
	return false;
}

static uint64_t count(unsigned rank, unsigned group, int from, int to)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < w.ops; i++)
		n += w.op[i].group == group && w.op[i].from == from && w.op[i].to == to &&
		     takes_part(&w.op[i], rank) && w.state[i][rank] != AHEAD;
	return n;
}

static uint64_t transfers(
	void *context, const struct lien_standing *standing, uint32_t peer, bool receives)
{
	unsigned own = standing->process, group = standing->comm - 1;

	assert_null(context);
	return (receives ? count(own, group, peer, own) : count(own, group, own, peer)) -
	       w.transfers_then[group][own][peer][receives];
}

static void describe_held(struct lien_held_thread *held, unsigned rank, unsigned thread)
{
	const struct op *op = &w.op[w.held[rank][thread]];

	*held = (struct lien_held_thread){.process = rank,
		.comm = op->group + 1,
		.at = op->from < 0	      ? LIEN_HELD_COLLECTIVE
		      : op->from == (int)rank ? LIEN_HELD_SEND
					      : LIEN_HELD_RECEIVE,
		.peer = op->from < 0		? 0
			: op->from == (int)rank ? op->to
						: op->from,
		.age_ns = w.now - w.since[rank][thread]};
}

/* What one agent has decided, two agents decide as well, each of its own ranks and from the reports
 * of both: those from `cut` on are the other's. */
static void check_merged(const struct lien_targets *whole, unsigned cut)
{
	struct lien_standing standings[GROUPS * RANKS], *order[2 * GROUPS * RANKS];
	struct lien_targets_process of[RANKS];
	struct lien_held_thread held[RANKS * THREADS];
	unsigned place[RANKS * THREADS];

	for (unsigned second = 0; second < 2; second++) {
		struct lien_targets part = *whole;

		part.standings = standings;
		part.order = order;
		part.of = of;
		part.held = held;
		part.held_count = 0;
		memcpy(standings, whole->standings, whole->standings_count * sizeof(*standings));
		for (unsigned i = 0; i < part.standings_count; i++)
			standings[i].elsewhere = (standings[i].process >= cut) != second;
		for (unsigned i = 0; i < whole->held_count; i++)
			if ((whole->held[i].process >= cut) == second) {
				place[part.held_count] = i;
				held[part.held_count++] = whole->held[i];
			}
		lien_targets_compute(&part);
		for (unsigned i = 0; i < part.standings_count; i++)
			if (!standings[i].elsewhere) {
				assert_int_equal(standings[i].target, whole->standings[i].target);
				assert_int_equal(standings[i].lags, whole->standings[i].lags);
			}
		for (unsigned i = 0; i < part.held_count; i++)
			assert_int_equal(held[i].let_in, whole->held[place[i]].let_in);
	}
}

/* One look at the job. Returns true if it is at rest. */
static bool look(void)
{
	struct lien_standing standings[GROUPS * RANKS], *order[2 * GROUPS * RANKS];
	struct lien_targets_process of[RANKS];
	struct lien_held_thread held[RANKS * THREADS];
	unsigned thread_of[RANKS * THREADS];
	bool busy[RANKS], working[RANKS] = {false}, quiet = true, any;
	struct lien_targets t = {.standings = standings,
		.order = order,
		.held = held,
		.of = of,
		.busy = busy,
		.working = working,
		.processes = w.ranks,
		.idle_ns = 1000000,
		.busy_ns = 20000000,
		.transfers = transfers};

	memset(w.credit, 0, sizeof(w.credit));
	for (unsigned r = 0; r < w.ranks; r++) {
		busy[r] = is_busy(r);
		quiet &= !busy[r];
		for (unsigned g = 0; g < w.groups; g++)
			if (w.member[g][r])
				standings[t.standings_count++] =
					(struct lien_standing){.process = r,
						.comm = g + 1,
						.group = w.id[g],
						.rank = r,
						.counted = w.counted,
						.since = w.rested ? (const void *)&w : NULL,
						.transfers = true,
						.collectives = count(r, g, -1, -1) -
							       w.collectives_then[g][r]};
		for (unsigned k = 0; k < w.threads; k++)
			if (w.held[r][k] >= 0) {
				thread_of[t.held_count] = k;
				describe_held(&held[t.held_count++], r, k);
			}
	}
	any = lien_targets_compute(&t);
	check_merged(&t, w.ranks / 2);
	for (unsigned i = 0; i < t.standings_count; i++) {
		assert_true(standings[i].target >= standings[i].collectives);
		w.credit[standings[i].comm - 1][standings[i].process] =
			lien_targets_more(&t, &standings[i], LIEN_HELD_COLLECTIVE, 0);
	}
	if (!any && !quiet)
		any = lien_targets_guess(&t);
	for (unsigned i = 0; i < t.held_count; i++)
		w.pass[held[i].process][thread_of[i]] = held[i].let_in;
	w.asked += any;
	return quiet && !any;
}

/* The ops that must begin once these have: those that a rank comes by on its way there, and those
 * of the other ranks. */
static void close_over(bool (*must)[RANKS])
{
	bool more = true;

	while (more) {
		more = false;
		for (unsigned i = 0; i < w.ops; i++)
			for (unsigned r = 0; r < w.ranks; r++) {
				bool wanted = false;

				if (must[i][r] || !takes_part(&w.op[i], r))
					continue;
				for (unsigned other = 0; other < w.ranks; other++)
					wanted |= must[i][other];
				for (unsigned later = i + 1; later < w.ops; later++)
					wanted |= must[later][r] &&
						  w.op[later].thread == w.op[i].thread;
				must[i][r] |= wanted;
				more |= wanted;
			}
	}
}

static void run_freely(void)
{
	for (unsigned n = below(w.ops * w.ranks + 1); n; n--) {
		step(below(w.ranks), below(w.threads));
		if (!below(3))
			devices();
	}
	devices();
}

static void stop(void)
{
	unsigned rounds = 0, n;

	w.shut = true;
	for (;;) {
		w.now += 600000;
		for (n = below(8); n; n--)
			step(below(w.ranks), below(w.threads));
		devices();
		/* Those that no one has seen yet are seen in the end. */
		if (rounds % 8 == 7)
			for (unsigned r = 0; r < w.ranks; r++)
				for (unsigned k = 0; k < w.threads; k++)
					step(r, k);
		devices();
		if (look())
			break;
		assert_true(++rounds < ROUNDS);
	}
}

static void check_level(void)
{
	for (unsigned i = 0; i < w.ops; i++)
		for (unsigned r = 0; r < w.ranks; r++)
			assert_true(w.state[i][r] != BEGUN);
}

static unsigned sequences(void)
{
	return lien_test_sequences(1000);
}

static void random_jobs(bool counted, unsigned threads, bool exactly)
{
	static bool must[OPS][RANKS];
	unsigned n, i, r;

	for (n = 0; n < sequences(); n++) {
		seed = (lien_test_seed() + n) * 0x9e3779b97f4a7c15ull;
		make_job();
		w.counted = counted;
		w.threads = threads;
		for (i = 0; i < w.ops; i++) /* a group's calls come from one thread of each rank */
			w.op[i].thread = w.op[i].group % threads;
		run_freely();
		memset(must, 0, sizeof(must));
		for (i = 0; i < w.ops; i++)
			for (r = 0; r < w.ranks; r++)
				must[i][r] = w.state[i][r] != AHEAD;
		close_over(must);
		stop();
		check_level();
		for (i = 0; exactly && i < w.ops; i++)
			for (r = 0; r < w.ranks; r++)
				assert_int_equal(w.state[i][r] == DONE, must[i][r]);
	}
}

static void test_no_further_than_they_must(void **state)
{
	(void)state;
	random_jobs(true, 1, true);
}

static void test_several_threads(void **state)
{
	(void)state;
	random_jobs(true, 2, false);
}

/* Attached while it ran: nobody knows how many calls there were before. */
static void test_without_counts(void **state)
{
	(void)state;
	random_jobs(false, 1, false);
	random_jobs(false, 2, false);
}

static void note_counts(void)
{
	for (unsigned g = 0; g < w.groups; g++)
		for (unsigned r = 0; r < w.ranks; r++) {
			w.collectives_then[g][r] = count(r, g, -1, -1);
			for (unsigned peer = 0; peer < w.ranks; peer++) {
				w.transfers_then[g][r][peer][0] = count(r, g, r, peer);
				w.transfers_then[g][r][peer][1] = count(r, g, peer, r);
			}
		}
}

static void go_on(void)
{
	w.shut = false;
	memset(w.held, -1, sizeof(w.held));
	memset(w.pass, 0, sizeof(w.pass));
	memset(w.credit, 0, sizeof(w.credit));
}

/*
 * At the rest since which calls are counted, some ranks had begun calls that others had not: with
 * these counts nobody may be behind who is, and somebody who is not.
 */
static void test_counts_since_a_rest(void **state)
{
	(void)state;
	for (unsigned n = 0; n < sequences(); n++) {
		seed = n * 0x9e3779b97f4a7c15ull + 11;
		make_job();
		w.threads = 1 + n % THREADS;
		for (unsigned i = 0; i < w.ops; i++) {
			w.op[i].thread = w.op[i].group % w.threads;
			if (below(2))
				continue;
			w.op[i].alone = w.op[i].from;
			for (unsigned r = 0; w.op[i].from < 0 && r < w.ranks; r++)
				if (w.member[w.op[i].group][r])
					w.op[i].alone = r;
		}
		for (unsigned rest = 0; rest < 4; rest++) {
			run_freely();
			stop();
			check_level();
			note_counts();
			w.counted = w.rested = true;
			go_on();
		}
	}
}

/* A rank that is many calls behind gets there without a round for each. */
static void test_one_round_for_many_calls(void **state)
{
	(void)state;
	seed = 1;
	memset(&w, 0, sizeof(w));
	memset(w.held, -1, sizeof(w.held));
	w.ranks = 2;
	w.groups = w.threads = 1;
	w.ops = OPS;
	w.counted = true;
	w.member[0][0] = w.member[0][1] = true;
	for (unsigned i = 0; i < w.ops; i++)
		w.op[i] = (struct op){.from = -1, .to = -1, .alone = -1};
	for (unsigned i = 0; i < OPS - 10; i++)
		step(0, 0);
	w.shut = true;
	step(1, 0);
	assert_false(look());
	while (step(1, 0))
		;
	step(0, 0);
	devices();
	assert_true(look());
	check_level();
	assert_int_equal(count(1, 0, -1, -1), OPS - 10);
	assert_int_equal(w.asked, 1);
}

/* One thread of a rank is waited for, the other is not. */
static void test_only_the_one_that_is_awaited(void **state)
{
	(void)state;
	seed = 1;
	memset(&w, 0, sizeof(w));
	memset(w.held, -1, sizeof(w.held));
	w.ranks = w.groups = w.threads = w.ops = 2;
	w.counted = true;
	for (unsigned i = 0; i < 2; i++) {
		memset(w.id[i], i + 1, LIEN_TARGETS_GROUP);
		w.member[i][0] = w.member[i][1] = true;
		w.op[i] = (struct op){.group = i, .thread = i, .from = -1, .to = -1, .alone = -1};
	}
	step(0, 1);
	w.shut = true;
	step(1, 0);
	step(1, 1);
	assert_false(look());
	step(1, 0);
	step(1, 1);
	devices();
	assert_true(look());
	assert_int_equal(w.state[0][1], AHEAD);
	assert_int_equal(w.state[1][1], DONE);
}

static uint64_t round_ns;
static bool before; /* others were let in on a guess */

static bool guessed(bool busy, bool unsure, enum lien_held_at at, bool counted, unsigned ms)
{
	static const uint8_t id[LIEN_TARGETS_GROUP];
	struct lien_standing standing = {.comm = 7, .group = id, .counted = counted};
	struct lien_held_thread held = {.comm = at == LIEN_HELD_UNCOUNTED ? 0 : 7,
		.at = at,
		.unsure = unsure,
		.age_ns = ms * 1000000ull};
	const bool working = false;
	struct lien_standing *order[2];
	struct lien_targets_process of;
	struct lien_targets t = {.standings = &standing,
		.standings_count = 1,
		.order = order,
		.of = &of,
		.held = &held,
		.held_count = 1,
		.busy = &busy,
		.working = &working,
		.processes = 1,
		.round_ns = round_ns,
		.idle_ns = 1000000,
		.busy_ns = 20000000,
		.guessed = before,
		.transfers = transfers};
	bool any;

	assert_false(lien_targets_compute(&t));
	assert_int_equal(t.counted, counted && at != LIEN_HELD_UNCOUNTED);
	assert_int_equal(t.unsure, unsure);
	any = lien_targets_guess(&t);
	assert_int_equal(any, held.let_in);
	assert_int_equal(t.guessed_busy, held.let_in && busy);
	return held.let_in;
}

/* Without need nobody is let in; and with a device that has work to do, not soon. */
static void test_guesses(void **state)
{
	(void)state;
	assert_false(guessed(false, false, LIEN_HELD_COLLECTIVE, true, 100000));
	assert_false(guessed(true, false, LIEN_HELD_OTHER, true, 100000));
	for (unsigned busy = 0; busy < 2; busy++) {
		unsigned soon = busy ? 20 : 1;

		assert_false(guessed(busy, false, LIEN_HELD_COLLECTIVE, false, soon));
		assert_true(guessed(busy, false, LIEN_HELD_COLLECTIVE, false, soon + 1));
		assert_false(guessed(busy, false, LIEN_HELD_UNCOUNTED, true, soon));
		assert_true(guessed(busy, false, LIEN_HELD_UNCOUNTED, true, soon + 1));
	}
	before = true;
	assert_false(guessed(false, true, LIEN_HELD_COLLECTIVE, true, 20));
	assert_true(guessed(false, true, LIEN_HELD_COLLECTIVE, true, 21));
	before = false;
	assert_false(guessed(false, true, LIEN_HELD_COLLECTIVE, true, 500));
	assert_true(guessed(false, true, LIEN_HELD_COLLECTIVE, true, 501));
	round_ns = 3000000;
	assert_false(guessed(false, false, LIEN_HELD_COLLECTIVE, false, 2));
	assert_true(guessed(false, false, LIEN_HELD_COLLECTIVE, false, 4));
	round_ns = 0;
	assert_false(guessed(true, true, LIEN_HELD_COLLECTIVE, true, 500));
	assert_true(guessed(true, true, LIEN_HELD_COLLECTIVE, true, 501));
}

/* Its counts show it level, its device is idle, and another one is busy: that may wait for a flag
 * which the next kernel sets. */
static void test_flags_of_other_kernels(void **state)
{
	const bool working = false;

	(void)state;
	for (unsigned busy = 0; busy < 2; busy++)
		for (unsigned at = LIEN_HELD_COLLECTIVE; at <= LIEN_HELD_OTHER; at++)
			for (unsigned meets = 0; meets < 2; meets++) {
				struct lien_held_thread held = {
					.at = at, .meets = meets, .age_ns = 1500000};
				struct lien_targets_process of;
				struct lien_standing *order[1];
				bool its = busy;
				struct lien_targets t = {.order = order,
					.of = &of,
					.held = &held,
					.held_count = 1,
					.busy = &its,
					.working = &working,
					.processes = 1,
					.idle_ns = 1000000,
					.busy_ns = 20000000};
				bool singly = at == LIEN_HELD_OTHER && !busy && !meets;

				assert_false(lien_targets_compute(&t));
				lien_targets_guess(&t);
				assert_int_equal(held.singly, singly);
				assert_int_equal(held.let_in, t.guessed_any || singly);
				if (!singly)
					continue;
				assert_false(t.uneven);
				held.age_ns = 1000000;
				assert_false(lien_targets_guess(&t));
				held.age_ns = 1500000;
				t.round_ns = 2000000;
				assert_false(lien_targets_guess(&t));
			}
}

/* Rank 0 has made a call that NCCL refused, and that is counted. Rank 1 waits in a collective in
 * which rank 0 still has to take part, and counts show both level: only without them rank 0 is let
 * in. */
static void test_a_refused_call(void **state)
{
	static const uint8_t id[LIEN_TARGETS_GROUP] = {5};
	const bool busy[] = {false, true}, working[] = {false, false};
	struct lien_targets_process of[2];
	struct lien_standing *order[4];

	(void)state;
	for (unsigned disbelieved = 0; disbelieved < 2; disbelieved++) {
		struct lien_standing standings[2] = {
			{.process = 0, .comm = 7, .group = id, .counted = true, .collectives = 6},
			{.process = 1, .comm = 7, .group = id, .counted = true, .collectives = 6}};
		struct lien_held_thread held = {
			.comm = 7, .at = LIEN_HELD_COLLECTIVE, .age_ns = 100000000000ull};
		struct lien_targets t = {.standings = standings,
			.standings_count = 2,
			.order = order,
			.held = &held,
			.held_count = 1,
			.of = of,
			.busy = busy,
			.working = working,
			.processes = 2,
			.idle_ns = 1000000,
			.busy_ns = 20000000,
			.disbelieved = disbelieved,
			.transfers = transfers};

		assert_false(lien_targets_compute(&t));
		assert_int_equal(t.counted, !disbelieved);
		assert_int_equal(lien_targets_guess(&t), disbelieved);
		assert_int_equal(held.let_in, disbelieved);
		standings[0].collectives = 7;
		lien_targets_compute(&t); /* and then rank 1 is not let in one call too far */
		assert_int_equal(lien_targets_more(&t, &standings[1], LIEN_HELD_COLLECTIVE, 0),
			!disbelieved);
	}
}

/* NCCL's own threads are let in where others are not, as long as they are at work. */
static unsigned asked;

static uint64_t transfers_asked(
	void *context, const struct lien_standing *standing, uint32_t peer, bool receives)
{
	(void)context;
	asked++;
	return standing->rank == 0 && peer == 1 && !receives; /* the only one */
}

/* Each rank of this node is compared with all others of its group: there are limits to both. */
static void test_large_groups(void **state)
{
	static const struct {
		unsigned here, elsewhere;
		bool counted;
	} sizes[] = {{LIEN_TARGETS_HERE, LIEN_TARGETS_PEERS - LIEN_TARGETS_HERE, true},
		{LIEN_TARGETS_HERE, LIEN_TARGETS_PEERS - LIEN_TARGETS_HERE + 1, false},
		{LIEN_TARGETS_HERE + 1, 0, false}};
	static const uint8_t group[LIEN_TARGETS_GROUP] = {1};
	struct lien_standing standings[LIEN_TARGETS_PEERS + 1];
	struct lien_standing *order[2 * (LIEN_TARGETS_PEERS + 2)];
	struct lien_targets_process of[LIEN_TARGETS_PEERS + 1];
	bool busy[LIEN_TARGETS_PEERS + 1] = {false};

	(void)state;
	for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		const unsigned all = sizes[s].here + sizes[s].elsewhere;
		struct lien_targets targets = {.standings = standings,
			.standings_count = all,
			.order = order,
			.of = of,
			.busy = busy,
			.working = busy,
			.processes = all,
			.transfers = transfers_asked};

		for (unsigned i = 0; i < all; i++)
			standings[i] = (struct lien_standing){.process = i,
				.comm = 1,
				.group = group,
				.rank = all - 1 - i, /* in any order */
				.counted = true,
				.transfers = true,
				.elsewhere = i < sizes[s].elsewhere};
		asked = 0;
		lien_targets_compute(&targets);
		assert_int_equal(targets.counted, sizes[s].counted);
		assert_int_equal(standings[all - 2].lags, sizes[s].counted); /* rank 1 */
		assert_false(standings[all - 1].lags);
		assert_true(asked <= LIEN_TARGETS_HERE * LIEN_TARGETS_PEERS * 4);
		assert_int_equal(
			lien_targets_more(&targets, &standings[all - 2], LIEN_HELD_RECEIVE, 0),
			sizes[s].counted);
	}
}

static void test_nccls_threads(void **state)
{
	static const enum lien_held_at at[] = {
		LIEN_HELD_OTHER, LIEN_HELD_OTHER, LIEN_HELD_COLLECTIVE, LIEN_HELD_UNCOUNTED};
	const bool busy[] = {true, true}, working[] = {true, false};
	struct lien_held_thread held[4] = {{0}};
	struct lien_targets_process of[2];
	struct lien_standing *order[2];
	struct lien_targets t = {.held = held,
		.of = of,
		.order = order,
		.held_count = 4,
		.busy = busy,
		.working = working,
		.processes = 2,
		.transfers = transfers};

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		held[i] = (struct lien_held_thread){.process = i == 1, .at = at[i]};
	assert_true(lien_targets_compute(&t));
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(held[i].let_in, !i);
	assert_true(t.uneven);
	held[0].meets = held[2].meets = held[1].stays = true;
	assert_true(lien_targets_compute(&t));
	assert_false(t.uneven);
	assert_true(lien_targets_free(&t)); /* but those that ranks meet in, or that must stay */
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(held[i].let_in, i == 0 || i == 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_further_than_they_must),
		cmocka_unit_test(test_several_threads),
		cmocka_unit_test(test_without_counts),
		cmocka_unit_test(test_counts_since_a_rest),
		cmocka_unit_test(test_one_round_for_many_calls),
		cmocka_unit_test(test_only_the_one_that_is_awaited),
		cmocka_unit_test(test_guesses),
		cmocka_unit_test(test_flags_of_other_kernels),
		cmocka_unit_test(test_a_refused_call),
		cmocka_unit_test(test_large_groups),
		cmocka_unit_test(test_nccls_threads),
	};

	return cmocka_run_group_tests_name("targets", tests, NULL, NULL);
}
