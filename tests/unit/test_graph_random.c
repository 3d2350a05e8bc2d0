// SPDX-License-Identifier: BSD-2-Clause
/*
 * Random jobs: three processes with two threads each make whatever calls are legal, the steps of
 * their calls mixed; the graph must be what the driver model is whenever all have returned. The
 * same for a second graph, which joins at some moment by a dump of the first one. And a dump tells
 * all.
 *
 * LIEN_SEED repeats a run, LIEN_SEQUENCES sets how many jobs.
 */

#include "canonical.h"
#include "driver.h"
#include "tests/unit/seeds.h"

#define THREADS 2
#define BURSTS	5

struct thread {
	bool busy;
	struct call call;
	unsigned step;
};

/* What calls under way use (counts), and what they are about to give back. */
struct in_use {
	unsigned handle[HANDLES], releasing[HANDLES];
	unsigned acquired[HANDLES]; /* references that nobody knows of yet */
	bool range_new[RANGES], place_new[RANGES][PLACES];
	bool comm_new[COMMS], registered_new[COMMS][REGISTERED];
	unsigned range[RANGES], place[RANGES][PLACES];
	bool range_goes[RANGES], place_goes[RANGES][PLACES];
	unsigned comm[COMMS];
	bool comm_goes[COMMS], registered_goes[COMMS][REGISTERED];
	unsigned opening[RANGES], closing[RANGES];
	bool pool_new[POOLS], pool_goes[POOLS];
	bool context_new[CONTEXTS], context_goes[CONTEXTS];
	unsigned context[CONTEXTS];
};

static struct {
	struct driver driver;
	struct thread thread[PROCESSES][THREADS];
	struct in_use in_use[PROCESSES];
	bool share_ready[SHARES], share_taken[SHARES], key_ready[KEYS];
	bool object_busy[MADE]; /* what is bound to it changes */
	struct lien_graph *joined;
	uint64_t control_share;
	uint32_t last_pid; /* none is used again */
	unsigned calls[KINDS], offloads, joins, joins_under_way;
} s;

static uint32_t random_state;

static unsigned random_below(unsigned n)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % n;
}

static uint32_t pid_of(unsigned p)
{
	return s.driver.process[p].pid;
}

static void told(const struct lien_event *ev)
{
	apply(ev);
	if (s.joined)
		assert_int_equal(lien_graph_apply(s.joined, ev), 0);
}

static int joins(void *context, const struct lien_event *ev)
{
	assert_true(lien_event_valid(ev));
	assert_int_equal(lien_graph_apply(context, ev), 0);
	return 0;
}

static void join(void)
{
	assert_int_equal(lien_graph_new(&s.joined), 0);
	assert_int_equal(lien_graph_dump(graph, joins, s.joined), 0);
	s.joins++;
}

/* A reference that is known and stays for as long as the call. */
static bool held(unsigned p, unsigned h)
{
	const struct in_use *in_use = &s.in_use[p];

	return s.driver.process[p].handle[h].memory &&
	       s.driver.process[p].handle[h].references >
		       in_use->releasing[h] + in_use->acquired[h];
}

static bool context_known(unsigned p, unsigned context)
{
	const struct in_use *in_use = &s.in_use[p];

	return s.driver.process[p].context[context] && !in_use->context_goes[context] &&
	       !in_use->context_new[context];
}

/* Nobody uses, frees or waits for what a context takes with it. */
static bool context_quiet(unsigned p, unsigned context, bool mark)
{
	struct in_use *in_use = &s.in_use[p];

	for (unsigned r = 0; r < RANGES; r++) {
		__auto_type range = &s.driver.process[p].range[r];

		if (!range->allocated || range->context != context + 1 ||
			ways[range->way].origin == LIEN_ORIGIN_POOL)
			continue;
		if (in_use->range[r] || in_use->range_goes[r] || in_use->range_new[r])
			return false;
		in_use->range_goes[r] |= mark;
	}
	return true;
}

static bool begin_shared(struct call *call, unsigned r)
{
	struct in_use *in_use = &s.in_use[call->process];
	__auto_type range = &s.driver.process[call->process].range[r];
	unsigned k = call->a % KEYS;

	switch (call->kind) {
	case KEY_GET:
		call->a = r, call->c = range->way;
		if (!range->allocated || !ways[range->way].get || in_use->range_goes[r] ||
			in_use->range_new[r])
			return false;
		in_use->range[r]++;
		return true;
	case KEY_OPEN: {
		__auto_type key = &s.driver.key[k];

		call->a = k;
		if (!s.key_ready[k] || !key_alive(&s.driver, k) || key->process == call->process ||
			s.in_use[key->process].range_goes[key->range])
			return false;
		s.in_use[key->process].range[key->range]++;
		call->context = key->range; /* of the owner, till it returns */
		call->b = key->process;
		return true;
	}
	default:
		call->a = r, call->c = range->way;
		if (range->opens <= in_use->opening[r] + in_use->closing[r])
			return false;
		in_use->closing[r]++;
		return true;
	}
}

static bool begin_multicast(struct call *call)
{
	__auto_type handle = s.driver.process[call->process].handle;
	unsigned object, memory;
	int bound;

	call->a %= HANDLES, call->b %= SLOTS, call->c %= HANDLES;
	object = handle[call->a].memory;
	bound = call->kind == UNBIND
			? LOWEST(BINDINGS, object && s.driver.binding[i].object == object)
			: -1;
	memory = handle[call->c % HANDLES].memory;
	if (!held(call->process, call->a) || s.driver.device[object] || s.object_busy[object])
		return false;
	if (call->kind == BIND && (!held(call->process, call->c) || !s.driver.device[memory]))
		return false;
	if (call->kind == UNBIND) {
		if (bound < 0)
			return false;
		call->b = s.driver.binding[bound].slot;
		call->c = s.driver.device[s.driver.binding[bound].memory] - 1;
	}
	if (call->kind == BIND)
		s.in_use[call->process].handle[call->c]++;
	s.in_use[call->process].handle[call->a]++;
	s.object_busy[object] = true;
	return true;
}

static bool begin_pool(struct call *call)
{
	struct in_use *in_use = &s.in_use[call->process];
	unsigned pool = call->a % POOLS, context = call->a % CONTEXTS;

	if (call->kind == POOL_DESTROY) {
		call->a = pool;
		if (!s.driver.process[call->process].pool[pool] || in_use->pool_goes[pool] ||
			in_use->pool_new[pool])
			return false;
		return in_use->pool_goes[pool] = true;
	}
	call->a = context;
	if (!context_known(call->process, context) || in_use->context[context] ||
		!context_quiet(call->process, context, false))
		return false;
	context_quiet(call->process, context, true);
	return in_use->context_goes[context] = true;
}

/* Is the call legal now? Then it is begun: what it uses is marked. */
static bool begin(struct call *call)
{
	__auto_type process = &s.driver.process[call->process];
	struct in_use *in_use = &s.in_use[call->process];
	unsigned h = call->a % HANDLES, r = call->a % RANGES, p = call->b % PLACES;
	unsigned c = call->a % COMMS, x = call->b % REGISTERED, i;
	unsigned share = call->a % SHARES, mapped;
	unsigned held_a =
		process->handle[h].references - in_use->releasing[h] - in_use->acquired[h];

	switch (call->kind) {
	case CREATE:
	case RESERVE:
	case COMM_INIT:
	case POOL_CREATE:
	case CONTEXT_CREATE:
	case MULTICAST_CREATE:
		return true;
	case ALLOC:
		call->c %= COUNT(ways);
		call->context = call->b % (CONTEXTS + 1);
		if (ways[call->c].origin == LIEN_ORIGIN_REGISTERED || !call->context ||
			!context_known(call->process, call->context - 1))
			call->context = 0;
		else
			in_use->context[call->context - 1]++;
		return true;
	case KEY_GET:
	case KEY_OPEN:
	case KEY_CLOSE:
		return begin_shared(call, r);
	case POOL_DESTROY:
	case CONTEXT_DESTROY:
		return begin_pool(call);
	case MULTICAST_DEVICE:
	case BIND:
	case UNBIND:
		return begin_multicast(call);
	case RELEASE_HANDLE:
		call->a = h;
		if (!process->handle[h].memory || !held_a || (held_a == 1 && in_use->handle[h]))
			return false;
		in_use->releasing[h]++;
		return true;
	case EXPORT:
		call->a = h;
		if (!process->handle[h].memory || !held_a || process->handle[h].imported)
			return false;
		in_use->handle[h]++;
		return true;
	case IMPORT:
		call->a = share;
		if (!s.share_ready[share] || s.share_taken[share] ||
			s.driver.share[share].owner == call->process)
			return false;
		/* What a second handle to one memory lives by is the real driver's secret. */
		for (i = 0; i < HANDLES; i++)
			if (process->handle[i].memory == s.driver.share[share].memory)
				return false;
		for (i = 0; i < THREADS; i++)
			if (s.thread[call->process][i].busy &&
				s.thread[call->process][i].call.kind == IMPORT)
				return false;
		s.share_taken[share] = true;
		return true;
	case RETAIN:
	case RANGE_HANDLE:
		call->a = r, call->b = p;
		if (!process->range[r].place[p].memory || in_use->place_goes[r][p] ||
			in_use->range_goes[r] || in_use->place_new[r][p])
			return false;
		in_use->place[r][p]++;
		return true;
	case MAP:
		call->a = r, call->b = p, call->c = call->c % HANDLES;
		h = call->c;
		if (!process->range[r].reserved || process->range[r].place[p].memory ||
			in_use->range_goes[r] || in_use->place[r][p] || in_use->range_new[r] ||
			!process->handle[h].memory ||
			process->handle[h].references == in_use->releasing[h] + in_use->acquired[h])
			return false;
		in_use->place_new[r][p] = true;
		in_use->place[r][p]++;
		in_use->range[r]++;
		in_use->handle[h]++;
		return true;
	case UNMAP:
		call->a = r, call->b = p;
		if (!process->range[r].place[p].memory || in_use->place[r][p] ||
			in_use->place_goes[r][p] || in_use->range_goes[r])
			return false;
		in_use->place_goes[r][p] = true;
		in_use->range[r]++;
		return true;
	case UNMAP_RANGE:
	case ADDRESS_FREE:
		call->a = r;
		for (i = mapped = 0; i < PLACES; i++)
			mapped += process->range[r].place[i].memory != 0;
		if (!process->range[r].reserved || in_use->range_goes[r] || in_use->range[r] ||
			in_use->range_new[r] || !mapped != (call->kind == ADDRESS_FREE))
			return false;
		for (i = 0; i < PLACES; i++)
			if (in_use->place[r][i])
				return false;
		in_use->range_goes[r] = true;
		return true;
	case FREE:
		call->a = r, call->c = process->range[r].way;
		if (!process->range[r].allocated || in_use->range_goes[r] || in_use->range_new[r] ||
			in_use->range[r])
			return false;
		in_use->range_goes[r] = true;
		return true;
	case COMM_DESTROY:
		call->a = c;
		if (!process->comm[c].made || in_use->comm[c] || in_use->comm_goes[c] ||
			in_use->comm_new[c])
			return false;
		in_use->comm_goes[c] = true;
		return true;
	case REGISTER:
	case DEREGISTER:
		call->a = c, call->b = x;
		if (!process->comm[c].made || in_use->comm_goes[c] || in_use->comm_new[c])
			return false;
		if (call->kind == DEREGISTER &&
			(!process->comm[c].registered[x] || in_use->registered_goes[c][x] ||
				in_use->registered_new[c][x]))
			return false;
		in_use->comm[c]++;
		in_use->registered_goes[c][x] |= call->kind == DEREGISTER;
		return true;
	default:
		return false;
	}
}

/* The driver has done it: what it gave back can be had again, even before the call returns. */
static void given_back(const struct call *call)
{
	struct in_use *in_use = &s.in_use[call->process];

	switch (call->kind) {
	case RELEASE_HANDLE:
		in_use->releasing[call->a]--;
		break;
	case UNMAP:
		in_use->place_goes[call->a][call->b] = false;
		in_use->range[call->a]--;
		break;
	case UNMAP_RANGE:
	case ADDRESS_FREE:
	case FREE:
		in_use->range_goes[call->a] = false;
		break;
	case COMM_DESTROY:
		in_use->comm_goes[call->a] = false;
		break;
	case DEREGISTER:
		in_use->comm[call->a]--;
		in_use->registered_goes[call->a][call->b] = false;
		break;
	case KEY_CLOSE:
		in_use->closing[call->a]--;
		break;
	case POOL_DESTROY:
		in_use->pool_goes[call->a] = false;
		break;
	case CONTEXT_DESTROY:
		in_use->context_goes[call->a] = false;
		for (unsigned r = 0; r < RANGES; r++)
			if (!range_taken(&s.driver, call->process, r))
				in_use->range_goes[r] = false;
		break;
	default:
		break;
	}
}

/* It has acquired a name; nobody knows before it returns. */
static void acquired(const struct call *call, bool known)
{
	struct in_use *in_use = &s.in_use[call->process];

	if (call->event.result)
		return;
	switch (call->kind) {
	case KEY_OPEN:
		in_use->opening[call->name] += known ? -1 : 1;
		break;
	case KEY_GET:
		s.key_ready[call->name] = known;
		break;
	case POOL_CREATE:
		in_use->pool_new[call->name] = !known;
		break;
	case CONTEXT_CREATE:
		in_use->context_new[call->name] = !known;
		break;
	case CREATE:
	case IMPORT:
	case MULTICAST_CREATE:
	case RETAIN:
		in_use->acquired[call->name] += known ? -1 : 1;
		break;
	case RESERVE:
	case ALLOC:
		in_use->range_new[call->name] = !known;
		break;
	case COMM_INIT:
		in_use->comm_new[call->name] = !known;
		break;
	case REGISTER:
		in_use->registered_new[call->a][call->name] = !known;
		break;
	default:
		break;
	}
}

static void returned(const struct call *call)
{
	struct in_use *in_use = &s.in_use[call->process];

	if (!kinds[call->kind].releases)
		acquired(call, true);
	switch (call->kind) {
	case EXPORT:
		in_use->handle[call->a]--;
		if (!call->event.result)
			s.share_ready[call->name] = true;
		break;
	case RETAIN:
	case RANGE_HANDLE:
		in_use->place[call->a][call->b]--;
		break;
	case ALLOC:
		if (call->context)
			in_use->context[call->context - 1]--;
		break;
	case KEY_GET:
		in_use->range[call->a]--;
		break;
	case KEY_OPEN:
		s.in_use[call->b].range[call->context]--;
		break;
	case BIND:
		in_use->handle[call->c]--;
		__attribute__((fallthrough));
	case MULTICAST_DEVICE:
	case UNBIND:
		in_use->handle[call->a]--;
		s.object_busy[s.driver.process[call->process].handle[call->a].memory] = false;
		break;
	case MAP:
		in_use->place[call->a][call->b]--;
		in_use->place_new[call->a][call->b] = false;
		in_use->range[call->a]--;
		in_use->handle[call->c]--;
		break;
	case REGISTER:
		in_use->comm[call->a]--;
		break;
	default:
		break;
	}
}

/* More of what makes something, so that there is something to give back. */
static enum kind random_kind(void)
{
	static const uint8_t often[] = {CREATE, CREATE, RESERVE, MAP, MAP, MAP, EXPORT, IMPORT,
		IMPORT, IMPORT, RETAIN, UNMAP, UNMAP_RANGE, UNMAP_RANGE, RELEASE_HANDLE,
		RELEASE_HANDLE, REGISTER, DEREGISTER, ALLOC, ALLOC, FREE, KEY_GET, KEY_OPEN,
		KEY_OPEN, KEY_OPEN, KEY_CLOSE, KEY_CLOSE, RANGE_HANDLE, BIND, BIND, UNBIND, UNBIND};

	return random_below(2) ? often[random_below(COUNT(often))] : random_below(KINDS);
}

static void thread_step(unsigned process, unsigned t, bool new_calls)
{
	struct thread *thread = &s.thread[process][t];
	unsigned tries = 20;

	while (!thread->busy && new_calls && tries--) {
		struct call *call = &thread->call;

		memset(call, 0, sizeof(*call));
		call->kind = random_kind();
		call->process = process;
		call->a = random_below(SHARES * RANGES * HANDLES);
		call->b = random_below(PLACES * REGISTERED * SLOTS * (CONTEXTS + 1));
		call->c = random_below(HANDLES);
		thread->busy = begin(call);
		thread->step = 0;
	}
	if (!thread->busy)
		return;
	take_step(&s.driver, &thread->call, t, thread->step, told);
	thread->step++;
	if (thread->step + 1 == steps(&thread->call)) {
		if (kinds[thread->call.kind].releases)
			given_back(&thread->call);
		else
			acquired(&thread->call, false);
	}
	if (thread->step < steps(&thread->call))
		return;
	s.calls[thread->call.kind] += !thread->call.event.result;
	returned(&thread->call);
	thread->busy = false;
}

static bool any_busy(void)
{
	for (unsigned p = 0; p < PROCESSES; p++)
		for (unsigned t = 0; t < THREADS; t++)
			if (s.thread[p][t].busy)
				return true;
	return false;
}

static void process_starts(unsigned p)
{
	struct lien_event ev;

	s.driver.process[p].alive = true;
	s.driver.process[p].pid = ++s.last_pid;
	ev = EVENT(LIEN_EVENT_PROCESS, s.last_pid, .process = {.complete = 1, .comm = "random"});
	told(&ev);
}

/* Its memory lives on in others; its descriptors on their way are not imported any more: what the
 * graph knew of them went with it. */
static void process_ends(unsigned p)
{
	struct lien_event ev = EVENT(LIEN_EVENT_EXIT, pid_of(p), );

	told(&ev);
	memset(&s.driver.process[p], 0, sizeof(s.driver.process[p]));
	for (unsigned i = 0; i < SHARES; i++)
		if (s.driver.share[i].memory && s.driver.share[i].owner == p)
			s.share_ready[i] = s.driver.share[i].open = false;
}

/* --- what the control libraries do, all threads at rest ----------------------------------------
 */

static void control(struct lien_event ev, bool releases)
{
	ev.flags |= LIEN_EVENT_CONTROL;
	if (releases) {
		struct lien_event entry = entry_of(ev);

		told(&entry);
	}
	told(&ev);
}

static bool place_is(unsigned p, unsigned r, unsigned i, unsigned memory)
{
	return s.driver.process[p].range[r].place[i].memory == memory;
}

/* Its one handle in the process; -1: none, -2: not of the kind that is offloaded. */
static int handle_in(unsigned p, unsigned memory)
{
	int found = -1;

	for (unsigned h = 0; h < HANDLES; h++)
		if (s.driver.process[p].handle[h].memory == memory)
			found = found == -1 ? (int)h : -2;
	if (found >= 0 && !memory_mapped(&s.driver, p, memory))
		return -2;
	return found;
}

static void detach(unsigned p, unsigned memory)
{
	uint64_t handle = HANDLE_NAME(handle_in(p, memory)), va = 0;
	unsigned references = s.driver.process[p].handle[handle_in(p, memory)].references;

	for (unsigned r = 0; r < RANGES; r++)
		for (unsigned i = 0; i < PLACES; i++) {
			if (!place_is(p, r, i, memory))
				continue;
			if (!va)
				control(EVENT(LIEN_CALL_CU_MEM_RETAIN, pid_of(p),
						.retain = {handle, PLACE_VA(r, i)}),
					false);
			va = PLACE_VA(r, i);
			control(EVENT(LIEN_CALL_CU_MEM_UNMAP, pid_of(p),
					.range = {va, MEMORY_BYTES(memory)}),
				true);
		}
	for (unsigned i = 0; i < references + 1; i++)
		control(EVENT(LIEN_CALL_CU_MEM_RELEASE, pid_of(p), .release = {handle}), true);
}

/* With the same handle value as before or another one, as it comes. */
static void attach(unsigned p, unsigned memory, int to)
{
	__auto_type process = &s.driver.process[p];
	int from = handle_in(p, memory);
	unsigned references = process->handle[from].references;
	bool imported = process->handle[from].imported;
	uint64_t va = 0;

	for (unsigned r = 0; r < RANGES; r++)
		for (unsigned i = 0; i < PLACES; i++) {
			if (!place_is(p, r, i, memory))
				continue;
			va = PLACE_VA(r, i);
			control(EVENT(LIEN_CALL_CU_MEM_MAP, pid_of(p),
					.map = {.va = va,
						.bytes = MEMORY_BYTES(memory),
						.handle = HANDLE_NAME(to)}),
				false);
			process->range[r].place[i].handle = to;
		}
	if (!references)
		control(EVENT(LIEN_CALL_CU_MEM_RELEASE, pid_of(p), .release = {HANDLE_NAME(to)}),
			true);
	for (unsigned i = 1; i < references; i++)
		control(EVENT(LIEN_CALL_CU_MEM_RETAIN, pid_of(p), .retain = {HANDLE_NAME(to), va}),
			false);
	memset(&process->handle[from], 0, sizeof(process->handle[from]));
	process->handle[to].memory = memory;
	process->handle[to].references = references;
	process->handle[to].imported = imported;
}

static int new_handle(unsigned p, unsigned memory)
{
	int own = handle_in(p, memory), other;

	other = LOWEST(HANDLES, !s.driver.process[p].handle[i].memory);
	return other < 0 || random_below(2) ? own : other;
}

static bool can_be_offloaded(unsigned owner, unsigned memory)
{
	if (!s.driver.device[memory] || memory_bound(&s.driver, memory))
		return false;
	for (unsigned p = 0; p < PROCESSES; p++)
		if (handle_in(p, memory) == -2 || (p == owner && handle_in(p, memory) < 0))
			return false;
	return true;
}

static void put_back(unsigned owner, unsigned memory)
{
	int to = new_handle(owner, memory);

	control(EVENT(LIEN_CALL_CU_MEM_CREATE, pid_of(owner),
			.create = {.handle = HANDLE_NAME(to),
				.bytes = MEMORY_BYTES(memory),
				.prop = device_prop(owner)}),
		false);
	attach(owner, memory, to);
	for (unsigned p = 0; p < PROCESSES; p++) {
		if (p == owner || handle_in(p, memory) < 0)
			continue;
		to = new_handle(p, memory);
		control(EVENT(LIEN_CALL_CU_MEM_EXPORT, pid_of(owner),
				.share = {HANDLE_NAME(handle_in(owner, memory)),
					++s.control_share}),
			false);
		control(EVENT(LIEN_CALL_CU_MEM_IMPORT, pid_of(p),
				.share = {HANDLE_NAME(to), s.control_share}),
			false);
		attach(p, memory, to);
	}
}

static void check_offloaded(struct lien_graph *with, unsigned owner, unsigned memory)
{
	struct lien_allocation *allocation;

	for (allocation = lien_graph_first_allocation(with); allocation;
		allocation = lien_graph_next_allocation(allocation))
		if (allocation->bytes == MEMORY_BYTES(memory))
			break;
	assert_non_null(allocation);
	assert_true(lien_allocation_offloaded(allocation));
	assert_int_equal(allocation->owner_pid, pid_of(owner));
}

static void offload_and_restore(void)
{
	unsigned away[PROCESSES * HANDLES], owner[PROCESSES * HANDLES], n = 0, i, p, h;

	for (p = 0; p < PROCESSES; p++)
		for (h = 0; h < HANDLES; h++) {
			unsigned memory = s.driver.process[p].handle[h].memory;

			if (memory && !s.driver.process[p].handle[h].imported &&
				can_be_offloaded(p, memory) && random_below(3)) {
				away[n] = memory;
				owner[n++] = p;
			}
		}
	for (i = 0; i < n; i++)
		for (p = 0; p < PROCESSES; p++)
			if (p != owner[i] && handle_in(p, away[i]) >= 0)
				detach(p, away[i]);
	for (i = 0; i < n; i++)
		detach(owner[i], away[i]);
	if (!s.joined && !random_below(2))
		join();
	for (i = 0; i < n; i++) {
		check_offloaded(graph, owner[i], away[i]);
		if (s.joined)
			check_offloaded(s.joined, owner[i], away[i]);
	}
	while (n--) {
		put_back(owner[n], away[n]);
		s.offloads++;
	}
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void burst(unsigned length)
{
	unsigned i, p;

	for (p = 0; p < PROCESSES; p++)
		if (!s.driver.process[p].alive)
			process_starts(p);
	for (i = 0; i < length; i++) {
		thread_step(random_below(PROCESSES), random_below(THREADS), true);
		if (!s.joined && !random_below(500)) {
			s.joins_under_way += any_busy();
			join();
		}
	}
	while (any_busy())
		thread_step(random_below(PROCESSES), random_below(THREADS), false);
	if (!random_below(3))
		offload_and_restore();
	if (!random_below(6))
		process_ends(random_below(PROCESSES));
}

static void job_begins(void)
{
	memset(&s.driver, 0, sizeof(s.driver));
	memset(&s.thread, 0, sizeof(s.thread));
	memset(&s.in_use, 0, sizeof(s.in_use));
	memset(s.share_ready, 0, sizeof(s.share_ready));
	memset(s.share_taken, 0, sizeof(s.share_taken));
	memset(s.key_ready, 0, sizeof(s.key_ready));
	memset(s.object_busy, 0, sizeof(s.object_busy));
	s.control_share = 1000000;
}

static unsigned job(void)
{
	unsigned differences = 0;

	job_begins();
	for (unsigned i = 0; i < BURSTS && !differences; i++) {
		burst(40 + random_below(400));
		differences = compare(graph, &s.driver);
		if (lien_graph_stats(graph)->unmatched_imports)
			differences++;
		if (s.joined && compare(s.joined, &s.driver)) {
			print_error("^ in the graph that joined\n");
			differences++;
		}
		if (differences)
			break;
		assert_round_trip();
		if (s.joined)
			assert_same_graphs(graph, s.joined);
	}
	lien_graph_free(s.joined);
	s.joined = NULL;
	return differences;
}

/* 100,000 events and more, and nothing comes to rest in between. */
static void test_long_burst(void **state)
{
	unsigned differences, seed = lien_test_seed();

	(void)state;
	print_message("LIEN_SEED=%u\n", seed);
	random_state = seed;
	job_begins();
	burst(250000);
	assert_true(lien_graph_stats(graph)->events > 100000);
	assert_true(s.driver.made < MADE);
	differences = compare(graph, &s.driver);
	if (s.joined)
		differences += compare(s.joined, &s.driver);
	assert_int_equal(differences, 0);
	assert_round_trip();
	lien_graph_free(s.joined);
	s.joined = NULL;
}

static void test_random_jobs(void **state)
{
	unsigned seed = lien_test_seed(), jobs, i;

	(void)state;
	jobs = lien_test_sequences(2000);
	print_message("LIEN_SEED=%u\n", seed);
	memset(&s, 0, sizeof(s));
	for (i = 0; i < jobs; i++) {
		random_state = seed + i;
		assert_int_equal(setup(NULL), 0);
		if (job())
			fail_msg("repeat with LIEN_SEED=%u LIEN_SEQUENCES=1", seed + i);
		teardown(NULL);
	}
	if (jobs < 100)
		return;
	for (i = 0; i < KINDS; i++)
		if (s.calls[i] <= jobs / 4)
			fail_msg("too few of call %u: %u", kinds[i].call, s.calls[i]);
	assert_true(s.offloads > jobs && s.joins > jobs / 2 && s.joins_under_way > jobs / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_jobs),
		TEST(test_long_burst),
	};

	return cmocka_run_group_tests_name("graph random", tests, NULL, NULL);
}
