// SPDX-License-Identifier: BSD-2-Clause
/* agent/quiesce/quiesce.h: who is let in, and when a job is at rest, by what the kernel side says.
 */
#include <stdio.h>
#include <sys/syscall.h>

#include "agent/link/link.h"
#include "agent/quiesce/gate.h"
#include "agent/quiesce/quiesce.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"
#include "events.h"

#define RANKS  2
#define COMM   0x5500
#define GATE   0x7000 /* the word for which held threads wait */
#define MS     1000000ull
#define NOW_MS 1000000

/* What the kernel side has. */
static struct {
	uint64_t broadcasts[RANKS]; /* with one that is held */
	uint64_t before;	    /* of these, before the rest from which they are counted */
	uint64_t held_ms[RANKS];    /* before a broadcast; 0: not held */
	uint64_t transfers[RANKS];  /* from rank 0 to rank 1, as each has begun them */
	int64_t allowed[RANKS], allowed_transfers[RANKS];
	bool device[RANKS];   /* is busy */
	uint32_t call[RANKS]; /* it is held before this call, not a broadcast; 0: before one */
	bool working[RANKS];  /* NCCL's own threads */
	unsigned let_in[RANKS];
	bool away;     /* COMM is, in a gate that holds by communicator */
	int comms;     /* that the gate of rank 1 holds from now on; -1: all */
	bool at_calls; /* threads of rank 1 are at those calls, */
	unsigned gone; /* of which these were let go */
	/* A thread in a broadcast: the gate has seen it enter, and it was counted; 0: not yet. */
	uint64_t entered_ms[RANKS], counted_ms[RANKS];
	uint64_t others[RANKS];		   /* allowed: calls in which they do not meet */
	bool unseen[RANKS];		   /* by its gate: a thread in a call, */
	bool late[RANKS];		   /* which an earlier gate has signalled: it waits */
	struct lien_probe_held_key unheld; /* no gate can hold it; .tid 0: there is none */
	bool uncovered;			   /* the gates miss calls */
	bool comes; /* it waits for its own gate, to which it came after it was listed */
} k;

static struct lien_agent agent;
static struct lien_tracked tracked[RANKS];
static const uint32_t pids[RANKS] = {1, 2};
static struct lien_resting resting;

uint64_t lien_now_ns(void)
{
	return NOW_MS * MS;
}

bool lien_agent_catch_up(struct lien_agent *of)
{
	(void)of;
	return true;
}

/* Other nodes take part in no case here (tests/integration/test_coordinate.py). */
void lien_log(int level, const char *format, ...)
{
	(void)level, (void)format;
}

void lien_server_tell(struct lien_agent *of, json_t *progress)
{
	(void)of;
	json_decref(progress);
}

unsigned lien_server_waiting(const struct lien_agent *of)
{
	(void)of;
	return 0;
}

void lien_turn_part(struct lien_agent *of, const char *kind, const char *name)
{
	(void)of;
	assert_non_null(kind);
	assert_non_null(name);
}

const char *lien_calls_name(unsigned number)
{
	(void)number;
	return "ncclBroadcast";
}

bool lien_gate_covers(struct lien_agent *of, uint32_t pid, const struct lien_probe_gate *gate,
	char *why, size_t size)
{
	(void)of, (void)pid, (void)gate;
	if (k.uncovered)
		snprintf(why, size, "uncovered");
	return !k.uncovered;
}

void lien_gate_say_unheld(uint32_t pid, uint32_t tid, const char *call, char *why, size_t size)
{
	(void)pid, (void)tid, (void)call, (void)why, (void)size;
}

bool lien_probes_comm_away(const struct lien_probes *probes, uint32_t pid, uint64_t comm)
{
	(void)probes, (void)pid;
	assert_int_equal(comm, COMM);
	return k.away;
}

bool lien_probes_gate_holds(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_shut *range)
{
	(void)probes;
	*range = (struct lien_probe_shut){.by_comm = k.comms >= 0};
	return pid == pids[1];
}

void lien_probes_gate_all_comms(struct lien_probes *probes, uint32_t pid)
{
	(void)probes, (void)pid;
	k.comms = -1;
}

int lien_probes_gate_comms(
	struct lien_probes *probes, uint32_t pid, const uint64_t *comms, unsigned count)
{
	(void)probes, (void)pid;
	for (k.comms = 0; (unsigned)k.comms < count; k.comms++)
		assert_int_equal(comms[k.comms], COMM + k.comms);
	return 0;
}

/* Threads at calls of rank 1, which a gate may hold or not. */
static const struct lien_probe_held at_calls[] = {
	{.comm = COMM, .call = LIEN_CALL_NCCL_BROADCAST, .flags = LIEN_PROBE_HELD_MEETS},
	{.call = LIEN_CALL_CU_GRAPH_LAUNCH, .flags = LIEN_PROBE_HELD_MEETS},
	{.call = LIEN_CALL_NCCL_INIT_RANK, .flags = LIEN_PROBE_HELD_MEETS}};

int lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg)
{
	(void)pid, (void)fn, (void)arg;
	return 0;
}

ssize_t lien_untrusted_memory(uint32_t pid, uint64_t from, void *to, size_t bytes)
{
	(void)pid, (void)from, (void)to, (void)bytes;
	return 0;
}

/* As map `pairs` has it: rank 0 sends to 1, rank 1 receives from 0. */
static uint32_t peer_of(unsigned rank)
{
	return rank ? 0 * 2 + 1 : 1 * 2;
}

int lien_probes_allow(struct lien_probes *probes, const struct lien_probe_pair *key, uint64_t more)
{
	const unsigned rank = key->pid - 1;

	(void)probes;
	if (key->peer == LIEN_PROBE_OTHERS) {
		assert_int_equal(key->comm, 0);
		k.others[rank] = more;
		return 0;
	}
	assert_int_equal(key->comm, COMM);
	if (key->peer == LIEN_PROBE_COLLECTIVES) {
		k.allowed[rank] = more;
	} else {
		assert_int_equal(key->peer, peer_of(rank));
		k.allowed_transfers[rank] = more;
	}
	return 0;
}

int lien_probes_allow_none(struct lien_probes *probes)
{
	(void)probes;
	memset(k.allowed, 0, sizeof(k.allowed));
	memset(k.allowed_transfers, 0, sizeof(k.allowed_transfers));
	return 0;
}

bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate)
{
	(void)probes;
	*gate = (struct lien_probe_gate){.inside = !!k.held_ms[pid - 1]};
	return true;
}

int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context)
{
	(void)probes;
	for (unsigned i = 0; i < RANKS; i++) {
		const struct lien_probe_held_key key = {pids[i], pids[i]};
		const struct lien_probe_held held = {.comm = k.call[i] ? 0 : COMM,
			.call = k.call[i] ? k.call[i] : LIEN_CALL_NCCL_BROADCAST,
			.flags = k.call[i] == LIEN_CALL_CU_MEM_CREATE ? 0 : LIEN_PROBE_HELD_MEETS,
			.tid = pids[i],
			.t = lien_now_ns() - k.held_ms[i] * MS};

		if (k.held_ms[i])
			assert_int_equal(fn(context, &key, &held), 0);
	}
	for (unsigned i = 0; i < COUNT(at_calls) && k.at_calls; i++) {
		const struct lien_probe_held_key key = {pids[1], 100 + i};

		assert_int_equal(fn(context, &key, &at_calls[i]), 0);
	}
	return 0;
}

void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid)
{
	(void)probes;
	if (k.at_calls)
		k.gone |= 1 << (tid - 100);
	else
		assert_int_equal(tid, pid);
}

bool lien_probes_is_held(const struct lien_probes *probes, uint32_t pid, uint32_t tid)
{
	(void)probes;
	return tid == pid && k.held_ms[pid - 1];
}

uint64_t lien_probes_pair(
	const struct lien_probes *probes, uint32_t pid, uint64_t comm, uint32_t peer, bool receives)
{
	(void)probes;
	assert_int_equal(comm, COMM);
	return peer * 2 + receives == peer_of(pid - 1) ? k.transfers[pid - 1] : 0;
}

int lien_probes_pairs(const struct lien_probes *probes, lien_map_fn *fn, void *context)
{
	(void)probes;
	for (unsigned i = 0; i < RANKS; i++) {
		const struct lien_probe_pair pair = {
			.comm = COMM, .pid = pids[i], .peer = peer_of(i)};

		if (k.transfers[i])
			assert_int_equal(fn(context, &pair, &k.transfers[i]), 0);
	}
	return 0;
}

bool lien_probes_process(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_process *process)
{
	(void)probes, (void)pid;
	*process = (struct lien_probe_process){.comms = 1, .nonblocking = 1};
	return true;
}

int lien_probes_unheld(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key), void *context)
{
	(void)probes;
	return k.unheld.tid ? fn(context, &k.unheld) : 0;
}

int lien_probes_threads(struct lien_probes *probes, const uint32_t *of, unsigned count,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context)
{
	int err = 0;

	(void)probes, (void)of, (void)count;
	for (unsigned i = 0; i < RANKS && !err; i++)
		if (k.entered_ms[i])
			err = fn(context, &(struct lien_probe_thread){.pid = pids[i],
						  .tid = pids[i],
						  .seen = true,
						  .inside = true,
						  .call = LIEN_CALL_NCCL_BROADCAST,
						  .t_entered = k.entered_ms[i] * MS,
						  .t_counted = k.counted_ms[i] * MS});
		else if (k.unseen[i])
			err = fn(context, &(struct lien_probe_thread){
						  .pid = pids[i], .tid = pids[i], .inside = true});
	return err;
}

/* Where a thread stands: before its gate, or it has ended. */
FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
	unsigned pid, tid;
	FILE *file;

	if (sscanf(path, "/proc/%u/task/%u/syscall", &pid, &tid) != 2)
		return __real_fopen(path, mode);
	assert_int_equal(tid, pid);
	if (!k.late[pid - 1])
		return NULL;
	k.unseen[pid - 1] &= !k.comes;
	file = tmpfile();
	fprintf(file, "%d %#x 0x0 0x0 0x0 0x0 0x0 0x7ffc00001000 0x7f0000001000\n", SYS_futex,
		GATE);
	rewind(file);
	return file;
}

int lien_link_state(
	uint32_t pid, const struct lien_control_place *place, struct lien_control_state *state)
{
	(void)pid, (void)place;
	*state = (struct lien_control_state){.gate = GATE};
	return 0;
}

long long lien_status_of(uint32_t pid, uint32_t tid, const char *name, int base)
{
	assert_int_equal(tid, pid);
	assert_string_equal(name, "NSpid");
	assert_int_equal(base, 10);
	return tid;
}

/* --- for the gates of test_by_communicator ---------------------------------------------------- */

static struct lien_link to_rank_1;
static struct lien_link *const link_of_rank_1 = &to_rank_1;

int lien_link_send(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count)
{
	(void)fds;
	assert_ptr_equal(link, link_of_rank_1);
	assert_int_equal(asker, LIEN_ASK_GATE);
	assert_int_equal(order->arg, LIEN_WIRE_GATE_PASS);
	assert_non_null(body);
	assert_int_equal(fds_count, 0);
	return 0;
}

/* --- gates are neither made, shut nor opened here --------------------------------------------- */

int lien_gate_make(
	struct lien_agent *of, struct lien_process *process, bool wait, char *to, size_t size)
{
	(void)of, (void)process, (void)wait, (void)to, (void)size;
	return -EOPNOTSUPP;
}

void lien_gate_cover(struct lien_agent *of, struct lien_process *process)
{
	(void)of, (void)process;
}

const struct lien_probes_facts *lien_probes_facts(const struct lien_probes *probes)
{
	static const struct lien_probes_facts facts = {.gates = RANKS};

	(void)probes;
	return &facts;
}

int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid,
	const struct lien_probe_shut *range, const struct lien_probe_shut *before)
{
	(void)probes, (void)pid, (void)range, (void)before;
	return -EOPNOTSUPP;
}

void lien_probes_gate_nccl_alone(struct lien_probes *probes, uint32_t pid)
{
	(void)probes, (void)pid;
}

void lien_probes_gate_tick(struct lien_probes *probes)
{
	(void)probes;
}

void lien_probes_ungate(struct lien_probes *probes, uint32_t pid, bool ends)
{
	(void)probes, (void)pid, (void)ends;
}

bool lien_probes_traffic_of(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	struct lien_probe_traffic *traffic)
{
	(void)probes;
	assert_int_equal(comm, COMM);
	*traffic = (struct lien_probe_traffic){0};
	traffic->calls[LIEN_CALL_NCCL_BROADCAST - LIEN_TRAFFIC_FIRST] = k.broadcasts[pid - 1];
	traffic->calls[LIEN_CALL_NCCL_SEND - LIEN_TRAFFIC_FIRST] = k.transfers[pid - 1];
	return true;
}

static void on_pass(void *to, uint32_t pid, const uint32_t *tids, unsigned count)
{
	assert_null(to);
	assert_int_equal(count, 1);
	assert_int_equal(tids[0], pid);
	k.let_in[pid - 1]++;
}

static char why[200];

static enum lien_rest look(void)
{
	why[0] = '\0';
	memset(k.let_in, 0, sizeof(k.let_in));
	memset(k.others, 0, sizeof(k.others));
	resting.pids = pids;
	resting.busy = k.device;
	resting.working = k.working;
	resting.count = RANKS;
	resting.pass = on_pass;
	resting.why = why;
	resting.size = sizeof(why);
	return lien_quiesce_look(&agent, &resting);
}

static void begin(void)
{
	memset(&k, 0, sizeof(k));
	memset(&resting, 0, sizeof(resting));
	agent.graph = graph;
	for (unsigned i = 0; i < RANKS; i++) {
		started(pids[i]);
		tracked[i] = (struct lien_tracked){.agent = &agent, .pid = pids[i]};
		lien_graph_process(graph, pids[i])->agent = &tracked[i];
	}
}

/* Communicators of one group, whose making was seen. */
static void counted(void)
{
	begin();
	for (unsigned i = 0; i < RANKS; i++)
		comm_init(pids[i], COMM, 7, i, RANKS);
}

/* As NCCL's RAS tells of them, when they are in use already. */
static void found(void)
{
	begin();
	for (unsigned i = 0; i < RANKS; i++) {
		struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_RANK, pids[i],
			.comm = {.comm = COMM, .rank = i, .nranks = RANKS, .device = -1});

		ev.flags = LIEN_EVENT_FOUND;
		ev.t_entry = ev.t_return = 0;
		lien_comm_found_id(ev.comm.id, 7, 5, 6);
		apply(&ev);
		assert_true(
			lien_comm_is_found(RB_ROOT(&lien_graph_process(graph, pids[i])->comms)));
	}
}

static int end(void **state)
{
	for (unsigned i = 0; i < RANKS; i++)
		lien_since_clear(&tracked[i], 0);
	return teardown(state);
}

/* Others may be done with a call that a rank has yet to begin, so a device that is busy with
 * something else is idle soon: nobody may then enter unasked. */
static void test_no_rest_with_calls_allowed(void **state)
{
	(void)state;
	counted();
	k.broadcasts[0] = 1; /* by the root; the other rank computes */
	k.device[1] = true;
	assert_int_equal(look(), LIEN_REST_FAR);
	assert_int_equal(k.allowed[1], 1);
	k.device[1] = false;
	assert_int_equal(look(), LIEN_REST_REACHED);
	assert_int_equal(k.allowed[1], 0);
}

/* Rank 1 is behind, and held. As long as it is not certain whether its call is counted, nobody is
 * let in: it would be let in one call too far. */
static void test_not_counted_yet(void **state)
{
	(void)state;
	counted();
	k.broadcasts[0] = 3;
	k.broadcasts[1] = 1;
	k.held_ms[1] = 50;
	k.device[0] = true;
	k.entered_ms[1] = NOW_MS - 50;
	k.counted_ms[1] = NOW_MS - 60; /* the call before */
	assert_int_equal(look(), LIEN_REST_NEAR);
	k.counted_ms[1] = NOW_MS; /* or perhaps only since this look began */
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[1] + k.allowed[1] + resting.passes, 0);
	k.counted_ms[1] = NOW_MS - 50;
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[1], 1);
	assert_int_equal(k.allowed[1], 2);
	k.counted_ms[1] = 0; /* it is counted before the gate sees it */
	k.entered_ms[1] = NOW_MS - 100;
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[1], 1);
}

/* A kernel of one rank waits for one of the other's, outside of NCCL. */
static void test_flags_of_other_kernels(void **state)
{
	(void)state;
	counted();
	for (unsigned i = 0; i < RANKS; i++) {
		k.held_ms[i] = 50;
		k.call[i] = LIEN_CALL_CU_MEM_CREATE;
	}
	for (unsigned behind = 0; behind < RANKS; behind++) {
		k.device[behind] = false;
		k.device[!behind] = true;
		for (unsigned i = 0, more = 0; i < 20; i++, more = 2 * more + 1) {
			assert_int_equal(look(), LIEN_REST_NEAR);
			assert_int_equal(k.let_in[behind], 1);
			assert_int_equal(k.others[behind], more < 255 ? more : 255);
			assert_int_equal(k.let_in[!behind] + k.others[!behind], 0);
		}
	}
	k.device[RANKS - 1] = k.device[0] = false;
	assert_int_equal(look(), LIEN_REST_REACHED);
	assert_int_equal(k.others[0] + k.others[1] + resting.guesses, 0);
}

/* Rank 0 waits in a call that nobody counts, for rank 1, whose counts show nothing of it. */
static void test_meeting_without_a_count(void **state)
{
	static const struct {
		unsigned call;
		bool let_in, meets;
	} calls[] = {{LIEN_CALL_NCCL_WINDOW_REGISTER, true, true},
		{LIEN_CALL_NCCL_DEVICE_COMM, true, true}, {LIEN_CALL_GATED_FIRST + 7, true, true},
		{LIEN_CALL_NCCL_MEM_ALLOC, true, true}, {LIEN_CALL_CU_CAPTURE_BEGIN, false, false},
		{LIEN_CALL_CU_MEM_CREATE, true, false}}; /* on the way to a flag, perhaps */

	(void)state;
	for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		counted();
		k.device[0] = true;
		k.held_ms[1] = 50;
		k.call[1] = calls[i].call;
		look();
		if (k.let_in[1] != calls[i].let_in || resting.guesses != calls[i].meets)
			fail_msg("call %u: let in %u, guesses %u", calls[i].call, k.let_in[1],
				resting.guesses);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

/* They have all been let go by an earlier gate: they are in. Where memory is away, they may wait
 * for that. */
static void test_signals_that_come_late(void **state)
{
	(void)state;
	counted();
	for (unsigned i = 0; i < RANKS; i++)
		k.unseen[i] = k.late[i] = true;
	tracked[0].gate_was_shut = tracked[1].gate_was_shut = true;
	assert_int_equal(look(), LIEN_REST_FAR);
	assert_int_equal(k.let_in[0] + k.let_in[1], 0);
	tracked[0].gate_was_shut = tracked[1].gate_was_shut = false;
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[0], 1);
	assert_int_equal(k.let_in[1], 1);
	assert_int_equal(resting.passes, 2);
	assert_int_equal(look(), LIEN_REST_FAR); /* not at rest until they are out, */
	resting.levelling = true;
	assert_int_equal(look(), LIEN_REST_LEVEL);
	resting.levelling = false;
	assert_int_equal(k.let_in[0] + k.let_in[1], 0);
	k.unseen[0] = k.unseen[1] = false;
	assert_int_equal(look(), LIEN_REST_REACHED);
}

/* A thread that comes to the gate during a look waits for it, too: it is held, and its call is
 * among those that are allowed. */
static void test_comes_during_the_look(void **state)
{
	(void)state;
	counted();
	k.unseen[1] = k.late[1] = k.comes = true;
	assert_int_equal(look(), LIEN_REST_FAR);
	assert_int_equal(k.let_in[1], 0);
	assert_int_equal(resting.passes, 0);
	assert_int_equal(look(), LIEN_REST_REACHED);
}

/* It has made no call since there is a gate, and would go through it. */
static void test_cannot_be_held(void **state)
{
	(void)state;
	counted();
	k.unheld = (struct lien_probe_held_key){.pid = 999, .tid = 7}; /* has no part in this */
	assert_int_equal(look(), LIEN_REST_REACHED);
	k.unheld.pid = pids[1];
	assert_int_equal(look(), LIEN_REST_FAR);
	assert_int_equal(resting.who, pids[1]);
	k.unheld.tid = 0;
	assert_int_equal(look(), LIEN_REST_REACHED);
}

/* The job is not at rest, and never will be: that is what is said. */
static void test_why_it_never_rests(void **state)
{
	(void)state;
	counted();
	k.uncovered = true;
	k.entered_ms[1] = k.counted_ms[1] = 1;
	assert_int_equal(look(), LIEN_REST_FAR);
	assert_string_equal(why, "uncovered");
}

/* Devices are asked in the way that spoils captures if none can be under way that nobody knows. */
static void test_captures_that_are_known(void **state)
{
	(void)state;
	counted();
	for (unsigned i = 0; i < RANKS; i++)
		process(pids[i])->t_first = 1;
	look();
	assert_true(resting.launches);
	process(pids[1])->incomplete = LIEN_INCOMPLETE_LOST;
	look();
	assert_false(resting.launches);
	process(pids[1])->incomplete = 0;
	process(pids[1])->t_first = 0;
	look();
	assert_false(resting.launches);
	process(pids[0])->captured = true; /* somebody may have to launch */
	look();
	assert_true(resting.launches);
}

/* Its memory is away since an earlier offload. */
static void test_nobody_is_let_in_to_what_is_away(void **state)
{
	(void)state;
	for (unsigned away = 0; away < 2; away++) {
		counted();
		buffer(2, 10, VA, PIECE);
		if (away)
			control_detach(2, VA, PIECE, 10, 1);
		assert_int_equal(lien_graph_process(graph, 2)->parked, away);
		k.broadcasts[0] = 3;
		k.broadcasts[1] = 1;
		k.held_ms[1] = 100000;
		k.device[0] = true;
		assert_int_equal(look() == LIEN_REST_NEAR, !away);
		assert_int_equal(k.let_in[1], !away);
		assert_int_equal(k.allowed[1], away ? 0 : 2);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

/* Memory of other communicators alone is away: nobody needs that here. */
static void test_others_are_away(void **state)
{
	(void)state;
	for (unsigned away = 0; away < 2; away++) {
		counted();
		buffer(2, 10, VA, PIECE);
		control_detach(2, VA, PIECE, 10, 1);
		tracked[1].gate_was_shut = true;
		tracked[1].gate_held.by_comm = 1;
		k.away = away;
		k.broadcasts[0] = 3;
		k.broadcasts[1] = 1;
		k.held_ms[1] = 100000;
		k.device[0] = true;
		assert_int_equal(look() == LIEN_REST_NEAR, !away);
		assert_int_equal(k.let_in[1], !away);
		assert_int_equal(k.allowed[1], away ? 0 : 2);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

/* Only what the earlier offload's gate holds waits for it: one for NCCL's memory alone holds
 * neither the calls in which ranks do not meet, nor those that begin a capture. */
static void test_others_are_held_for_this_offload(void **state)
{
	static const uint32_t calls[] = {LIEN_CALL_CU_MEM_CREATE, LIEN_CALL_CU_CAPTURE_BEGIN};

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		found();
		k.device[0] = true;
		k.held_ms[1] = 100000;
		k.call[1] = calls[i % 2];
		resting.levelling = true;
		tracked[1].gate_was_shut = true;
		tracked[1].gate_was_all = i / 2 == 1;
		tracked[1].gate_held.trusting = i / 2 == 2;
		look();
		assert_int_equal(k.let_in[1], !tracked[1].gate_was_all);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

/* What a gate holds of a process from which memory of a communicator is away. */
static void test_by_communicator(void **state)
{
	struct lien_process *process;
	struct lien_allocation *allocation;

	(void)state;
	counted();
	buffer(2, 10, VA, PIECE);
	process = lien_graph_process(graph, 2);
	allocation = LIST_FIRST(&process->owned);
	allocation->comm = RB_MIN(lien_comm_tree, &process->comms)->number;
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, -1); /* nothing is away, as far as is known */
	control_detach(2, VA, PIECE, 10, 1);
	tracked[1].link = link_of_rank_1;
	k.at_calls = true;
	for (unsigned away = 0; away < 2; away++) {
		k.away = away;
		k.gone = 0;
		lien_by_comm_set(&agent, 2);
		assert_int_equal(k.comms, 1);
		assert_int_equal(k.gone, away ? 4 : 5);
	}
	allocation->comm_inferred = true;
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, -1);
	allocation->comm_inferred = false;
	process->held_items = 1; /* what an earlier agent has moved is not known */
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, -1);
	process->held_items = 0;
	tracked[1].gate_all = true;
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, -1);
	tracked[1].gate_all = false;
	tracked[1].gate_mixed = true;
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, -1);
	tracked[1].gate_mixed = false;
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, 1);
	allocation->comm = 0;
	lien_by_comm_set(&agent, 2);
	assert_int_equal(k.comms, -1);
}

/* The same without counts. */
static void test_nobody_is_let_in_on_suspicion(void **state)
{
	(void)state;
	for (unsigned away = 0; away < 2; away++) {
		found();
		buffer(2, 10, VA, PIECE);
		if (away)
			control_detach(2, VA, PIECE, 10, 1);
		k.broadcasts[0] = k.broadcasts[1] = 1;
		k.held_ms[1] = 100000;
		k.device[0] = true;
		look();
		assert_int_equal(k.let_in[1], !away);
		assert_int_equal(resting.guesses, !away);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

/* Rather than one call at a time, it goes on to the next call in which ranks meet. */
static void test_those_held_elsewhere_make_the_gate_level_again(void **state)
{
	(void)state;
	found();
	k.held_ms[1] = 2;
	k.call[1] = LIEN_CALL_CU_MEM_CREATE;
	k.device[0] = true;
	assert_int_equal(look(), LIEN_REST_UNEVEN);
	assert_int_equal(k.let_in[1], 0);
	resting.levelling = true;
	k.held_ms[1] = 1; /* too short for a guess */
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[1], 1);
	tracked[1].gate_was_shut = tracked[1].gate_was_all = true; /* an earlier offload's */
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[1], 0);
	resting.levelling = false;
	k.held_ms[1] = 100000;
	assert_int_equal(look(), LIEN_REST_REACHED); /* once the devices are idle */
	assert_int_equal(k.let_in[1], 0);
}

/* Without counts, and with a device that stays busy, the ranks get more time each time. */
static void test_more_time_to_come_level(void **state)
{
	(void)state;
	found();
	k.device[0] = true;
	resting.levelling = true;
	for (resting.levels = 0; resting.levels < 3; resting.levels++) {
		resting.ns = (100ull << resting.levels) * MS;
		assert_int_equal(look(), LIEN_REST_NEAR);
		resting.ns++;
		assert_int_equal(look(), LIEN_REST_LEVEL);
	}
	k.working[1] = true; /* NCCL's threads must not be held */
	assert_int_equal(look(), LIEN_REST_NEAR);
}

/*
 * At the rest since which calls are counted, the root of a broadcast was done with it, and the
 * other rank had not begun it. So both seem to be level when the root waits in the next one.
 */
static void test_counts_since_a_rest_may_be_wrong(void **state)
{
	(void)state;
	found();
	k.broadcasts[0] = 5;
	lien_quiesce_rested(&agent, pids, RANKS);
	k.broadcasts[0] = 6;
	k.broadcasts[1] = 2;
	k.held_ms[1] = 1999;
	k.device[0] = true;
	look();
	assert_int_equal(k.let_in[1], 0);
	k.held_ms[1] = 2001;
	assert_int_equal(look(), LIEN_REST_NEAR);
	assert_int_equal(k.let_in[1], 1);
	assert_int_equal(resting.guesses, 1);
	k.device[1] = true; /* another of its threads waits */
	k.held_ms[1] = 3999;
	look();
	assert_int_equal(k.let_in[1], 0);
	k.held_ms[1] = 4001;
	look();
	assert_int_equal(k.let_in[1], 1);
}

/* Watched since different transfers, and level at the rest. */
static void test_transfers_since_a_rest(void **state)
{
	(void)state;
	found();
	k.transfers[0] = 5;
	k.transfers[1] = 3;
	lien_quiesce_rested(&agent, pids, RANKS);
	k.device[0] = true;
	look();
	assert_int_equal(k.allowed_transfers[0], 0);
	assert_int_equal(k.allowed_transfers[1], 0);
	k.transfers[0] = 7;
	look();
	assert_int_equal(k.allowed_transfers[0], 0);
	assert_int_equal(k.allowed_transfers[1], 2);
	k.transfers[0] = 5;
	k.transfers[1] = 4;
	look();
	assert_int_equal(k.allowed_transfers[0], 1);
	assert_int_equal(k.allowed_transfers[1], 0);
}

/* Counts since different rests cannot be compared. */
static void test_a_rest_without_some_ranks(void **state)
{
	(void)state;
	for (unsigned alone = 0; alone < RANKS; alone++) {
		found();
		lien_quiesce_rested(&agent, pids, RANKS);
		k.broadcasts[0] = k.broadcasts[1] = 5;
		lien_quiesce_rested(&agent, pids + alone, 1);
		k.broadcasts[0] = k.broadcasts[1] = 6;
		k.device[0] = true;
		look();
		assert_int_equal(k.allowed[0], 0);
		assert_int_equal(k.allowed[1], 0);
		lien_quiesce_rested(&agent, pids, RANKS);
		k.before = 6;
		k.broadcasts[1 - alone] = 8;
		look();
		assert_int_equal(k.allowed[alone], 2);
		assert_int_equal(k.allowed[1 - alone], 0);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

/* NCCL is not asked about a communicator that a thread may have freed by then. */
static void test_nobody_asks_about_what_ends(void **state)
{
	static const unsigned ends[] = {LIEN_CALL_NCCL_DESTROY, LIEN_CALL_NCCL_ABORT};
	uint64_t comms[4];

	(void)state;
	for (unsigned i = 0; i < COUNT(ends); i++) {
		struct lien_event ev = EVENT(ends[i], 2, .comm_end = {COMM});

		counted();
		comm_init(2, COMM + 1, 8, 0, 1);
		assert_int_equal(lien_quiesce_background(&agent, 2, comms, COUNT(comms)), 2);
		ev.tid = 2;
		ev.flags |= LIEN_EVENT_ENTRY;
		ev.t_return = 0;
		apply(&ev);
		k.held_ms[1] = 1; /* it has not begun */
		assert_int_equal(lien_quiesce_background(&agent, 2, comms, COUNT(comms)), 2);
		k.held_ms[1] = 0;
		assert_int_equal(lien_quiesce_background(&agent, 2, comms, COUNT(comms)), 1);
		assert_int_equal(comms[0], COMM + 1);
		assert_int_equal(lien_quiesce_background(&agent, 1, comms, COUNT(comms)), 1);
		end(state);
		assert_int_equal(setup(state), 0);
	}
}

int main(void)
{
#define QUIESCE(name) cmocka_unit_test_setup_teardown(name, setup, end)
	const struct CMUnitTest tests[] = {
		QUIESCE(test_no_rest_with_calls_allowed),
		QUIESCE(test_not_counted_yet),
		QUIESCE(test_flags_of_other_kernels),
		QUIESCE(test_meeting_without_a_count),
		QUIESCE(test_signals_that_come_late),
		QUIESCE(test_comes_during_the_look),
		QUIESCE(test_cannot_be_held),
		QUIESCE(test_why_it_never_rests),
		QUIESCE(test_captures_that_are_known),
		QUIESCE(test_nobody_is_let_in_to_what_is_away),
		QUIESCE(test_others_are_away),
		QUIESCE(test_others_are_held_for_this_offload),
		QUIESCE(test_by_communicator),
		QUIESCE(test_nobody_is_let_in_on_suspicion),
		QUIESCE(test_those_held_elsewhere_make_the_gate_level_again),
		QUIESCE(test_more_time_to_come_level),
		QUIESCE(test_counts_since_a_rest_may_be_wrong),
		QUIESCE(test_transfers_since_a_rest),
		QUIESCE(test_a_rest_without_some_ranks),
		QUIESCE(test_nobody_asks_about_what_ends),
	};

	return cmocka_run_group_tests_name("quiesce", tests, NULL, NULL);
}
