// SPDX-License-Identifier: BSD-2-Clause
/* agent/quiesce/gate.h: a gate that the kernel does not make in time is not taken for one. */
#include "agent/core/proc.h"
#include "agent/link/link.h"
#include "agent/quiesce/gate.h"
#include "agent/server/server.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"
#include "events.h"

#define PID 1

/* What the kernel side has. */
static struct {
	bool prepared, exists, is_shut;
	struct lien_probe_gate gate;
	struct lien_probe_shut shut;
	unsigned files;	 /* that the process has mapped, */
	unsigned gated;	 /* and of which the gate has the first */
	unsigned failed; /* attempts that are to fail, and how */
	int err;
	struct lien_probe_held held[4]; /* its threads, by tid; .tid 0: it is not held any more */
} k;

/* What the process has been told. */
static struct {
	unsigned orders, let_go;
} told;

static struct lien_link to;
static struct lien_agent agent;
static struct lien_tracked tracked;
static char why[200];

uint64_t lien_now_ns(void)
{
	return 1;
}

void lien_log(int level, const char *format, ...)
{
	assert_in_range(level, 3, 6);
	assert_non_null(format);
}

const char *lien_calls_name(unsigned number)
{
	(void)number;
	return "ncclBroadcast";
}

enum lien_library lien_library_of(const char *path)
{
	(void)path;
	return LIEN_LIB_CUDA;
}

bool lien_proc_runs(uint32_t pid, uint64_t start)
{
	(void)start;
	return pid == PID;
}

int lien_link_state(
	uint32_t pid, const struct lien_control_place *place, struct lien_control_state *state)
{
	(void)pid, (void)place, (void)state;
	return 0;
}

int lien_link_send(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count)
{
	(void)asker, (void)fds, (void)fds_count;
	if (order->arg != LIEN_WIRE_GATE_PASS)
		return 0;
	assert_non_null(body);
	if (link->asked)
		return -EBUSY;
	link->asked = LIEN_ASK_GATE;
	told.orders++;
	told.let_go += (order->length - sizeof(*order)) / sizeof(uint32_t);
	return 0;
}

bool lien_probes_comm_away(const struct lien_probes *probes, uint32_t pid, uint64_t comm)
{
	(void)probes, (void)pid;
	return comm == 1;
}

int lien_maps_read_code(pid_t pid, lien_maps_fn fn, void *arg)
{
	struct lien_maps_entry entry = {.executable = true, .path = "/libcuda.so.1"};

	assert_int_equal(pid, PID);
	for (entry.start = 0; entry.start < k.files; entry.start++)
		assert_int_equal(fn(&entry, arg), 0);
	return 0;
}

int lien_maps_open_path(pid_t pid, const struct lien_maps_entry *entry, char *path, size_t size)
{
	(void)pid;
	snprintf(path, size, "%u", (unsigned)entry->start);
	return 0;
}

bool lien_probes_process(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_process *process)
{
	(void)probes, (void)pid;
	*process = (struct lien_probe_process){0};
	return true;
}

int lien_probes_gate_prepare(struct lien_probes *probes, uint32_t pid, uint64_t start, bool shared)
{
	(void)probes, (void)pid, (void)start, (void)shared;
	k.prepared = true;
	return 0;
}

bool lien_probes_gate_ready(const struct lien_probes *probes, uint32_t pid)
{
	(void)probes, (void)pid;
	return true;
}

int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all, bool wait)
{
	const unsigned file = atoi(path);

	(void)probes, (void)pid, (void)library, (void)all, (void)wait;
	assert_true(k.prepared);
	if (file < k.gated)
		return 0;
	if (k.failed) {
		k.failed--;
		return k.err;
	}
	k.gated = file + 1;
	return 0;
}

int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	(void)probes, (void)pid, (void)start;
	if (k.exists)
		return 0;
	k.exists = true;
	return 1;
}

bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate)
{
	(void)probes, (void)pid;
	*gate = k.gate;
	return k.exists;
}

bool lien_probes_gate_holds(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_shut *range)
{
	(void)probes, (void)pid;
	*range = k.shut;
	return k.is_shut;
}

int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid,
	const struct lien_probe_shut *range, const struct lien_probe_shut *before)
{
	(void)probes, (void)pid, (void)before;
	k.shut = *range;
	k.is_shut = true;
	return 0;
}

int lien_probes_allow_none(struct lien_probes *probes)
{
	(void)probes;
	return 0;
}

void lien_probes_gate_nccl_alone(struct lien_probes *probes, uint32_t pid)
{
	(void)probes, (void)pid;
}

void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid)
{
	(void)probes, (void)pid;
	k.held[tid].tid = 0;
}

void lien_probes_ungate(struct lien_probes *probes, uint32_t pid, bool ends)
{
	(void)probes, (void)pid, (void)ends;
	k.prepared = k.exists = k.is_shut = false;
	k.gated = 0;
}

void lien_probes_gate_tick(struct lien_probes *probes)
{
	(void)probes;
}

const struct lien_probes_facts *lien_probes_facts(const struct lien_probes *probes)
{
	static struct lien_probes_facts facts;

	(void)probes;
	facts.gates = k.prepared;
	return &facts;
}

int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context)
{
	struct lien_probe_held_key key = {.pid = PID};
	int err = 0;

	(void)probes;
	for (; key.tid < COUNT(k.held) && !err; key.tid++)
		if (k.held[key.tid].tid)
			err = fn(context, &key, &k.held[key.tid]);
	return err;
}

static struct lien_process *begin(void)
{
	struct lien_process *process;

	memset(&k, 0, sizeof(k));
	memset(&told, 0, sizeof(told));
	k.files = 1;
	started(PID);
	agent.graph = graph;
	tracked = (struct lien_tracked){.agent = &agent, .pid = PID};
	process = lien_graph_process(graph, PID);
	process->agent = &tracked;
	return process;
}

static void is_held(void)
{
	assert_int_equal(k.gated, k.files);
	assert_true(k.exists && k.is_shut);
	assert_int_equal(k.shut.low, 0);
	assert_int_equal(k.shut.high, UINT64_MAX);
}

/* Memory of it is away, and nothing is left of an earlier agent's gate. */
static void test_found_away(void **state)
{
	static const int errors[] = {-EINPROGRESS, -ETIMEDOUT};

	(void)state;
	for (unsigned i = 0; i < COUNT(errors); i++) {
		struct lien_process *process = begin();

		k.failed = 3;
		k.err = errors[i];
		lien_gate_found(&agent, process, true, true);
		assert_false(k.is_shut);
		for (unsigned tick = 0; tick < 5; tick++)
			lien_gate_tick(&agent);
		is_held();
		lien_gate_found(&agent, process, false, true);
		lien_gate_tick(&agent);
		assert_false(k.is_shut || k.exists);
	}
}

/* It is back before the gate could be made. */
static void test_found_and_restored(void **state)
{
	struct lien_process *process = begin();

	(void)state;
	k.failed = 2;
	k.err = -EINPROGRESS;
	lien_gate_found(&agent, process, true, true);
	assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_OPEN, why, sizeof(why)), 0);
	for (unsigned tick = 0; tick < 5; tick++)
		lien_gate_tick(&agent);
	assert_false(k.is_shut || k.exists);
}

/* A library that the process loads counts only once the gate is on it. */
static void test_covers_what_is_loaded(void **state)
{
	static const int errors[] = {-EINPROGRESS, -EMFILE};

	(void)state;
	for (unsigned i = 0; i < COUNT(errors); i++) {
		begin();
		assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_MAKE, why, sizeof(why)), 0);
		assert_true(lien_gate_covers(&agent, PID, &k.gate, why, sizeof(why)));
		k.files++;
		k.gate.mapped++;
		k.failed = 3;
		k.err = errors[i];
		for (unsigned look = 0; look < 3; look++) {
			assert_false(lien_gate_covers(&agent, PID, &k.gate, why, sizeof(why)));
			assert_int_equal(
				lien_gate_step(&agent, PID, LIEN_GATE_HOLDS, why, sizeof(why)),
				-EAGAIN);
		}
		assert_int_equal(k.gated, 1);
		assert_false(lien_gate_covers(&agent, PID, &k.gate, why, sizeof(why)));
		assert_int_equal(k.gated, 2);
		assert_true(lien_gate_covers(&agent, PID, &k.gate, why, sizeof(why)));
	}
}

/* One that it loads while its memory is away, too. */
static void test_loads_while_away(void **state)
{
	struct lien_process *process = begin();

	(void)state;
	process->presence = LIEN_CONTROL_READY;
	assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_MAKE, why, sizeof(why)), 0);
	assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_SHUT, why, sizeof(why)), 0);
	k.files++;
	k.gate.mapped++;
	k.failed = 2;
	k.err = -EINPROGRESS;
	for (unsigned tick = 0; tick < 3; tick++)
		lien_gate_tick(&agent);
	assert_int_equal(k.gated, 2);
	assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_HOLDS, why, sizeof(why)), 0);
}

static void hold(unsigned tid, uint32_t call, uint64_t comm, uint32_t flags)
{
	k.held[tid] = (struct lien_probe_held){
		.call = call, .comm = comm, .flags = flags, .tid = 100 + tid};
}

/* The gate changes twice in one turn of the loop, and the process can be told only once: nobody is
 * taken for let go who was not. */
static void test_those_it_holds_no_more(void **state)
{
	(void)state;
	begin();
	tracked.link = &to;
	assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_MAKE, why, sizeof(why)), 0);
	assert_int_equal(lien_gate_step(&agent, PID, LIEN_GATE_SHUT, why, sizeof(why)), 0);
	hold(0, LIEN_CALL_NCCL_ALL_REDUCE, 1, LIEN_PROBE_HELD_MEETS); /* that is away */
	hold(1, LIEN_CALL_CU_CAPTURE_BEGIN, 0, LIEN_PROBE_HELD_MEETS);
	hold(2, LIEN_CALL_NCCL_ALL_REDUCE, 2, LIEN_PROBE_HELD_MEETS);
	lien_gate_let_go(&agent, &tracked);
	assert_int_equal(told.orders, 0); /* it holds them all */
	lien_gate_stays(&agent, PID);
	lien_gate_let_go(&agent, &tracked);
	assert_int_equal(told.orders, 1);
	assert_int_equal(told.let_go, 1);
	assert_int_equal(k.held[1].tid, 0);
	k.shut.by_comm = 1;
	lien_gate_let_go(&agent, &tracked);
	lien_gate_tick(&agent);
	assert_int_equal(told.orders, 1);
	assert_int_equal(k.held[2].tid, 102); /* still known */
	to.asked = LIEN_ASK_NOBODY;
	lien_gate_tick(&agent);
	assert_int_equal(told.let_go, 2);
	assert_int_equal(k.held[2].tid, 0);
	to.asked = LIEN_ASK_NOBODY;
	lien_gate_tick(&agent);
	assert_int_equal(told.orders, 2);
	assert_int_equal(k.held[0].tid, 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_found_away),
		TEST(test_found_and_restored),
		TEST(test_covers_what_is_loaded),
		TEST(test_loads_while_away),
		TEST(test_those_it_holds_no_more),
	};

	return cmocka_run_group_tests_name("gate", tests, NULL, NULL);
}
