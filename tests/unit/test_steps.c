// SPDX-License-Identifier: BSD-2-Clause
/*
 * An unprivileged job chooses how many aliases, handles, exports, registrations and so on one
 * object has. Twice as many may cost twice the work, and no more. Work is counted, not timed: the
 * agent's pure part is compiled so that each basic block counts itself (tests/build.mk).
 */
#include "canonical.h"

#include <jansson.h>

#include "agent/plan/plan.h"
#include "agent/transaction/transaction.h"
#include "agent/reread/emit.h"
#include "agent/targets/targets.h"
#include "agent/views/views.h"

#define FEW	  512
#define RATIO_MAX 2.6 /* logarithms of these sizes add a tenth */
#define PEERS	  8

static uint64_t steps;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	steps++;
}

static struct lien_probe_open_file files[16 * FEW];
static unsigned files_count;

static uint64_t at(unsigned i)
{
	return VA + i * PIECE;
}

/* --- what a job does n times --------------------------------------------------------------------
 */

static void aliases(unsigned n)
{
	unsigned i;

	started(1);
	create(1, 10, PIECE);
	for (i = 0; i < n; i++)
		map_rw(1, at(i), PIECE, 10);
}

static void aliases_shared(unsigned n)
{
	unsigned i, peer;

	aliases(n);
	for (peer = 2; peer < 2 + PEERS; peer++) {
		started(peer);
		export(1, 10, peer);
		import(peer, 20, peer);
	}
	for (i = 0; i < n; i++)
		map_rw(2 + i % PEERS, at(i), PIECE, 20);
}

static void aliases_released(unsigned n)
{
	aliases(n);
	release(1, 10);
}

static void aliases_unmapped(unsigned n)
{
	unsigned i;

	aliases_released(n);
	for (i = 0; i < n; i++)
		unmap(1, at(i), PIECE);
}

static void aliases_parked(unsigned n)
{
	unsigned i;

	aliases(n);
	for (i = 0; i < n; i++)
		park(1, at(i), PIECE);
	control_release(1, 10);
}

/* Of memory that is mapped elsewhere, too, and which is not away whole. */
static void aliases_half_parked(unsigned n)
{
	unsigned i;

	aliases_shared(n);
	for (i = 0; i < n; i += 2)
		park(2 + i % PEERS, at(i), PIECE);
}

static void imports(unsigned n)
{
	unsigned i;

	started(1);
	started(2);
	buffer(1, 10, at(0), PIECE);
	export(1, 10, 5);
	for (i = 0; i < n; i++)
		import(2, 1000 + i, 5);
	map_rw(2, at(1), PIECE, 1000);
	for (i = 0; i < n; i++) /* each handle keeps its name while the memory is mapped */
		if (i % 2)
			release(2, 1000 + i);
}

static void imports_mapped_again(unsigned n)
{
	unsigned i;

	imports(n);
	for (i = 0; i < n; i++) {
		unmap(2, at(1), PIECE);
		map_rw(2, at(1), PIECE, 1000);
	}
}

static void exports(unsigned n)
{
	unsigned i;

	started(1);
	started(2);
	buffer(1, 10, at(0), PIECE);
	for (i = 0; i < n; i++) {
		export(1, 10, 5 + i);
		files[files_count++] =
			(struct lien_probe_open_file){.share = 5 + i, .pid = 1, .fd = i};
	}
	/* Held by nobody, and taken in again. */
	unmap(1, at(0), PIECE);
	release(1, 10);
	for (i = 0; i < n; i++) {
		import(2, 20, 5 + i);
		release(2, 20);
	}
	buffer(1, 11, at(0), PIECE);
	export(1, 11, 5 + n);
}

static void exports_restored(unsigned n)
{
	unsigned i;

	started(1);
	buffer(1, 10, at(0), PIECE);
	for (i = 0; i < n; i++)
		export(1, 10, 5 + i);
	tell.flags = LIEN_EVENT_CONTROL;
	for (i = 0; i < n; i++)
		export(1, 10, 5 + n + i);
	tell.flags = 0;
}

/* What was let go comes back among many others that were made since. */
static void let_go(unsigned n)
{
	unsigned i;

	started(1);
	started(2);
	create(1, 10, PIECE);
	export(1, 10, 5);
	import(2, 20, 5);
	release(2, 20);
	release(1, 10);
	for (i = 0; i < n; i++)
		buffer(1, 100 + i, at(i), PIECE);
	for (i = 0; i < n; i++) {
		import(2, 20, 5);
		release(2, 20);
	}
}

static void buffers(unsigned n)
{
	unsigned i;

	started(1);
	for (i = 0; i < n; i++)
		buffer(1, 100 + i, at(i), PIECE);
}

static void registrations(unsigned n)
{
	unsigned i;

	buffers(n);
	comm_init(1, 0x100, 7, 0, 1);
	for (i = 0; i < n; i++)
		comm_register(1, 0x100, at(i / 2), PIECE, 0x9000 + i);
}

static void deregistrations(unsigned n)
{
	unsigned i;

	registrations(n);
	for (i = 0; i < n; i++)
		comm_deregister(1, 0x100, 0x9000 + i);
}

static void cards(unsigned n)
{
	unsigned i;

	buffers(n);
	for (i = 0; i < n; i++)
		TELL(LIEN_CALL_IBV_REG_MR, 1,
			.reg = {.va = at(i), .bytes = PIECE, .handle = 0x9000 + i});
}

static void captures(unsigned n)
{
	unsigned i;

	started(1);
	for (i = 0; i < n; i++)
		capture_begin(1, 0x9000 + i);
	for (i = 0; i < n / 2; i++)
		capture_end(1, 0x9000 + i);
}

static void pools(unsigned n)
{
	unsigned i;

	started(1);
	for (i = 0; i < n; i++)
		TELL(LIEN_CALL_CU_POOL_CREATE, 1, .pool = {.pool = 0x9000 + i, .device = 0});
	for (i = 0; i < n; i++) {
		TELL(LIEN_CALL_CU_MEM_ALLOC_FROM_POOL, 1,
			.alloc = {at(i), PIECE, .device = -1, .pool = 0x9000 + i});
		TELL(LIEN_CALL_CU_POOL_EXPORT, 1, .pool = {.pool = 0x9000 + i, .share = 5 + i});
		files[files_count++] =
			(struct lien_probe_open_file){.share = 5 + i, .pid = 1, .fd = i};
	}
}

static void context(uint64_t value)
{
	TELL(LIEN_CALL_CU_CONTEXT_CREATE, 1, .context = {.context = value, .device = 0});
}

static void alloc_in(unsigned i, uint64_t value)
{
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1,
		.alloc = {.va = at(i), .bytes = PIECE, .device = 0, .context = value});
}

/* Each is destroyed with what was allocated in it, at an address behind all others. */
static void contexts(unsigned n)
{
	unsigned i;

	started(1);
	for (i = 0; i < n; i++)
		context(0x9000 + i);
	for (i = 0; i < n; i++)
		alloc_in(i, 0x9000 + i);
	for (i = 0; i < n; i++) {
		context(0x9000 + n);
		alloc_in(n, 0x9000 + n);
		RELEASE(LIEN_CALL_CU_CONTEXT_DESTROY, 1, .context = {.context = 0x9000 + n});
	}
}

static void comms(unsigned n)
{
	unsigned i;

	started(1);
	library(1, 0x7f0000000000ull, "libnccl.so.2");
	for (i = 0; i < n; i++) {
		comm_init(1, 0x100 + 8 * i, i, 0, 1);
		tell.outer = LIEN_CALL_NCCL_INIT_RANK;
		TELL(LIEN_CALL_CU_MEM_CREATE, 1, .scope = 0x100 + 8 * i,
			.create = {.handle = 100 + i, .bytes = PIECE, .prop = device_prop(0)});
		tell.outer = 0;
		map_rw(1, at(i), PIECE, 100 + i);
	}
	for (i = 0; i < n / 2; i++)
		comm_destroy(1, 0x100 + 8 * i);
}

/* Memory for communicators whose making is not seen to end. */
static void scopes(unsigned n)
{
	unsigned i;

	started(1);
	for (i = 0; i < n; i++) {
		tell.outer = LIEN_CALL_NCCL_INIT_RANK;
		TELL(LIEN_CALL_CU_MEM_CREATE, 1, .scope = LIEN_SCOPE_INIT | (1000000 + i),
			.create = {.handle = 100 + i, .bytes = PIECE, .prop = device_prop(0)});
		tell.outer = 0;
		map_rw(1, at(i), PIECE, 100 + i);
	}
}

static void libraries(unsigned n)
{
	char name[32];
	unsigned i;

	started(1);
	for (i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "lib%u.so", i);
		library(1, 0x7f0000000000ull + 2 * i * MIB, name);
	}
	for (i = 0; i < n; i++) {
		tell.caller = 0x7f0000000000ull + 2 * i * MIB + 64;
		buffer(1, 100 + i, at(i), PIECE);
	}
	tell.caller = 0;
	for (i = 0; i < n; i++) { /* each replaces the one before */
		snprintf(name, sizeof(name), "lib%u.so", i);
		library(1, 0x7e8000000000ull + i, name);
	}
}

/* Split off one parent, and never joined by the other rank. */
static void splits(unsigned n)
{
	unsigned i;

	started(1);
	comm_init(1, 0x100, 7, 0, 2);
	for (i = 0; i < n; i++)
		TELL(LIEN_CALL_NCCL_SPLIT, 1,
			.comm = {.comm = 0x200 + 8 * i, .parent = 0x100, .color = 0, .key = 0});
	for (i = 0; i < n / 2; i++)
		comm_destroy(1, 0x200 + 8 * i);
}

static void bindings(unsigned n)
{
	unsigned i;

	buffers(n);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1, .multicast = {.handle = 10, .bytes = n * PIECE});
	for (i = 0; i < n; i++)
		TELL(LIEN_CALL_CU_MULTICAST_BIND, 1,
			.multicast = {.handle = 10,
				.memory = 100 + i,
				.offset = i * PIECE,
				.bytes = PIECE});
	for (i = 0; i < n; i++) /* there is nothing of that device */
		TELL(LIEN_CALL_CU_MULTICAST_UNBIND, 1,
			.multicast = {.handle = 10, .device = 5, .offset = 0, .bytes = n * PIECE});
}

/* One call about all that is mapped, again and again. */
static void access_to_all(unsigned n)
{
	unsigned i;

	aliases(n);
	for (i = 0; i < n; i++)
		set_access(1, VA, n * PIECE, i % 4, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static void park_all(unsigned n)
{
	unsigned i;

	aliases(n);
	for (i = 0; i < n; i++)
		park(1, VA, n * PIECE);
}

static void dmabufs_of_all(unsigned n)
{
	unsigned i;

	aliases(n);
	for (i = 0; i < n; i++)
		TELL(LIEN_CALL_CU_RANGE_HANDLE, 1,
			.range_handle = {.va = VA, .bytes = n * PIECE, .handle_type = 1, .fd = 3});
}

/* Handles whose values are given out again, while an unmap of much else is under way. */
static void unmaps_under_way(unsigned n)
{
	struct lien_event unmap_others =
		entry_of(EVENT(LIEN_CALL_CU_MEM_UNMAP, 1, .range = {at(n), n * PIECE}));
	unsigned i;

	started(1);
	create(1, 10, PIECE);
	for (i = 0; i < n; i++)
		map_rw(1, at(i), PIECE, 10);
	create(1, 11, PIECE);
	for (i = 0; i < n; i++)
		map_rw(1, at(n + i), PIECE, 11);
	apply(&unmap_others);
	for (i = 0; i < n; i++) {
		create(1, 10, PIECE);
		map_rw(1, at(2 * n + i), PIECE, 10);
	}
}

/* The control library puts back memory that is another's by now, which was put back before. */
static void revived_again(unsigned n)
{
	unsigned i;

	aliases(n);
	for (i = 0; i < n; i++) {
		create(1, 1000 + i, PIECE);
		map_rw(1, at(n + i), PIECE, 1000 + i);
		park(1, at(n + i), PIECE);
		tell.flags = LIEN_EVENT_CONTROL;
		map(1, at(n + i), PIECE, 10);
		tell.flags = 0;
	}
}

static void processes(unsigned n)
{
	unsigned i;

	for (i = 1; i <= n; i++) {
		started(i);
		TELL(LIEN_EVENT_LOST, i, .lost = {1});
		buffer(i, 10, VA, PIECE);
		export(i, 10, i);
		files[files_count++] = (struct lien_probe_open_file){.share = i, .pid = i, .fd = 3};
	}
}

/* A job of many ranks, each of which has the memory of its neighbour. */
static void neighbours(unsigned n)
{
	unsigned i;

	for (i = 1; i <= n; i++) {
		started(i);
		buffer(i, 10, VA, PIECE);
		export(i, 10, i);
	}
	for (i = 1; i <= n; i++)
		imported_buffer(i, 11, i % n + 1, VA + PIECE, PIECE);
	for (i = 1; i <= n; i++)
		park(i, VA + PIECE, PIECE);
}

/* --- what is asked then -------------------------------------------------------------------------
 */

static struct lien_selection everything(void)
{
	return (struct lien_selection){.open = files, .open_count = files_count};
}

static void plan_with(const struct lien_selection *selection)
{
	struct lien_plan plan;
	char error[400];

	if (!lien_plan_offload(graph, selection, &plan, error, sizeof(error)))
		lien_plan_clear(&plan);
}

static void ask_plan(unsigned n)
{
	struct lien_selection selection = everything();

	(void)n;
	plan_with(&selection);
}

/* n processes by their numbers, and as many owners whose memory is not worth saving. */
static void ask_plan_named(unsigned n)
{
	struct lien_selection selection = everything();
	struct lien_discard *discard = calloc(n, sizeof(*discard));
	uint32_t *pids = calloc(n, sizeof(*pids));
	unsigned i;

	for (i = 0; i < n; i++) {
		pids[i] = process(i + 1) ? i + 1 : 1;
		discard[i].owner = i & 1 ? "nccl" : "unknown";
	}
	selection.pids = pids;
	selection.pids_count = n;
	selection.with_closure = true;
	plan_with(&selection);
	selection.discard = discard;
	selection.discard_count = n;
	plan_with(&selection);
	free(pids);
	free(discard);
}

static void ask_plan_restore(unsigned n)
{
	uint32_t *all = calloc(lien_graph_stats(graph)->processes + 1, sizeof(*all));

	(void)n;
	lien_plan_restore(graph, &(struct lien_selection){0}, all);
	free(all);
}

static void ask_ps(unsigned n)
{
	(void)n;
	json_decref(lien_view_ps(graph, NULL));
}

static void ask_ps_of_other(unsigned n)
{
	const struct lien_viewer other = {.one_user = true, .uid = 4711};

	(void)n;
	json_decref(lien_view_ps(graph, &other));
	json_decref(lien_view_mem(graph, &other, LIEN_MEM_BY_KIND, 0, NULL));
	json_decref(lien_view_graph(graph, &other));
}

static void ask_mem(unsigned n)
{
	(void)n;
	json_decref(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
}

static void ask_mem_by(unsigned n)
{
	enum lien_mem_by by;

	(void)n;
	for (by = LIEN_MEM_BY_OWNER; by <= LIEN_MEM_BY_CALLSITE; by++)
		json_decref(lien_view_mem(graph, NULL, by, 0, NULL));
}

static void ask_graph(unsigned n)
{
	(void)n;
	json_decref(lien_view_graph(graph, NULL));
}

static void ask_comms(unsigned n)
{
	(void)n;
	json_decref(lien_view_comms(graph, NULL, NULL, 0, false, now));
}

static void ask_holders(unsigned n)
{
	const struct lien_view_files open = {files, files_count, true};
	char error[200];

	(void)n;
	json_decref(lien_view_holders(graph, NULL, 1, VA, &open, error, sizeof(error)));
}

static void ask_check(unsigned n)
{
	const struct lien_view_source input = {
		.graph = graph, .now_ns = now, .files = {files, files_count, true}};

	(void)n;
	json_decref(lien_findings(&input));
}

static int nothing(void *context, const struct lien_event *event)
{
	(void)context, (void)event;
	return 0;
}

static void ask_dump(unsigned n)
{
	(void)n;
	lien_graph_dump(graph, nothing, NULL);
}

static int load(void *other, const struct lien_event *event)
{
	assert_int_equal(lien_graph_apply(other, event), 0);
	return 0;
}

static void ask_load(unsigned n)
{
	struct lien_graph *other;

	(void)n;
	assert_int_equal(lien_graph_new(&other), 0);
	lien_graph_dump(graph, load, other);
	lien_graph_free(other);
}

static void ask_adoption(unsigned n)
{
	struct lien_adoption adoption;
	struct lien_process *each;
	uint32_t *pids = calloc(lien_graph_stats(graph)->processes + 1, sizeof(*pids));
	unsigned count = 0;

	(void)n;
	for (each = lien_graph_first(graph); each; each = lien_graph_next(each))
		pids[count++] = each->pid;
	if (!lien_adoption_begin(graph, pids, count, &adoption))
		lien_adoption_plan(graph, &adoption);
	lien_adoption_clear(&adoption);
	free(pids);
}

static void tell_nobody(void *context, struct lien_event *event)
{
	(void)context, (void)event;
}

/* Nothing of what the graph has is there, and as much that it does not have. */
static void ask_reread(unsigned n)
{
	struct lien_wire_found found = {.bytes = PIECE,
		.kind = LIEN_WIRE_AREA,
		.prop_type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE};
	struct lien_emitter emitter = {now, tell_nobody, NULL};
	struct lien_reread reread = {0};
	unsigned i;
	int more = 1;

	if (!process(1))
		return;
	lien_reread_want(&reread, VA, 16 * n * PIECE, LIEN_WIRE_AREA);
	lien_reread_want_known(&reread, process(1));
	while (more > 0) {
		lien_reread_begin(&reread, process(1));
		for (i = 0; i < n; i++) {
			found.va = at(8 * n + i);
			found.handle = 0x770000 + i;
			lien_reread_found(&reread, &found, 1);
		}
		more = lien_reread_end(&reread, process(1));
	}
	lien_reread_learn(&reread, process(1), &emitter);
	lien_reread_repair(&reread, graph, process(1), &emitter);
	lien_reread_clear(&reread);
}

static void end_all(unsigned n)
{
	struct lien_process *first;

	(void)n;
	while ((first = lien_graph_first(graph)))
		ended(first->pid);
}

/* --- counting -----------------------------------------------------------------------------------
 */

static const struct scenario {
	const char *name;
	void (*run)(unsigned n);
} scenarios[] =
	{
#define SCENARIO(name)                                                                             \
	{                                                                                          \
#name, name                                                                        \
	}
		SCENARIO(aliases),
		SCENARIO(aliases_shared),
		SCENARIO(aliases_released),
		SCENARIO(aliases_unmapped),
		SCENARIO(aliases_parked),
		SCENARIO(aliases_half_parked),
		SCENARIO(imports),
		SCENARIO(imports_mapped_again),
		SCENARIO(exports),
		SCENARIO(exports_restored),
		SCENARIO(let_go),
		SCENARIO(buffers),
		SCENARIO(registrations),
		SCENARIO(deregistrations),
		SCENARIO(cards),
		SCENARIO(captures),
		SCENARIO(pools),
		SCENARIO(contexts),
		SCENARIO(comms),
		SCENARIO(scopes),
		SCENARIO(libraries),
		SCENARIO(splits),
		SCENARIO(bindings),
		SCENARIO(access_to_all),
		SCENARIO(park_all),
		SCENARIO(dmabufs_of_all),
		SCENARIO(unmaps_under_way),
		SCENARIO(revived_again),
		SCENARIO(processes),
		SCENARIO(neighbours),
},
  questions[] = {
	  {"plan", ask_plan},
	  {"plan --pid --discard", ask_plan_named},
	  {"plan of a restore", ask_plan_restore},
	  {"ps", ask_ps},
	  {"ps, mem, graph of another user", ask_ps_of_other},
	  {"mem", ask_mem},
	  {"mem --by", ask_mem_by},
	  {"graph", ask_graph},
	  {"comms", ask_comms},
	  {"holders", ask_holders},
	  {"check", ask_check},
	  {"dump", ask_dump},
	  {"load", ask_load},
	  {"adoption", ask_adoption},
	  {"reread", ask_reread},
	  {"exit", end_all},
};

static uint64_t counted(void (*run)(unsigned n), unsigned n)
{
	steps = 0;
	run(n);
	return steps;
}

/* Of one scenario: applying its events, and each question. */
static void count(const struct scenario *scenario, unsigned n, uint64_t *cost)
{
	unsigned i;

	assert_int_equal(setup(NULL), 0);
	files_count = 0;
	cost[0] = counted(scenario->run, n);
	for (i = 0; i < COUNT(questions); i++)
		cost[1 + i] = counted(questions[i].run, n);
	teardown(NULL);
}

static void test_work_grows_with_what_is_there(void **state)
{
	uint64_t few[1 + COUNT(questions)], many[1 + COUNT(questions)];
	unsigned i, j, bad = 0;

	(void)state;
	for (i = 0; i < COUNT(scenarios); i++) {
		count(&scenarios[i], FEW, few);
		count(&scenarios[i], 2 * FEW, many);
		for (j = 0; j < COUNT(few); j++) {
			assert_true(few[j] > 0);
			if (many[j] <= RATIO_MAX * few[j])
				continue;
			print_error("%s, %s: %llu steps for %u, %llu for %u: %.2f times\n",
				scenarios[i].name, j ? questions[j - 1].name : "applied",
				(unsigned long long)few[j], FEW, (unsigned long long)many[j],
				2 * FEW, (double)many[j] / few[j]);
			bad++;
		}
	}
	assert_int_equal(bad, 0);
}

/* --- targets ------------------------------------------------------------------------------------
 */

static uint64_t transfers(
	void *context, const struct lien_standing *standing, uint32_t peer, bool receives)
{
	(void)context, (void)standing, (void)peer, (void)receives;
	return 1;
}

/* Shapes of a job of two processes with n communicators and n threads that are held. */
#define ONE_GROUP 1
#define TRANSFERS 2
#define ONE_COMM  4 /* of the threads */
#define COUNTED	  8
#define SHAPES	  16

static uint64_t targets_cost(unsigned shape, unsigned n)
{
	struct lien_standing *standings = calloc(n, sizeof(*standings));
	struct lien_held_thread *held = calloc(n, sizeof(*held));
	uint8_t(*groups)[LIEN_TARGETS_GROUP] = calloc(n, sizeof(*groups));
	struct lien_targets_process of[2];
	const bool busy[2] = {true};
	struct lien_targets targets = {.standings = standings,
		.standings_count = n,
		.order = calloc(2 * n, sizeof(*targets.order)),
		.held = held,
		.held_count = n,
		.of = of,
		.busy = busy,
		.processes = 2,
		.transfers = transfers};

	for (unsigned i = 0; i < n; i++) {
		memcpy(groups[i], &i, sizeof(i));
		standings[i] = (struct lien_standing){.process = i % 2,
			.comm = 1 + i,
			.group = groups[shape & ONE_GROUP ? 0 : i / 2],
			.rank = i,
			.counted = shape & COUNTED,
			.transfers = shape & TRANSFERS,
			.collectives = i};
		held[i] = (struct lien_held_thread){.process = i % 2,
			.comm = shape & ONE_COMM ? 1 + i % 2 : 1 + i,
			.peer = i + 1,
			.at = shape & TRANSFERS ? LIEN_HELD_SEND : LIEN_HELD_COLLECTIVE};
	}
	steps = 0;
	if (!lien_targets_compute(&targets))
		lien_targets_guess(&targets);
	for (unsigned i = 0; i < n; i++) {
		lien_targets_more(&targets, &standings[i], LIEN_HELD_COLLECTIVE, 0);
		for (unsigned j = 0; j < lien_targets_pairs(&standings[i]); j++)
			lien_targets_more(&targets, &standings[i], LIEN_HELD_SEND,
				standings[i].peers[j]->rank);
	}
	free(targets.order);
	free(groups);
	free(held);
	free(standings);
	return steps;
}

/* Of a job that is brought to rest the agent does this every millisecond. */
static void test_work_of_targets(void **state)
{
	(void)state;
	for (unsigned shape = 0; shape < SHAPES; shape++) {
		uint64_t few = targets_cost(shape, FEW), many = targets_cost(shape, 2 * FEW);

		assert_true(few > 0);
		if (many > RATIO_MAX * few)
			fail_msg("shape %u: %llu steps for %u, %llu for %u", shape,
				(unsigned long long)few, FEW, (unsigned long long)many, 2 * FEW);
	}
}

/* --- what processes say that they hold ----------------------------------------------------------
 */

#define LISTERS 64
#define BATCH	16

static struct {
	struct lien_wire_header order[LISTERS]; /* the last one of each process, by its pid */
	uint64_t next;
} said;

static int note_order(void *context, uint32_t pid, const struct lien_wire_header *order,
	const void *body, const int *fds, unsigned fds_count)
{
	(void)context, (void)body, (void)fds, (void)fds_count;
	said.order[pid - 1] = *order;
	return 0;
}

static void no_progress(void *context, enum lien_phase phase, unsigned done, unsigned of)
{
	(void)context, (void)phase, (void)done, (void)of;
}

static void no_end(void *context, struct lien_transaction *transaction)
{
	(void)context, (void)transaction;
}

static bool is_there(void *context, uint32_t pid, uint64_t start)
{
	(void)context, (void)pid, (void)start;
	return true;
}

static uint64_t any_time(void *context)
{
	(void)context;
	return 1;
}

static void say(
	struct lien_transaction *t, uint32_t pid, unsigned flags, const void *body, size_t size)
{
	struct lien_wire_header header = said.order[pid - 1];

	header.flags = flags;
	header.length = sizeof(header) + size;
	lien_transaction_reply(t, pid, &header, body, NULL, 0);
}

/* Memory that no other process has, of a team of its own. */
static void say_items(struct lien_transaction *t, uint32_t pid, unsigned n)
{
	struct lien_wire_item items[BATCH];
	unsigned i;

	memset(items, 0, sizeof(items));
	for (i = 0; i < n; i++) {
		items[i % BATCH].token = items[i % BATCH].team = ++said.next;
		items[i % BATCH].flags = LIEN_WIRE_OWNED;
		if (i % BATCH == BATCH - 1)
			say(t, pid, 0, items, sizeof(items));
	}
}

/* Devices that no other process has, one perhaps with too little room. */
static void say_rooms(struct lien_transaction *t, uint32_t pid, bool too_little)
{
	struct lien_wire_room rooms[LIEN_WIRE_DEVICES];

	memset(rooms, 0, sizeof(rooms));
	for (unsigned i = 0; i < LIEN_WIRE_DEVICES; i++) {
		said.next++;
		memcpy(rooms[i].uuid, &said.next, sizeof(said.next));
		rooms[i].needed = too_little && i == LIEN_WIRE_DEVICES - 1;
	}
	say(t, pid, LIEN_WIRE_ROOM, rooms, sizeof(rooms));
}

/* Of a restore for the first process, when all have said what they hold. */
static uint64_t restore_cost(unsigned processes, unsigned items, bool rooms)
{
	const struct lien_transaction_ops ops = {.send = note_order,
		.progress = no_progress,
		.done = no_end,
		.alive = is_there,
		.now_ns = any_time};
	struct lien_transaction *t;
	uint32_t pids[LISTERS], pid;

	memset(&said, 0, sizeof(said));
	for (pid = 1; pid <= processes; pid++)
		pids[pid - 1] = pid;
	assert_int_equal(
		lien_transaction_new(&t, LIEN_TRANSACTION_RESTORE, pids, processes, 1000, &ops), 0);
	assert_int_equal(
		lien_transaction_choose(t, pids, rooms ? processes : 1, NULL, 0, NULL, 0), 0);
	steps = 0;
	lien_transaction_start(t);
	for (pid = 1; pid <= processes; pid++) {
		say_items(t, pid, items);
		if (rooms)
			say_rooms(t, pid, pid > processes / 2);
		say(t, pid, LIEN_WIRE_LAST, NULL, 0);
	}
	lien_transaction_free(t);
	return steps;
}

/* The agent's loop waits for it, and each process says what it likes. */
static void test_work_of_restore(void **state)
{
	uint64_t few, many;

	(void)state;
	few = restore_cost(2, 4 * FEW, false);
	many = restore_cost(2, 8 * FEW, false);
	if (many > RATIO_MAX * few)
		fail_msg("memory: %llu steps, %llu for twice as much", (unsigned long long)few,
			(unsigned long long)many);
	/* Who is left out is compared with all others. */
	few = restore_cost(LISTERS / 2, BATCH, true);
	many = restore_cost(LISTERS, BATCH, true);
	if (many > 2 * RATIO_MAX * few)
		fail_msg("devices: %llu steps, %llu for twice as many processes",
			(unsigned long long)few, (unsigned long long)many);
}

/* --- one event ----------------------------------------------------------------------------------
 */

static void exit_at_once(unsigned n)
{
	(void)n;
	ended(1);
}

static void unmap_at_once(unsigned n)
{
	unmap(1, VA, n * PIECE);
}

static void release_at_once(unsigned n)
{
	(void)n;
	release(1, 10);
}

static void create_exported(unsigned handle, unsigned first, unsigned n)
{
	unsigned i;

	create(1, handle, PIECE);
	tell.flags = LIEN_EVENT_IMPORTED;
	for (i = 0; i < n; i++)
		export(1, handle, first + i);
	tell.flags = 0;
}

/* It was handed out and let go, and is about to be forgotten. */
static void let_go_long_ago(unsigned n)
{
	unsigned i;

	started(1);
	create_exported(11, 5, n);
	release(1, 11);
	for (i = 1; i < LIEN_LET_GO_MAX; i++) {
		create_exported(11, 5 + n + i, 1);
		release(1, 11);
	}
	create_exported(10, 5 + n + i, 1);
}

static const struct {
	const char *name;
	void (*make)(unsigned n);
	void (*event)(unsigned n);
} large[] = {
	{"exit", aliases, exit_at_once},
	{"exit with buffers", buffers, exit_at_once},
	{"exit with registrations", cards, exit_at_once},
	{"unmap", aliases, unmap_at_once},
	{"release, by which exports are forgotten", let_go_long_ago, release_at_once},
};

#define SLICE 256

static void test_no_event_is_long(void **state)
{
	uint64_t first, most;
	unsigned i, slices;

	(void)state;
	for (i = 0; i < COUNT(large); i++) {
		assert_int_equal(setup(NULL), 0);
		large[i].make(16 * FEW);
		lien_graph_be_patient(graph);
		first = counted(large[i].event, 16 * FEW);
		most = 0;
		for (slices = 0; lien_graph_unfinished(graph); slices++) {
			steps = 0;
			lien_graph_finish(graph, SLICE);
			most = steps > most ? steps : most;
		}
		print_message("%s: %llu steps, then %u times up to %llu\n", large[i].name,
			(unsigned long long)first, slices, (unsigned long long)most);
		/* Logarithms, and what a tree does to stay level. */
		assert_true(first < 200 * LIEN_AT_ONCE);
		assert_true(most < 200 * SLICE);
		teardown(NULL);
	}
}

/* It is the same in the end; also if the next event comes before that. */
static void test_finished_or_not(void **state)
{
	char *whole, *text;
	unsigned i, j;

	(void)state;
	for (i = 0; i < COUNT(large); i++)
		for (j = 0, whole = NULL; j < 3; j++) {
			assert_int_equal(setup(NULL), 0);
			large[i].make(8 * FEW);
			if (j)
				lien_graph_be_patient(graph);
			large[i].event(8 * FEW);
			while (j == 1 && !lien_graph_finish(graph, 100))
				;
			started(9);
			text = canonical(graph);
			if (!whole)
				whole = text;
			else
				assert_string_equal(text, whole);
			if (j)
				free(text);
			if (j == 2)
				free(whole);
			teardown(NULL);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_work_grows_with_what_is_there),
		cmocka_unit_test(test_work_of_targets),
		cmocka_unit_test(test_work_of_restore),
		cmocka_unit_test(test_no_event_is_long),
		cmocka_unit_test(test_finished_or_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
