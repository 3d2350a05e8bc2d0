// SPDX-License-Identifier: BSD-2-Clause
/*
 * Threads that give names back and are given them again. Every interleaving of the steps of two or
 * three threads is played on the driver model of driver.h; its end state is what the graph must
 * say.
 */
#define MADE 256 /* these jobs are short, and there are hundreds of thousands */
#include "driver.h"

#define VARIABLES 16
#define SCRIPT	  6
#define THREADS	  3

/* One call of a script. Names are variables: `a` of a range, communicator, share, or of a handle
 * that is not mapped by the call; `c` of a mapped handle; `b` is a place of the range, of
 * DEREGISTER a variable. What the call acquires goes to variable `out`. Ends with .kind END. */
struct line {
	unsigned kind, process, a, b, c, out;
};

#define END KINDS

struct scenario {
	const char *name;
	struct line setup[8];
	struct line thread[THREADS][SCRIPT];
	bool illegal; /* the program is wrong: what the graph says may be wrong if it says so */
};

struct play {
	const struct scenario *scenario;
	struct driver driver;
	int variable[VARIABLES];
	struct call call[THREADS];
	unsigned line[THREADS], step[THREADS];
};

static unsigned plays, wrong, unsure;

static void told(const struct lien_event *ev)
{
	apply(ev);
}

static unsigned lines(const struct line *script)
{
	unsigned n = 0;

	while (n < SCRIPT && script[n].kind != END)
		n++;
	return n;
}

static unsigned steps_of(const struct line *script)
{
	unsigned n = 0;

	for (unsigned i = 0; i < lines(script); i++)
		n += kinds[script[i].kind].releases ? 3 : 2;
	return n;
}

static struct call call_of(const struct play *play, const struct line *line)
{
	struct call call = {
		.kind = line->kind,
		.process = line->process,
		.a = play->variable[line->a],
		.b = line->kind == DEREGISTER ? (unsigned)play->variable[line->b] : line->b,
		.c = play->variable[line->c],
	};

	return call;
}

static void play_step(struct play *play, unsigned thread)
{
	const struct line *line = &play->scenario->thread[thread][play->line[thread]];
	struct call *call = &play->call[thread];

	if (!play->step[thread])
		*call = call_of(play, line);
	take_step(&play->driver, call, thread, play->step[thread], told);
	if (++play->step[thread] < steps(call))
		return;
	if (!kinds[line->kind].releases)
		play->variable[line->out] = call->name;
	play->step[thread] = 0;
	play->line[thread]++;
}

static void play_setup(struct play *play)
{
	for (unsigned i = 0; i < 8 && play->scenario->setup[i].kind != END; i++) {
		const struct line *line = &play->scenario->setup[i];
		struct call call = call_of(play, line);

		for (unsigned step = 0; step < steps(&call); step++)
			take_step(&play->driver, &call, 9, step, told);
		assert_int_equal(call.event.result, 0);
		if (!kinds[line->kind].releases)
			play->variable[line->out] = call.name;
	}
}

static void play_order(const struct scenario *scenario, const uint8_t *order, unsigned length)
{
	struct play play = {.scenario = scenario};
	bool marked = false;
	unsigned i;

	plays++;
	assert_int_equal(setup(NULL), 0);
	for (i = 0; i < PROCESSES; i++) {
		play.driver.process[i].alive = true;
		play.driver.process[i].pid = i + 1;
		started(i + 1);
	}
	play_setup(&play);
	for (i = 0; i < length; i++)
		play_step(&play, order[i]);
	for (i = 0; i < PROCESSES; i++)
		marked |= process(i + 1)->incomplete != 0;
	if (scenario->illegal && marked)
		unsure++;
	else if (compare(graph, &play.driver)) {
		print_error("%s, threads:", scenario->name);
		for (i = 0; i < length; i++)
			print_error(" %u", order[i]);
		print_error("\n");
		wrong++;
	}
	teardown(NULL);
}

static void interleave(
	const struct scenario *scenario, unsigned *left, uint8_t *order, unsigned length)
{
	bool any = false;

	if (wrong > 3)
		return;
	for (unsigned t = 0; t < THREADS; t++) {
		if (!left[t])
			continue;
		any = true;
		left[t]--;
		order[length] = t;
		interleave(scenario, left, order, length + 1);
		left[t]++;
	}
	if (!any)
		play_order(scenario, order, length);
}

/* How many there are: a multinomial. */
static unsigned interleavings(const unsigned *length)
{
	unsigned long n = 1;
	unsigned total = 0;

	for (unsigned t = 0; t < THREADS; t++)
		for (unsigned i = 1; i <= length[t]; i++)
			n = n * ++total / i;
	return n;
}

static void play_all(const struct scenario *scenario)
{
	uint8_t order[THREADS * SCRIPT * 3];
	unsigned left[THREADS];

	plays = wrong = unsure = 0;
	for (unsigned t = 0; t < THREADS; t++)
		left[t] = steps_of(scenario->thread[t]);
	interleave(scenario, left, order, 0);
	assert_int_equal(wrong, 0);
	assert_int_equal(plays, interleavings(left));
	assert_true(unsure < plays / 2);
}

/* Variables, by what they name. */
enum { H0, H1, H2, H3, R0, R1, R2, R3, C0, C1, C2, X0, X1, S0, S1, NONE };

#define L(kind, ...)                                                                               \
	{                                                                                          \
		kind, __VA_ARGS__                                                                  \
	}
#define SCENARIO(test, ...)                                                                        \
	static void test(void **state)                                                             \
	{                                                                                          \
		static const struct scenario scenario = {.name = #test, __VA_ARGS__};              \
                                                                                                   \
		(void)state;                                                                       \
		play_all(&scenario);                                                               \
	}

/* A handle's value. */
SCENARIO(test_handle, .setup = {L(CREATE, .out = H0), {END}},
	.thread = {
		{L(RELEASE_HANDLE, .a = H0), {END}},
		{L(CREATE, .out = H1), {END}},
		{L(CREATE, .out = H2), {END}},
	})

SCENARIO(test_handle_again, .setup = {L(CREATE, .out = H2), {END}},
	.thread = {
		{L(CREATE, .out = H0), L(RELEASE_HANDLE, .a = H0), {END}},
		{L(CREATE, .out = H1), L(RELEASE_HANDLE, .a = H1), {END}},
		{L(RELEASE_HANDLE, .a = H2), {END}},
	})

SCENARIO(test_handle_twice, .setup = {L(CREATE, .out = H0), {END}},
	.thread = {
		{L(RELEASE_HANDLE, .a = H0), L(CREATE, .out = H1), L(RELEASE_HANDLE, .a = H1),
			{END}},
		{L(CREATE, .out = H2), L(RELEASE_HANDLE, .a = H2), {END}},
		{{END}},
	})

/* Two references: two threads release one each. */
SCENARIO(test_two_references,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), L(RETAIN, .a = R0, .out = H0),
		L(UNMAP, .a = R0), {END}},
	.thread = {
		{L(RELEASE_HANDLE, .a = H0), {END}},
		{L(RELEASE_HANDLE, .a = H0), {END}},
		{L(CREATE, .out = H1), {END}},
	})

SCENARIO(test_two_references_mapped,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), L(RETAIN, .a = R0, .out = H0), {END}},
	.thread = {
		{L(RELEASE_HANDLE, .a = H0), L(UNMAP, .a = R0), {END}},
		{L(RELEASE_HANDLE, .a = H0), {END}},
		{L(CREATE, .out = H1), {END}},
	})

/* The last thing that keeps a handle's value is a mapping: NCCL's windows, PyTorch's segments. */
SCENARIO(test_released_before_unmap,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), L(RELEASE_HANDLE, .a = H0), {END}},
	.thread = {
		{L(UNMAP, .a = R0), {END}},
		{L(CREATE, .out = H1), {END}},
		{L(CREATE, .out = H2), {END}},
	})

SCENARIO(test_unmap_and_release,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(UNMAP, .a = R0), {END}},
		{L(RELEASE_HANDLE, .a = H0), {END}},
		{L(CREATE, .out = H1), {END}},
	})

/* Two aliases keep it; one call unmaps both, or two do. */
SCENARIO(test_aliases,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .b = 0, .c = H0, .out = NONE),
		L(MAP, .a = R0, .b = 1, .c = H0, .out = NONE), L(RELEASE_HANDLE, .a = H0), {END}},
	.thread = {
		{L(UNMAP, .a = R0, .b = 0), {END}},
		{L(UNMAP, .a = R0, .b = 1), {END}},
		{L(CREATE, .out = H1), {END}},
	})

SCENARIO(test_aliases_at_once,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .b = 0, .c = H0, .out = NONE),
		L(MAP, .a = R0, .b = 1, .c = H0, .out = NONE), L(RELEASE_HANDLE, .a = H0), {END}},
	.thread = {
		{L(UNMAP_RANGE, .a = R0), {END}},
		{L(CREATE, .out = H1), {END}},
		{L(CREATE, .out = H2), {END}},
	})

/* Retained by address while another thread lets go. */
SCENARIO(test_retain,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(RELEASE_HANDLE, .a = H0), {END}},
		{L(RETAIN, .a = R0, .out = H1), {END}},
		{L(RETAIN, .a = R0, .out = H2), {END}},
	})

SCENARIO(test_retain_and_release,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), L(RELEASE_HANDLE, .a = H0), {END}},
	.thread = {
		{L(RETAIN, .a = R0, .out = H0), L(RELEASE_HANDLE, .a = H0), {END}},
		{L(RETAIN, .a = R0, .out = H1), L(RELEASE_HANDLE, .a = H1), {END}},
		{L(CREATE, .out = H2), {END}},
	})

/* As NCCL frees a buffer: retain, release, unmap, release, free the address. */
SCENARIO(test_nccl_free,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(RETAIN, .a = R0, .out = H1), L(RELEASE_HANDLE, .a = H1), L(UNMAP, .a = R0),
			L(RELEASE_HANDLE, .a = H0), L(ADDRESS_FREE, .a = R0), {END}},
		{L(CREATE, .out = H2), L(RESERVE, .out = R1), L(MAP, .a = R1, .c = H2, .out = NONE),
			{END}},
		{{END}},
	})

/* An address's place. */
SCENARIO(test_place,
	.setup = {L(CREATE, .out = H0), L(CREATE, .out = H1), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(UNMAP, .a = R0), {END}},
		{L(MAP, .a = R0, .c = H1, .out = NONE), {END}},
		{L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	})

SCENARIO(test_place_again,
	.setup = {L(CREATE, .out = H0), L(CREATE, .out = H1), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE),
		L(MAP, .a = R0, .b = 1, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(UNMAP_RANGE, .a = R0), {END}},
		{L(MAP, .a = R0, .c = H1, .out = NONE), {END}},
		{L(MAP, .a = R0, .b = 1, .c = H1, .out = NONE), {END}},
	})

/* A reservation. */
SCENARIO(test_reservation, .setup = {L(RESERVE, .out = R0), {END}},
	.thread = {
		{L(ADDRESS_FREE, .a = R0), {END}},
		{L(RESERVE, .out = R1), {END}},
		{L(RESERVE, .out = R2), {END}},
	})

SCENARIO(test_reservation_again, .setup = {L(RESERVE, .out = R2), {END}},
	.thread = {
		{L(RESERVE, .out = R0), L(ADDRESS_FREE, .a = R0), {END}},
		{L(RESERVE, .out = R1), L(ADDRESS_FREE, .a = R1), {END}},
		{L(ADDRESS_FREE, .a = R2), {END}},
	})

/* Still mapped, so the first free fails, or is late enough. */
SCENARIO(test_free_while_mapped,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(ADDRESS_FREE, .a = R0), {END}},
		{L(UNMAP, .a = R0), {END}},
		{L(RESERVE, .out = R1), {END}},
	})

SCENARIO(test_unmap_free_reserve_map,
	.setup = {L(CREATE, .out = H0), L(CREATE, .out = H1), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread = {
		{L(UNMAP, .a = R0), L(ADDRESS_FREE, .a = R0), {END}},
		{L(RESERVE, .out = R1), L(MAP, .a = R1, .c = H1, .out = NONE), {END}},
		{L(ALLOC, .out = R2), {END}},
	})

/* Plain allocations share the addresses. */
SCENARIO(test_alloc, .setup = {L(ALLOC, .out = R0), {END}},
	.thread = {
		{L(FREE, .a = R0), {END}},
		{L(ALLOC, .out = R1), {END}},
		{L(ALLOC, .out = R2), {END}},
	})

SCENARIO(test_alloc_and_map, .setup = {L(ALLOC, .out = R0), L(CREATE, .out = H0), {END}},
	.thread = {
		{L(FREE, .a = R0), L(ALLOC, .out = R1), {END}},
		{L(RESERVE, .out = R2), L(MAP, .a = R2, .c = H0, .out = NONE), {END}},
		{{END}},
	})

/* Communicators and registrations. */
SCENARIO(test_comm, .setup = {L(COMM_INIT, .out = C0), L(REGISTER, .a = C0, .out = X0), {END}},
	.thread = {
		{L(COMM_DESTROY, .a = C0), {END}},
		{L(COMM_INIT, .out = C1), L(REGISTER, .a = C1, .out = X1), {END}},
		{L(COMM_INIT, .out = C2), {END}},
	})

SCENARIO(test_comm_again, .setup = {L(COMM_INIT, .out = C0), {END}},
	.thread = {
		{L(COMM_DESTROY, .a = C0), {END}},
		{L(COMM_INIT, .out = C1), L(COMM_DESTROY, .a = C1), {END}},
		{{END}},
	})

SCENARIO(test_registration,
	.setup = {L(COMM_INIT, .out = C0), L(REGISTER, .a = C0, .out = X0), {END}},
	.thread = {
		{L(DEREGISTER, .a = C0, .b = X0), {END}},
		{L(REGISTER, .a = C0, .out = X1), {END}},
		{L(REGISTER, .a = C0, .out = NONE), {END}},
	})

/* Imports. */
SCENARIO(test_import,
	.setup = {L(CREATE, .out = H0), L(EXPORT, .a = H0, .out = S0),
		L(EXPORT, .a = H0, .out = S1), L(IMPORT, .process = 1, .a = S0, .out = H1), {END}},
	.thread = {
		{L(RELEASE_HANDLE, .process = 1, .a = H1), {END}},
		{L(IMPORT, .process = 1, .a = S1, .out = H2), {END}},
		{L(RELEASE_HANDLE, .a = H0), {END}},
	})

SCENARIO(test_import_released_before_unmap,
	.setup = {L(CREATE, .out = H0), L(EXPORT, .a = H0, .out = S0),
		L(EXPORT, .a = H0, .out = S1), L(IMPORT, .process = 1, .a = S0, .out = H1),
		L(RESERVE, .process = 1, .out = R0),
		L(MAP, .process = 1, .a = R0, .c = H1, .out = NONE),
		L(RELEASE_HANDLE, .process = 1, .a = H1), {END}},
	.thread = {
		{L(UNMAP, .process = 1, .a = R0), {END}},
		{L(IMPORT, .process = 1, .a = S1, .out = H2), {END}},
		{L(CREATE, .process = 1, .out = H3), {END}},
	})

/* One thread too many gives back: the driver refuses one of them. Which one is not known when the
 * name is given out again, so the process may come out as incomplete, but never silently wrong. */
SCENARIO(test_double_release, .setup = {L(CREATE, .out = H0), {END}},
	.thread =
		{
			{L(RELEASE_HANDLE, .a = H0), {END}},
			{L(RELEASE_HANDLE, .a = H0), {END}},
			{L(CREATE, .out = H1), {END}},
		},
	.illegal = true)

SCENARIO(test_double_unmap,
	.setup = {L(CREATE, .out = H0), L(RESERVE, .out = R0),
		L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
	.thread =
		{
			{L(UNMAP, .a = R0), {END}},
			{L(UNMAP, .a = R0), {END}},
			{L(MAP, .a = R0, .c = H0, .out = NONE), {END}},
		},
	.illegal = true)

SCENARIO(test_double_address_free, .setup = {L(RESERVE, .out = R0), {END}},
	.thread =
		{
			{L(ADDRESS_FREE, .a = R0), {END}},
			{L(ADDRESS_FREE, .a = R0), {END}},
			{L(RESERVE, .out = R1), {END}},
		},
	.illegal = true)

/* A thread that gives back and acquires is a no-op the second time: its return is late by two. */
static void test_late_return(void **state)
{
	struct lien_event first = EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {10}), entry;

	(void)state;
	assert_int_equal(setup(NULL), 0);
	started(1);
	create(1, 10, PIECE);
	entry = entry_of(first);
	apply(&entry);
	create(1, 10, 2 * PIECE);
	assert_int_equal(handle_of(1, 10)->holding->allocation->bytes, 2 * PIECE);
	release(1, 10);
	create(1, 10, 3 * PIECE);
	apply(&first);
	assert_int_equal(references_of(1, 10), 1);
	assert_int_equal(handle_of(1, 10)->holding->allocation->bytes, 3 * PIECE);
	apply(&first); /* a return without an entry */
	assert_counts(1, 1, 0);
	assert_nothing_odd();
	teardown(NULL);
}

/* One that the driver refuses, for it ends within a mapping, is not taken for one that it has
 * carried out. */
static void test_refused_unmap(void **state)
{
	struct lien_event refused = EVENT(LIEN_CALL_CU_MEM_UNMAP, 1, .range = {VA, PIECE + 4096}),
			  done = EVENT(LIEN_CALL_CU_MEM_UNMAP, 1, .range = {VA + PIECE, PIECE}),
			  entry;

	(void)state;
	assert_int_equal(setup(NULL), 0);
	started(1);
	buffer(1, 10, VA, PIECE);
	buffer(1, 11, VA + PIECE, PIECE);
	entry = entry_of(refused);
	apply(&entry);
	entry = entry_of(done);
	apply(&entry);
	map_rw(1, VA + PIECE, PIECE, 10);
	apply(&done);
	refused.result = CUDA_ERROR_INVALID_VALUE;
	apply(&refused);
	assert_non_null(mapping_at(1, VA));
	assert_ptr_equal(allocation_at(1, VA + PIECE), allocation_at(1, VA));
	assert_nothing_odd();
	teardown(NULL);
}

/* Entered, and the process ends, or the release fails after all. */
static void test_never_returns(void **state)
{
	struct lien_event ev, entry;

	(void)state;
	assert_int_equal(setup(NULL), 0);
	started(1);
	create(1, 10, PIECE);
	ev = EVENT(LIEN_CALL_CU_MEM_RELEASE, 1, .release = {10});
	entry = entry_of(ev);
	apply(&entry);
	assert_int_equal(references_of(1, 10), 1);
	ev.result = CUDA_ERROR_INVALID_VALUE;
	apply(&ev);
	assert_int_equal(references_of(1, 10), 1);
	ev.result = 0;
	apply(&ev); /* that call is over */
	assert_int_equal(references_of(1, 10), 1);
	apply(&entry);
	ended(1);
	assert_counts(0, 0, 0);
	started(1);
	create(1, 10, PIECE);
	apply(&ev);
	assert_int_equal(references_of(1, 10), 1);
	assert_nothing_odd();
	teardown(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_handle),
		cmocka_unit_test(test_handle_again),
		cmocka_unit_test(test_handle_twice),
		cmocka_unit_test(test_two_references),
		cmocka_unit_test(test_two_references_mapped),
		cmocka_unit_test(test_released_before_unmap),
		cmocka_unit_test(test_unmap_and_release),
		cmocka_unit_test(test_aliases),
		cmocka_unit_test(test_aliases_at_once),
		cmocka_unit_test(test_retain),
		cmocka_unit_test(test_retain_and_release),
		cmocka_unit_test(test_nccl_free),
		cmocka_unit_test(test_place),
		cmocka_unit_test(test_place_again),
		cmocka_unit_test(test_reservation),
		cmocka_unit_test(test_reservation_again),
		cmocka_unit_test(test_free_while_mapped),
		cmocka_unit_test(test_unmap_free_reserve_map),
		cmocka_unit_test(test_alloc),
		cmocka_unit_test(test_alloc_and_map),
		cmocka_unit_test(test_comm),
		cmocka_unit_test(test_comm_again),
		cmocka_unit_test(test_registration),
		cmocka_unit_test(test_import),
		cmocka_unit_test(test_import_released_before_unmap),
		cmocka_unit_test(test_double_release),
		cmocka_unit_test(test_double_unmap),
		cmocka_unit_test(test_double_address_free),
		cmocka_unit_test(test_late_return),
		cmocka_unit_test(test_refused_unmap),
		cmocka_unit_test(test_never_returns),
	};

	return cmocka_run_group_tests_name("graph order", tests, NULL, NULL);
}
