// SPDX-License-Identifier: BSD-2-Clause
/* Communicators: groups and ranks of what is split, shrunk or made all at once, and whose memory
 * NCCL's is. */

#include "canonical.h"
#include "tests/unit/seeds.h"

#define RANKS  8
#define PARENT 0x100ull
#define T0     (1ull << 40) /* times that no number is */

static struct lien_comm *comm_at(uint32_t pid, uint64_t address)
{
	struct lien_comm key = {.address = address};

	return process(pid) ? RB_FIND(lien_comm_tree, &process(pid)->comms, &key) : NULL;
}

static unsigned splits_waiting(void)
{
	struct lien_split *split;
	unsigned n = 0;

	RB_FOREACH (split, lien_split_tree, &graph->splits)
		n++;
	return n;
}

static void split(uint32_t pid, uint64_t parent, uint64_t comm, int32_t color, int32_t key)
{
	TELL(LIEN_CALL_NCCL_SPLIT, pid,
		.comm = {.comm = color < 0 ? 0 : comm,
			.parent = parent,
			.nranks = -1,
			.rank = -1,
			.color = color,
			.key = key});
}

static void shrink(uint32_t pid, uint64_t parent, uint64_t comm, int32_t count, const int32_t *out)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_SHRINK, pid,
		.comm = {.comm = comm,
			.parent = parent,
			.nranks = -1,
			.rank = -1,
			.excluded = count});

	memcpy(ev.comm.id, out, (count < 0 || count > 32 ? 32 : count) * sizeof(*out));
	apply(&ev);
}

static void finalize(uint32_t pid, uint64_t comm)
{
	TELL(LIEN_CALL_NCCL_FINALIZE, pid, .comm_end = {comm});
}

static void assert_rank(uint32_t pid, uint64_t comm, int32_t rank, int32_t nranks)
{
	assert_non_null(comm_at(pid, comm));
	assert_int_equal(comm_at(pid, comm)->rank, rank);
	assert_int_equal(comm_at(pid, comm)->nranks, nranks);
}

static bool same_group(const struct lien_comm *a, const struct lien_comm *b)
{
	return !memcmp(a->id, b->id, sizeof(a->id));
}

/* Rank r is of process r / per_process + 1; its communicators are at addresses of its own. */
static unsigned per_process;

static uint32_t pid_of(unsigned rank)
{
	return rank / per_process + 1;
}

static uint64_t address(uint64_t comm, unsigned rank)
{
	return comm + rank % per_process * 0x10000;
}

static void group_of_all(void)
{
	for (unsigned rank = 0; rank < RANKS; rank++) {
		if (rank % per_process == 0)
			started(pid_of(rank));
		comm_init(pid_of(rank), address(PARENT, rank), 0xaa, rank, RANKS);
	}
}

static void split_rank(unsigned rank, uint64_t parent, uint64_t comm, int32_t color, int32_t key)
{
	split(pid_of(rank), address(parent, rank), address(comm, rank), color, key);
}

static struct lien_comm *comm_of(unsigned rank, uint64_t comm)
{
	return comm_at(pid_of(rank), address(comm, rank));
}

static uint32_t random_state;

static unsigned random_below(unsigned n)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % n;
}

static void shuffle(unsigned *order)
{
	for (unsigned i = 0; i < RANKS; i++)
		order[i] = i;
	for (unsigned i = RANKS - 1; i; i--) {
		unsigned j = random_below(i + 1), was = order[i];

		order[i] = order[j];
		order[j] = was;
	}
}

/* --- split ------------------------------------------------------------------------------------ */

/* What MPI and NCCL say: ranks of a color by key, then by the rank in the parent. */
static int32_t expected(const int32_t *color, const int32_t *key, unsigned rank, int32_t *nranks)
{
	int32_t before = 0;

	*nranks = 0;
	for (unsigned other = 0; other < RANKS; other++) {
		if (color[other] != color[rank])
			continue;
		++*nranks;
		before += key[other] < key[rank] || (key[other] == key[rank] && other < rank);
	}
	return before;
}

static void check_split(uint64_t comm, const int32_t *color, const int32_t *key)
{
	int32_t nranks, rank;

	for (unsigned r = 0; r < RANKS; r++) {
		if (color[r] < 0) {
			assert_null(comm_of(r, comm));
			continue;
		}
		rank = expected(color, key, r, &nranks);
		assert_rank(pid_of(r), address(comm, r), rank, nranks);
		assert_int_equal(comm_of(r, comm)->parent, comm_of(r, PARENT)->number);
		for (unsigned other = 0; other < RANKS; other++)
			if (color[other] >= 0)
				assert_int_equal(same_group(comm_of(r, comm), comm_of(other, comm)),
					color[r] == color[other]);
	}
}

/* Any colors, any keys, any order of arrival; processes of one, two and eight ranks. */
static void test_splits(void **state)
{
	unsigned order[RANKS], seed = lien_test_seed(), i;
	int32_t color[RANKS], key[RANKS];

	(void)state;
	print_message("LIEN_SEED=%u\n", seed);
	random_state = seed;
	for (unsigned round = 0; round < 300; round++) {
		per_process = 1u << round % 4;
		group_of_all();
		for (unsigned r = 0; r < RANKS; r++) {
			color[r] = (int32_t)random_below(4) - 1;
			key[r] = (int32_t)random_below(5) - 2;
		}
		shuffle(order);
		for (i = 0; i < RANKS; i++) {
			if (i)
				assert_int_equal(splits_waiting(), 1);
			split_rank(order[i], PARENT, 0x200, color[order[i]], key[order[i]]);
			if (round % 8 == 0)
				assert_round_trip();
		}
		check_split(0x200, color, key);
		assert_int_equal(splits_waiting(), 0);
		for (i = 0; i < RANKS; i += per_process)
			ended(pid_of(i));
	}
}

/* Two splits at once: the ranks are at different ones. A split of a split. */
static void test_splits_of_splits(void **state)
{
	static const int32_t all[RANKS] = {0}, halves[RANKS] = {1, 1, 1, 1, 0, 0, 0, 0},
			     turned[RANKS] = {7, 6, 5, 4, 3, 2, 1, 0};
	struct lien_graph *copy;

	(void)state;
	per_process = 1;
	group_of_all();
	for (unsigned r = 0; r < RANKS - 1; r++) {
		split_rank(r, PARENT, 0x200, 0, turned[r]);
		split_rank(r, PARENT, 0x300, halves[r], 0);
	}
	assert_int_equal(splits_waiting(), 2);
	assert_rank(1, 0x200, -1, -1);
	assert_false(same_group(comm_at(1, 0x200), comm_at(1, 0x300)));
	copy = round_trip(graph);
	lien_graph_free(graph);
	graph = copy; /* and on with what joined by a dump */
	split_rank(RANKS - 1, PARENT, 0x200, 0, turned[RANKS - 1]);
	assert_int_equal(splits_waiting(), 1);
	split_rank(RANKS - 1, PARENT, 0x300, halves[RANKS - 1], 0);
	check_split(0x200, all, turned);
	check_split(0x300, halves, all);
	for (unsigned r = 0; r < RANKS; r++)
		split_rank(r, 0x300, 0x400, r % 2, 0);
	for (unsigned r = 0; r < RANKS; r++)
		assert_rank(pid_of(r), 0x400, r % 4 / 2, 2);
	assert_true(same_group(comm_at(1, 0x400), comm_at(3, 0x400)));
	assert_false(same_group(comm_at(1, 0x400), comm_at(2, 0x400)));
	assert_false(same_group(comm_at(1, 0x400), comm_at(5, 0x400)));
	assert_int_equal(comm_at(1, PARENT)->splits, 2);
	assert_int_equal(comm_at(1, 0x300)->splits, 1);
	assert_round_trip();
}

/* Not all come: the ranks stay unknown, and nothing waits longer than there is somebody to tell. */
static void test_split_never_whole(void **state)
{
	(void)state;
	per_process = 1;
	group_of_all();
	for (unsigned r = 0; r < 3; r++)
		split_rank(r, PARENT, 0x200, 0, 0);
	split_rank(3, PARENT, 0, -1, 0);
	assert_int_equal(splits_waiting(), 1);
	for (unsigned r = 0; r < 4; r++)
		comm_destroy(pid_of(r), PARENT);
	assert_int_equal(splits_waiting(), 1);
	assert_round_trip();
	for (unsigned r = 0; r < 3; r++)
		comm_destroy(pid_of(r), 0x200);
	assert_int_equal(splits_waiting(), 0);
}

static void test_split_and_death(void **state)
{
	(void)state;
	per_process = 1;
	group_of_all();
	for (unsigned r = 0; r < 4; r++)
		split_rank(r, PARENT, 0x200, 0, 0);
	ended(2);
	for (unsigned r = 4; r < RANKS; r++)
		split_rank(r, PARENT, 0x200, 0, 0);
	assert_rank(1, 0x200, -1, -1);
	assert_rank(8, 0x200, -1, -1);
	assert_round_trip();
	/* The others go on by themselves: a shrink has its ranks at once. */
	for (unsigned r = 0; r < RANKS; r++)
		if (r != 1)
			shrink(pid_of(r), PARENT, 0x500, 1, (int32_t[]){1});
	assert_rank(1, 0x500, 0, 7);
	assert_rank(8, 0x500, 6, 7);
	assert_true(same_group(comm_at(1, 0x500), comm_at(8, 0x500)));
}

/* A member's communicator has been destroyed and its address given to another one meanwhile. */
static void test_split_member_replaced(void **state)
{
	(void)state;
	per_process = 1;
	group_of_all();
	for (unsigned r = 0; r < RANKS - 1; r++)
		split_rank(r, PARENT, 0x200, 0, 0);
	comm_destroy(1, 0x200);
	comm_init(1, 0x200, 0xbb, 4, 5);
	split_rank(RANKS - 1, PARENT, 0x200, 0, 0);
	assert_rank(1, 0x200, 4, 5);
	assert_rank(2, 0x200, 1, 8);
}

static void test_split_unknown_parent(void **state)
{
	(void)state;
	started(1);
	split(1, 0x999, 0x200, 3, 0);
	assert_rank(1, 0x200, -1, -1);
	assert_int_equal(comm_at(1, 0x200)->parent, 0);
	assert_int_equal(splits_waiting(), 0);
	comm_register(1, 0x300, VA, PIECE, 7); /* made before NCCL was probed */
	split(1, 0x300, 0x400, 3, 0);
	assert_rank(1, 0x400, -1, -1);
	assert_int_equal(comm_at(1, 0x400)->parent, comm_at(1, 0x300)->number);
	assert_int_equal(comm_at(1, 0x300)->made_by, 0);
	assert_int_equal(splits_waiting(), 0);
}

/* --- shrink, finalize, InitAll, addresses ------------------------------------------------------
 */

static void test_shrink(void **state)
{
	static const int32_t out[] = {0, 3, 6};
	int32_t rank = 0;

	(void)state;
	per_process = 2;
	group_of_all();
	for (unsigned r = 0; r < RANKS; r++) {
		if (r % 3 == 0)
			continue;
		shrink(pid_of(r), address(PARENT, r), address(0x500, r), 3, out);
		assert_rank(pid_of(r), address(0x500, r), rank++, 5);
		assert_true(same_group(comm_of(r, 0x500), comm_of(1, 0x500)));
		assert_false(same_group(comm_of(r, 0x500), comm_of(r, PARENT)));
		assert_int_equal(comm_of(r, 0x500)->parent, comm_of(r, PARENT)->number);
	}
	assert_round_trip();
	/* Once more: another group. */
	shrink(1, address(PARENT, 1), 0x600, 3, out);
	assert_false(same_group(comm_at(1, 0x600), comm_of(1, 0x500)));
	assert_int_equal(comm_of(1, PARENT)->shrinks, 2);
}

static void test_finalize(void **state)
{
	(void)state;
	started(1);
	comm_init(1, PARENT, 1, 0, 1);
	assert_false(comm_at(1, PARENT)->finalized);
	finalize(1, PARENT);
	finalize(1, 0x999);
	assert_true(comm_at(1, PARENT)->finalized);
	assert_round_trip();
	comm_destroy(1, PARENT);
	assert_null(comm_at(1, PARENT));
}

static void init_all_one(uint32_t pid, uint64_t t_entry, unsigned rank)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_ALL, pid,
		.comm = {.comm = PARENT + rank * 16,
			.nranks = 4,
			.rank = rank,
			.device = rank,
			.id = {pid, 3}});

	ev.t_entry = t_entry;
	apply(&ev);
}

static void init_all(uint32_t pid, uint64_t t_entry)
{
	for (unsigned r = 0; r < 4; r++)
		init_all_one(pid, t_entry, r);
}

static void test_init_all(void **state)
{
	(void)state;
	started(1);
	init_all(1, T0);
	for (unsigned r = 0; r < 4; r++) {
		assert_rank(1, PARENT + r * 16, r, 4);
		assert_int_equal(comm_at(1, PARENT + r * 16)->device, r);
		assert_true(same_group(comm_at(1, PARENT), comm_at(1, PARENT + r * 16)));
		for (unsigned other = 0; other < r; other++)
			assert_int_not_equal(comm_at(1, PARENT + r * 16)->number,
				comm_at(1, PARENT + other * 16)->number);
	}
	for (unsigned r = 0; r < 4; r++)
		split(1, PARENT + r * 16, 0x800 + r * 16, 0, -(int32_t)r);
	for (unsigned r = 0; r < 4; r++)
		assert_rank(1, 0x800 + r * 16, 3 - r, 4);
}

/* Each way to make one at an address that is being given back, or was and nobody saw it. */
static void test_addresses_again(void **state)
{
	static const unsigned ends[] = {LIEN_CALL_NCCL_DESTROY, LIEN_CALL_NCCL_ABORT, 0};
	struct lien_event ev = {}, entry;

	(void)state;
	for (unsigned way = 0; way < 4; way++)
		for (unsigned end = 0; end < COUNT(ends); end++) {
			uint32_t old;

			started(1);
			comm_init(1, PARENT, 1, 0, 1);
			comm_init(1, 0x200, 2, 0, 1);
			comm_register(1, 0x200, VA, PIECE, 5);
			old = comm_at(1, 0x200)->number;
			if (ends[end]) {
				ev = EVENT(ends[end], 1, .comm_end = {0x200});
				entry = entry_of(ev);
				apply(&entry);
			}
			switch (way) {
			case 0:
				comm_init(1, 0x200, 3, 0, 1);
				break;
			case 1:
				split(1, PARENT, 0x200, 0, 0);
				break;
			case 2:
				shrink(1, PARENT, 0x200, 0, (int32_t[]){0});
				break;
			case 3:
				TELL(LIEN_CALL_NCCL_INIT_ALL, 1,
					.comm = {.comm = 0x200, .nranks = 1, .rank = 0});
				break;
			}
			assert_round_trip();
			if (ends[end])
				apply(&ev);
			assert_rank(1, 0x200, 0, 1);
			assert_int_not_equal(comm_at(1, 0x200)->number, old);
			assert_true(RB_EMPTY(&comm_at(1, 0x200)->registrations));
			assert_nothing_odd();
			ended(1);
		}
}

/* --- whose memory ------------------------------------------------------------------------------
 */

/* As NCCL makes it, inside a call that is about `scope`. */
static void nccl_buffer(uint32_t pid, uint64_t handle, uint64_t scope, unsigned flags)
{
	struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = PIECE, .prop = device_prop(0)});

	ev.outer = LIEN_CALL_NCCL_REGISTER;
	ev.scope = scope;
	ev.flags = flags;
	apply(&ev);
}

static uint64_t comm_holding(uint32_t pid, uint64_t handle)
{
	struct lien_comm *comm = lien_allocation_comm(handle_of(pid, handle)->holding->allocation);

	return comm ? comm->address : 0;
}

static void init_entered_at(uint32_t pid, uint64_t comm, uint64_t t_entry, int result)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_RANK_CONFIG, pid,
		.comm = {.comm = comm, .rank = 0, .nranks = 1, .id = {comm >> 8}});

	ev.t_entry = t_entry;
	ev.result = result;
	apply(&ev);
}

static void test_memory_in_calls(void **state)
{
	(void)state;
	started(1);
	comm_init(1, 0x100, 1, 0, 1);
	comm_init(1, 0x200, 2, 0, 1);
	nccl_buffer(1, 10, 0x200, 0);
	nccl_buffer(1, 11, 0x100, LIEN_EVENT_INFERRED);
	nccl_buffer(1, 12, 0x999, 0); /* not known */
	nccl_buffer(1, 13, 0, 0);
	assert_int_equal(comm_holding(1, 10), 0x200);
	assert_int_equal(comm_holding(1, 11), 0x100);
	assert_int_equal(comm_holding(1, 12), 0);
	assert_int_equal(comm_holding(1, 13), 0);
	assert_false(handle_of(1, 10)->holding->allocation->comm_inferred);
	assert_true(handle_of(1, 11)->holding->allocation->comm_inferred);
	/* What others ask for is not the communicator's, whatever NCCL was called last for. */
	create(1, 14, PIECE);
	assert_int_equal(handle_of(1, 14)->holding->allocation->comm, 0);
	tell.outer = 0;
	assert_round_trip();
	comm_destroy(1, 0x200);
	assert_int_equal(comm_holding(1, 10), 0);
	assert_int_not_equal(handle_of(1, 10)->holding->allocation->comm, 0);
	comm_init(1, 0x200, 3, 0, 1);
	assert_int_equal(comm_holding(1, 10), 0); /* another one */
}

static void test_other_memory_has_no_scope(void **state)
{
	struct lien_event ev;

	(void)state;
	started(1);
	library(1, IN_TORCH, "libtorch_cuda.so");
	comm_init(1, 0x100, 1, 0, 1);
	ev = EVENT(LIEN_CALL_CU_MEM_CREATE, 1, .create = {9, PIECE, device_prop(0)});
	ev.caller = IN_TORCH + 4;
	ev.scope = 0x100;
	ev.flags = LIEN_EVENT_INFERRED;
	apply(&ev);
	assert_int_equal(handle_of(1, 9)->holding->allocation->comm, 0);
	/* The same from a thread of NCCL itself. */
	library(1, IN_TORCH + 8 * MIB, "libnccl.so.2");
	ev = EVENT(LIEN_CALL_CU_MEM_CREATE, 1, .create = {10, PIECE, device_prop(0)});
	ev.caller = IN_TORCH + 8 * MIB + 4;
	ev.scope = 0x100;
	ev.flags = LIEN_EVENT_INFERRED;
	apply(&ev);
	assert_int_equal(comm_holding(1, 10), 0x100);
}

/* Asked for while the communicator is made, when it has no address. */
static void test_memory_of_inits(void **state)
{
	(void)state;
	started(1);
	nccl_buffer(1, 10, LIEN_SCOPE_INIT | T0, 0);
	nccl_buffer(1, 11, LIEN_SCOPE_INIT | (T0 + 5), 0);
	nccl_buffer(1, 12, LIEN_SCOPE_INIT | T0, LIEN_EVENT_INFERRED);
	assert_int_equal(comm_holding(1, 10), 0);
	assert_round_trip();
	init_entered_at(1, 0x200, T0 + 5, 0);
	init_entered_at(1, 0x100, T0, 0);
	assert_int_equal(comm_holding(1, 10), 0x100);
	assert_int_equal(comm_holding(1, 11), 0x200);
	assert_int_equal(comm_holding(1, 12), 0x100);
	assert_round_trip();
	comm_destroy(1, 0x100);
	assert_int_equal(comm_holding(1, 10), 0);
	assert_int_equal(comm_holding(1, 11), 0x200);
}

/* Non-blocking: the call has returned, NCCL's thread goes on and names the communicator by it. */
static void test_memory_after_init_returned(void **state)
{
	struct lien_graph *copy;

	(void)state;
	started(1);
	init_entered_at(1, 0x100, T0, 7 /* ncclInProgress */);
	nccl_buffer(1, 10, LIEN_SCOPE_INIT | T0, LIEN_EVENT_INFERRED);
	assert_int_equal(comm_holding(1, 10), 0x100);
	nccl_buffer(1, 11, LIEN_SCOPE_INIT | (T0 + 1), 0);
	init_entered_at(1, 0x200, T0 + 1, 7);
	nccl_buffer(1, 12, LIEN_SCOPE_INIT | (T0 + 1), LIEN_EVENT_INFERRED);
	assert_int_equal(comm_holding(1, 12), 0x200);
	copy = round_trip(graph);
	lien_graph_free(graph);
	graph = copy; /* it knows the call, too */
	nccl_buffer(1, 13, LIEN_SCOPE_INIT | T0, LIEN_EVENT_INFERRED);
	assert_int_equal(comm_holding(1, 13), 0x100);
	comm_destroy(1, 0x100);
	nccl_buffer(1, 14, LIEN_SCOPE_INIT | T0, LIEN_EVENT_INFERRED);
	assert_int_equal(comm_holding(1, 14), 0);
	assert_int_equal(comm_holding(1, 12), 0x200);
}

/* Under way at the dump, made afterwards. */
static void test_memory_of_init_dumped(void **state)
{
	struct lien_graph *copy;

	(void)state;
	started(1);
	nccl_buffer(1, 10, LIEN_SCOPE_INIT | T0, 0);
	copy = round_trip(graph);
	lien_graph_free(graph);
	graph = copy;
	init_entered_at(1, 0x100, T0, 0);
	assert_int_equal(comm_holding(1, 10), 0x100);
}

static void test_memory_of_init_all(void **state)
{
	(void)state;
	started(1);
	nccl_buffer(1, 10, LIEN_SCOPE_INIT | T0, 0);
	init_all(1, T0);
	nccl_buffer(1, 11, LIEN_SCOPE_INIT | T0, LIEN_EVENT_INFERRED);
	assert_int_equal(comm_holding(1, 10), PARENT); /* the first stands for all */
	assert_int_equal(comm_holding(1, 11), PARENT);
	assert_round_trip();
	comm_destroy(1, PARENT);
	assert_int_equal(comm_holding(1, 10), 0);
	assert_rank(1, PARENT + 16, 1, 4);
}

static void test_memory_of_failed_init(void **state)
{
	(void)state;
	started(1);
	nccl_buffer(1, 10, LIEN_SCOPE_INIT | T0, 0);
	init_entered_at(1, 0x100, T0, 5);
	assert_null(comm_at(1, 0x100));
	assert_int_equal(comm_holding(1, 10), 0);
}

/* --- forged ------------------------------------------------------------------------------------
 */

static void test_forged_sizes(void **state)
{
	static const int32_t huge[] = {INT32_MAX, INT32_MIN, 0, -7, 65537};

	(void)state;
	per_process = 1;
	started(1);
	started(2);
	for (unsigned i = 0; i < COUNT(huge); i++)
		for (unsigned j = 0; j < COUNT(huge); j++) {
			comm_init(1, 0x100, 0xaa, huge[i], huge[j]);
			split(1, 0x100, 0x200, INT32_MAX, INT32_MIN);
			comm_init(1, 0x100, 0xaa, 0, huge[j]);
			split(1, 0x100, 0x200, 0, 0);
			shrink(1, 0x100, 0x300, huge[i], (int32_t[32]){-1, 5, INT32_MIN});
			assert_true(comm_at(1, 0x300)->rank >= -1);
			assert_true(comm_at(1, 0x300)->nranks >= -1);
			assert_round_trip();
		}
}

/* --- named by NCCL's RAS ---------------------------------------------------------------------- */

static void named(uint32_t pid, uint64_t comm, uint64_t hash, int32_t rank, int32_t nranks)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_RANK, pid,
		.comm = {.comm = comm, .rank = rank, .nranks = nranks, .device = 3});

	ev.flags = LIEN_EVENT_FOUND;
	ev.t_entry = ev.t_return = 0;
	lien_comm_found_id(ev.comm.id, hash, 5, 6);
	apply(&ev);
}

static void test_named(void **state)
{
	(void)state;
	started(1);
	started(2);
	comm_register(1, 0x100, VA, PIECE, 7); /* it is used, and was not seen being made */
	assert_true(lien_comm_unnamed(comm_at(1, 0x100)));
	named(1, 0x100, 0xabc, 0, 2);
	named(2, 0x200, 0xabc, 1, 2);
	assert_rank(1, 0x100, 0, 2);
	assert_rank(2, 0x200, 1, 2);
	assert_true(same_group(comm_at(1, 0x100), comm_at(2, 0x200)));
	assert_true(lien_comm_is_found(comm_at(1, 0x100)));
	assert_int_equal(comm_at(1, 0x100)->made_by, 0);
	assert_int_equal(comm_at(1, 0x100)->device, 3);
	assert_false(RB_EMPTY(&comm_at(1, 0x100)->registrations));
	assert_round_trip();
	/* The same once more; then what is made at that address is another one. */
	named(1, 0x100, 0xabc, 0, 2);
	assert_false(RB_EMPTY(&comm_at(1, 0x100)->registrations));
	comm_init(1, 0x100, 0xaa, 1, 4);
	assert_rank(1, 0x100, 1, 4);
	assert_true(comm_at(1, 0x100)->hash == 0);
	assert_false(lien_comm_is_found(comm_at(1, 0x100)));
	comm_destroy(2, 0x200);
	assert_null(comm_at(2, 0x200));
	named(2, 0, 0xabc, 0, 2);
	assert_null(comm_at(2, 0));
}

/* Who saw it being made knows more than RAS does. */
static void test_named_and_known(void **state)
{
	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 1, 4);
	named(1, 0x100, 0xabc, 0, 2);
	assert_rank(1, 0x100, 1, 4);
	assert_true(comm_at(1, 0x100)->hash == 0xabc);
	assert_int_equal(comm_at(1, 0x100)->id[0], 0xaa);
	assert_false(lien_comm_is_found(comm_at(1, 0x100)));
}

/* Two unknown ones, split alike: these are not one group. How many there were before, nobody saw.
 */
static void test_split_of_unknown(void **state)
{
	(void)state;
	started(1);
	comm_register(1, 0x100, VA, PIECE, 7);
	comm_register(1, 0x200, VA, PIECE, 8);
	named(1, 0x300, 0xabc, 0, 1);
	split(1, 0x100, 0x110, 0, 0);
	split(1, 0x200, 0x210, 0, 0);
	split(1, 0x300, 0x310, 0, 0);
	shrink(1, 0x300, 0x320, 0, (int32_t[32]){0});
	for (uint64_t comm = 0x110; comm <= 0x310; comm += 0x100)
		assert_true(lien_comm_unnamed(comm_at(1, comm)));
	assert_true(lien_comm_unnamed(comm_at(1, 0x320)));
	assert_int_equal(splits_waiting(), 0);
	assert_int_equal(comm_at(1, 0x310)->parent, comm_at(1, 0x300)->number);
	named(1, 0x310, 0xdef, 0, 1);
	assert_rank(1, 0x310, 0, 1);
	assert_int_equal(comm_at(1, 0x310)->made_by, LIEN_CALL_NCCL_SPLIT);
	assert_true(lien_comm_is_found(comm_at(1, 0x310)));
}

/* The members do not agree on how many they are, or come twice. */
static void test_forged_members(void **state)
{
	(void)state;
	for (uint32_t pid = 1; pid <= 40; pid++) {
		started(pid);
		comm_init(pid, 0x100, 0xaa, pid % 30, pid == 1 ? 35 : 36);
		split(pid, 0x100, 0x200, 0, 0);
	}
	assert_int_equal(splits_waiting(), 2);
	assert_rank(40, 0x200, -1, -1);
	comm_init(50, 0x100, 0xbb, 0, 2);
	comm_init(51, 0x100, 0xbb, 0, 2); /* the same rank */
	split(50, 0x100, 0x200, 0, 0);
	split(51, 0x100, 0x200, 0, 0);
	assert_rank(50, 0x200, -1, -1);
	comm_init(52, 0x100, 0xbb, 1, 2);
	split(52, 0x100, 0x200, 0, 0);
	assert_rank(51, 0x200, 0, 2);
	assert_rank(52, 0x200, 1, 2);
}

/* Bad lists of ranks leave the rank unknown. */
static void test_forged_exclusions(void **state)
{
	static const int32_t negative[] = {-1, 2}, itself[] = {3}, beyond[] = {8}, many[32] = {0};

	(void)state;
	per_process = 1;
	group_of_all();
	shrink(4, PARENT, 0x500, 2, negative);
	assert_rank(4, 0x500, -1, 6);
	shrink(4, PARENT, 0x500, 1, itself);
	assert_rank(4, 0x500, -1, 7);
	shrink(4, PARENT, 0x500, 1, beyond);
	assert_rank(4, 0x500, -1, 7);
	shrink(4, PARENT, 0x500, -1, many);
	assert_rank(4, 0x500, -1, -1);
	shrink(4, PARENT, 0x500, 8, many);
	assert_rank(4, 0x500, -1, -1);
	shrink(4, PARENT, 0x500, 7, many); /* rank 0 seven times */
	assert_rank(4, 0x500, -1, 1);
}

/* A communicator that is its own parent; none; told after the fact without one. */
static void test_forged_addresses(void **state)
{
	static const unsigned calls[] = {LIEN_CALL_NCCL_SPLIT, LIEN_CALL_NCCL_SHRINK,
		LIEN_CALL_NCCL_INIT_RANK, LIEN_CALL_NCCL_INIT_ALL};
	static const unsigned flags[] = {0, LIEN_EVENT_IMPORTED};

	(void)state;
	started(1);
	for (unsigned i = 0; i < COUNT(calls); i++)
		for (unsigned f = 0; f < COUNT(flags); f++) {
			comm_init(1, 0x100, 1, 0, 1);
			tell.flags = flags[f];
			TELL(calls[i], 1, .comm = {.comm = 0x100, .parent = 0x100, .key = 3});
			TELL(calls[i], 1, .comm = {.comm = 0, .parent = 0x100});
			TELL(calls[i], 1,
				.comm = {.comm = 0x300,
					.parent = 0x100,
					.nranks = LIEN_COMM_AWAITED});
			tell.flags = 0;
			assert_int_equal(comm_at(1, 0x100)->parent, 0);
			assert_null(comm_at(1, 0));
			assert_round_trip();
		}
}

#define COMM(name) cmocka_unit_test_setup_teardown(name, setup, comm_teardown)

/* However it ended. */
static int comm_teardown(void **state)
{
	assert_round_trip();
	return teardown(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		COMM(test_splits),
		COMM(test_splits_of_splits),
		COMM(test_split_never_whole),
		COMM(test_split_and_death),
		COMM(test_split_member_replaced),
		COMM(test_split_unknown_parent),
		COMM(test_shrink),
		COMM(test_finalize),
		COMM(test_init_all),
		COMM(test_addresses_again),
		COMM(test_memory_in_calls),
		COMM(test_other_memory_has_no_scope),
		COMM(test_memory_of_inits),
		COMM(test_memory_after_init_returned),
		COMM(test_memory_of_init_dumped),
		COMM(test_memory_of_init_all),
		COMM(test_memory_of_failed_init),
		COMM(test_named),
		COMM(test_named_and_known),
		COMM(test_split_of_unknown),
		COMM(test_forged_sizes),
		COMM(test_forged_members),
		COMM(test_forged_exclusions),
		COMM(test_forged_addresses),
	};

	return cmocka_run_group_tests_name("graph communicators", tests, NULL, NULL);
}
