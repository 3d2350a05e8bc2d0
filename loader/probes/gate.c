// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <lien/thread.h>
#include "loader/probes/gate_links.h"
#include "loader/probes/maps.h"
#include "loader/discover/untrusted.h"

static struct lien_gate *find(const struct lien_probes *probes, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < probes->facts.gates; i++)
		if (probes->gates[i].pid == pid)
			return &probes->gates[i];
	return NULL;
}

bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate)
{
	return !bpf_map_lookup_elem(MAP(probes, gates), &pid, gate);
}

/* Returns the gate of a process, and makes it if necessary. NULL: out of memory. */
static struct lien_gate *add(struct lien_probes *probes, uint32_t pid)
{
	struct lien_gate *gate = find(probes, pid), *grown;

	if (gate)
		return gate;
	grown = realloc(probes->gates, (probes->facts.gates + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	probes->gates = grown;
	gate = &grown[probes->facts.gates++];
	memset(gate, 0, sizeof(*gate));
	gate->pid = pid;
	gate->probes = probes;
	return gate;
}

static int inherit(void *probes, const void *pid, const void *gate)
{
	struct lien_gate *made = add(probes, *(const uint32_t *)pid);

	(void)gate;
	if (made)
		made->inherited = true;
	return 0;
}

void lien_gate_take(struct lien_probes *probes)
{
	if (!probes->pins || !probes->facts.resumed)
		return;
	lien_gate_links_take(probes);
	lien_map_each(probes->skel->maps.gates, inherit, probes);
}

static int forget(
	void *context, const struct lien_probe_held_key *key, const struct lien_probe_held *held)
{
	struct lien_gate *gate = context;

	(void)held;
	if (key->pid == gate->pid)
		lien_probes_let_in(gate->probes, key->pid, key->tid);
	return 0;
}

static bool exists(const struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	struct lien_probe_gate gate;

	return find(probes, pid) && lien_probes_gate_get(probes, pid, &gate) && gate.start == start;
}

int lien_probes_gate_prepare(struct lien_probes *probes, uint32_t pid, uint64_t start, bool shared)
{
	struct lien_gate *gate;

	if (probes->facts.gate_lacks)
		return -EOPNOTSUPP;
	if (exists(probes, pid, start))
		return 0;
	bpf_map_delete_elem(MAP(probes, gates), &pid);
	bpf_map_delete_elem(MAP(probes, gates_all), &pid);
	gate = add(probes, pid);
	if (!gate)
		return -ENOMEM;
	gate->start = start;
	gate->shared = shared;
	return 0;
}

/* What threads have done at the gate of an earlier agent stays in map `threads`, marked with that
 * gate's number. So numbers begin with the milliseconds since the node was booted: gates are not
 * made faster, and in containers all agents may have the same pid. */
static uint32_t next_turn(struct lien_probes *probes)
{
	struct timespec now;

	if (!probes->next_gate) {
		clock_gettime(CLOCK_BOOTTIME, &now);
		probes->next_gate = (uint32_t)(now.tv_sec * 1000ull + now.tv_nsec / 1000000);
	}
	return ++probes->next_gate;
}

int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	struct lien_probe_gate gate = {.start = start};

	if (!find(probes, pid))
		return -ENOENT;
	if (exists(probes, pid, start))
		return 0;
	/* Entries left by an earlier gate: its probes were removed before the calls returned. */
	lien_probes_held(probes, forget, find(probes, pid));
	gate.turn = next_turn(probes);
	return bpf_map_update_elem(MAP(probes, gates), &pid, &gate, BPF_ANY) ? -errno : 1;
}

int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all, bool wait)
{
	struct lien_gate *gate = find(probes, pid);
	const uint32_t one = 1;
	struct stat st;
	int fd, err;

	if (!gate)
		return -ENOENT;
	if (all && bpf_map_update_elem(MAP(probes, gates_all), &pid, &one, BPF_ANY))
		return -errno;
	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	err = lien_gate_file_add(probes, gate, fd, &st, library, all, wait);
	close(fd);
	return err;
}

bool lien_probes_gate_holds(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_shut *range)
{
	return !bpf_map_lookup_elem(MAP(probes, shut), &pid, range);
}

int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid,
	const struct lien_probe_shut *range, const struct lien_probe_shut *before)
{
	struct lien_probe_shut all = *range;

	if (before) {
		all.meetings_alone &= before->meetings_alone;
		all.low = before->low < all.low ? before->low : all.low;
		all.high = before->high > all.high ? before->high : all.high;
	}
	return bpf_map_update_elem(MAP(probes, shut), &pid, &all, BPF_ANY);
}

static bool is_among(const uint64_t *comms, unsigned count, uint64_t comm)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (comms[i] == comm)
			return true;
	return false;
}

struct away {
	struct lien_probes *probes;
	uint32_t pid;
	const uint64_t *comms;
	unsigned count;
};

static int drop_other(void *context, const void *key, const void *value)
{
	const struct lien_probe_comm *comm = key;
	const struct away *away = context;

	(void)value;
	if (comm->pid == away->pid && !is_among(away->comms, away->count, comm->comm))
		bpf_map_delete_elem(MAP(away->probes, comms_away), comm);
	return 0;
}

void lien_probes_gate_all_comms(struct lien_probes *probes, uint32_t pid)
{
	struct lien_probe_shut shut;

	if (!lien_probes_gate_holds(probes, pid, &shut) || !shut.by_comm)
		return;
	shut.by_comm = 0;
	bpf_map_update_elem(MAP(probes, shut), &pid, &shut, BPF_EXIST);
}

int lien_probes_gate_comms(
	struct lien_probes *probes, uint32_t pid, const uint64_t *comms, unsigned count)
{
	struct away away = {probes, pid, comms, count};
	struct lien_probe_comm key = {.pid = pid};
	struct lien_probe_shut shut;
	const uint32_t one = 1;
	unsigned i;
	int err = 0;

	if (!lien_probes_gate_holds(probes, pid, &shut))
		return -ENOENT;
	for (i = 0; i < count && !err; i++) {
		key.comm = comms[i];
		if (bpf_map_update_elem(MAP(probes, comms_away), &key, &one, BPF_ANY))
			err = -errno;
	}
	shut.by_comm = 1;
	if (!err && bpf_map_update_elem(MAP(probes, shut), &pid, &shut, BPF_EXIST))
		err = -errno;
	if (err)
		lien_probes_gate_all_comms(probes, pid);
	else
		lien_map_each(probes->skel->maps.comms_away, drop_other, &away);
	return err;
}

bool lien_probes_comm_away(const struct lien_probes *probes, uint32_t pid, uint64_t comm)
{
	const struct lien_probe_comm key = {.comm = comm, .pid = pid};
	uint32_t value;

	return !bpf_map_lookup_elem(MAP(probes, comms_away), &key, &value);
}

void lien_probes_gate_nccl_alone(struct lien_probes *probes, uint32_t pid)
{
	bpf_map_delete_elem(MAP(probes, gates_all), &pid);
}

int lien_probes_allow(struct lien_probes *probes, const struct lien_probe_pair *key, uint64_t more)
{
	const struct lien_probe_allowed allowed = {.left = more};

	return bpf_map_update_elem(MAP(probes, allowed), key, &allowed, BPF_ANY);
}

static int take_back(void *probes, const void *key, const void *value)
{
	const struct lien_probes *of = probes;

	(void)value;
	return bpf_map_delete_elem(MAP(of, allowed), key) && errno != ENOENT ? -errno : 0;
}

int lien_probes_allow_none(struct lien_probes *probes)
{
	return lien_map_each(probes->skel->maps.allowed, take_back, probes);
}

void lien_probes_ungate(struct lien_probes *probes, uint32_t pid, bool ends)
{
	struct away none = {.probes = probes, .pid = pid};
	struct lien_gate *gate = find(probes, pid);

	if (!gate) {
		if (ends)
			lien_gate_links_end(probes, pid, ends, false);
		return;
	}
	bpf_map_delete_elem(MAP(probes, shut), &pid);
	lien_map_each(probes->skel->maps.comms_away, drop_other, &none);
	bpf_map_delete_elem(MAP(probes, gates_all), &pid);
	bpf_map_delete_elem(MAP(probes, gates), &pid);
	lien_probes_held(probes, forget, gate);
	lien_gate_files_put(probes, gate);
	lien_gate_links_end(probes, pid, ends, probes->facts.gates == 1);
	*gate = probes->gates[--probes->facts.gates];
}

struct each_held {
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held);
	void *context;
};

static int visit_held(void *context, const void *key, const void *held)
{
	const struct each_held *each = context;

	return each->fn(each->context, key, held);
}

int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context)
{
	struct each_held each = {fn, context};

	return lien_map_each(probes->skel->maps.held, visit_held, &each);
}

int lien_probes_unheld(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key), void *context)
{
	const struct lien_probe_held_key *found;
	unsigned count, i;
	void *records;
	int result;

	result = lien_iterator_read(
		probes->skel->links.lien_unheld, sizeof(*found), &records, &count);
	found = records;
	for (i = 0; i < count && !result; i++)
		result = fn(context, &found[i]);
	free(records);
	return result;
}

bool lien_probes_is_held(const struct lien_probes *probes, uint32_t pid, uint32_t tid)
{
	struct lien_probe_held_key key = {pid, tid};
	struct lien_probe_held held;

	return !bpf_map_lookup_elem(MAP(probes, held), &key, &held);
}

void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid)
{
	struct lien_probe_held_key key = {pid, tid};

	bpf_map_delete_elem(MAP(probes, held), &key);
}

uint64_t lien_probes_pair(
	const struct lien_probes *probes, uint32_t pid, uint64_t comm, uint32_t peer, bool receives)
{
	struct lien_probe_pair key = {.comm = comm, .pid = pid, .peer = peer * 2 + receives};
	uint64_t count = 0;

	bpf_map_lookup_elem(MAP(probes, pairs), &key, &count);
	return count;
}

int lien_probes_pairs(const struct lien_probes *probes, lien_map_fn *fn, void *context)
{
	return lien_map_each(probes->skel->maps.pairs, fn, context);
}

struct each_thread {
	const uint32_t *pids;
	uint64_t *turns; /* of their gates, plus 1; 0: it has none */
	unsigned count;
	int (*fn)(void *context, const struct lien_probe_thread *thread);
	void *context;
};

static int visit_thread(void *context, const void *ktid, const void *value)
{
	const struct each_thread *each = context;
	const struct thread *thread = value;
	struct lien_probe_thread found = {.pid = thread->pid,
		.tid = thread->tid,
		.inside = thread->depth,
		.sp = thread->last_sp,
		.caller = thread->last_caller,
		.t_counted = thread->t_counted};
	unsigned i = 0;

	(void)ktid;
	while (i < each->count && each->pids[i] != found.pid)
		i++;
	if (i == each->count || !each->turns[i])
		return 0;
	found.seen = thread->gate_turn + 1ull == each->turns[i];
	if (found.seen) {
		found.group = thread->group_inside;
		found.call = thread->gate_sp ? thread->gate_call : 0;
		found.inside = found.call || found.group;
		found.t_entered = thread->t_gate;
	}
	return each->fn(each->context, &found);
}

int lien_probes_threads(struct lien_probes *probes, const uint32_t *pids, unsigned count,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context)
{
	struct each_thread each = {pids, calloc(count + 1, sizeof(uint64_t)), count, fn, context};
	struct lien_probe_gate gate;
	unsigned i;
	int result;

	if (!each.turns)
		return -ENOMEM;
	for (i = 0; i < count; i++)
		if (lien_probes_gate_get(probes, pids[i], &gate))
			each.turns[i] = gate.turn + 1ull;
	result = lien_map_each(probes->skel->maps.threads, visit_thread, &each);
	free(each.turns);
	return result;
}
