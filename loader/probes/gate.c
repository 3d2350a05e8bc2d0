// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/probes/calls.h"
#include "loader/probes/close_later.h"
#include "loader/probes/make_link.h"
#include "loader/probes/probes_internal.h"
#include "loader/probes/threads.h"
#include "loader/discover/untrusted.h"

bool lien_probes_can_gate(const struct lien_probes *probes)
{
	return probes->can_follow;
}

static struct lien_gate *find(const struct lien_probes *probes, uint32_t pid)
{
	unsigned i;

	for (i = 0; i < probes->gates_count; i++)
		if (probes->gates[i].pid == pid)
			return &probes->gates[i];
	return NULL;
}

unsigned lien_probes_gates(const struct lien_probes *probes)
{
	return probes->gates_count;
}

static int gates_fd(const struct lien_probes *probes)
{
	return bpf_map__fd(probes->skel->maps.gates);
}

bool lien_probes_gate_get(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_gate *gate)
{
	return !bpf_map_lookup_elem(gates_fd(probes), &pid, gate);
}

struct lien_gate *lien_gate_add(struct lien_probes *probes, uint32_t pid)
{
	struct lien_gate *gate = find(probes, pid), *grown;

	if (gate)
		return gate;
	grown = realloc(probes->gates, (probes->gates_count + 1) * sizeof(*grown));
	if (!grown)
		return NULL;
	probes->gates = grown;
	gate = &grown[probes->gates_count++];
	memset(gate, 0, sizeof(*gate));
	gate->pid = pid;
	gate->probes = probes;
	return gate;
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

int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	struct lien_probe_gate gate = {.start = start}, before;

	if (!probes->can_follow)
		return -EOPNOTSUPP;
	if (find(probes, pid) && lien_probes_gate_get(probes, pid, &before) &&
		before.start == start)
		return 0;
	if (!lien_gate_add(probes, pid))
		return -ENOMEM;
	/* Entries left by an earlier gate: its probes were removed before the calls returned. */
	lien_probes_held(probes, forget, find(probes, pid));
	gate.turn = ++probes->next_gate ^ (uint32_t)getpid() << 16;
	return bpf_map_update_elem(gates_fd(probes), &pid, &gate, BPF_ANY);
}

static bool has_file(const struct lien_gate *gate, const struct stat *st, bool all)
{
	unsigned i;

	for (i = 0; i < gate->files_count; i++)
		if (gate->files[i].device == st->st_dev && gate->files[i].inode == st->st_ino &&
			gate->files[i].all >= all)
			return true;
	return false;
}

/* Begins to make the links of gate->next; returns 1 if there is nothing to probe. */
static int begin(
	struct lien_probes *probes, struct lien_gate *gate, int fd, enum lien_library library)
{
	struct lien_link_request wishes[2];
	struct lien_probe_set set;
	unsigned i;
	int err;

	gate->next.number = ++probes->next_attachment;
	err = lien_calls_gated(&set, fd, library, gate->next.all, gate->next.number);
	if (err || !set.count)
		return err ? err : 1;
	for (i = 0; i < 2; i++) /* returns first, so that every thread counted in is counted out */
		wishes[i] = (struct lien_link_request){
			bpf_program__fd(i ? probes->skel->progs.lien_gate_entry
					  : probes->skel->progs.lien_gate_return),
			set.offsets, set.cookies, set.count, {.at_return = !i, .pid = gate->pid}};
	return lien_making_begin(&gate->making, fd, wishes, 2);
}

static bool is_next(const struct lien_gate *gate, const struct stat *st, bool all)
{
	return gate->making && gate->next.device == st->st_dev && gate->next.inode == st->st_ino &&
	       gate->next.all == all;
}

static int make_file(struct lien_probes *probes, struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all)
{
	int err = 0;

	if (has_file(gate, st, all))
		return 0;
	if (gate->files_count == LIEN_GATE_FILES)
		return -EMFILE;
	if (!is_next(gate, st, all)) {
		lien_making_abandon(&gate->making);
		gate->next = (struct lien_gate_file){
			.all = all, .device = st->st_dev, .inode = st->st_ino};
		err = begin(probes, gate, fd, library);
	}
	if (err)
		return err > 0 ? 0 : err;
	err = lien_making_wait(&gate->making, gate->next.link);
	if (err)
		return err;
	gate->files[gate->files_count++] = gate->next;
	lien_keep_gate(probes, gate, &gate->next);
	return 0;
}

int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all)
{
	struct lien_gate *gate = find(probes, pid);
	struct stat st;
	int fd, err;

	if (!gate)
		return -ENOENT;
	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	err = make_file(probes, gate, fd, &st, library, all);
	close(fd);
	return err;
}

int lien_probes_gate_shut(struct lien_probes *probes, uint32_t pid, uint64_t low, uint64_t high)
{
	int fd = bpf_map__fd(probes->skel->maps.shut);
	struct lien_probe_shut range = {low, high}, before;

	if (!bpf_map_lookup_elem(fd, &pid, &before)) {
		range.low = before.low < low ? before.low : low;
		range.high = before.high > high ? before.high : high;
	}
	return bpf_map_update_elem(fd, &pid, &range, BPF_ANY);
}

void lien_probes_ungate(struct lien_probes *probes, uint32_t pid)
{
	struct lien_gate *gate = find(probes, pid);
	unsigned i;

	if (!gate)
		return;
	bpf_map_delete_elem(bpf_map__fd(probes->skel->maps.shut), &pid);
	bpf_map_delete_elem(gates_fd(probes), &pid);
	lien_probes_held(probes, forget, gate);
	lien_keep_ungate(probes, gate);
	lien_making_abandon(&gate->making);
	for (i = 0; i < gate->files_count; i++) {
		lien_close_later(gate->files[i].link[0]);
		lien_close_later(gate->files[i].link[1]);
	}
	*gate = probes->gates[--probes->gates_count];
}

int lien_probes_held(const struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_held_key *key,
		const struct lien_probe_held *held),
	void *context)
{
	int fd = bpf_map__fd(probes->skel->maps.held), result;
	struct lien_probe_held_key key, *from = NULL, next;
	unsigned rest = 2 * bpf_map__max_entries(probes->skel->maps.held);
	struct lien_probe_held held;

	while (rest-- && !bpf_map_get_next_key(fd, from, &next)) {
		key = next;
		from = &key;
		if (bpf_map_lookup_elem(fd, &key, &held))
			continue;
		result = fn(context, &key, &held);
		if (result)
			return result;
	}
	return 0;
}

void lien_probes_let_in(struct lien_probes *probes, uint32_t pid, uint32_t tid)
{
	struct lien_probe_held_key key = {pid, tid};

	bpf_map_delete_elem(bpf_map__fd(probes->skel->maps.held), &key);
}

uint64_t lien_probes_pair(
	const struct lien_probes *probes, uint32_t pid, uint64_t comm, uint32_t peer, bool receives)
{
	struct lien_probe_pair key = {.comm = comm, .pid = pid, .peer = peer * 2 + receives};
	uint64_t count = 0;

	bpf_map_lookup_elem(bpf_map__fd(probes->skel->maps.pairs), &key, &count);
	return count;
}

struct of_process {
	uint32_t pid, turn;
	int (*fn)(void *context, const struct lien_probe_thread *thread);
	void *context;
};

static int look_at(void *context, uint32_t ktid, const struct lien_thread *thread)
{
	const struct of_process *of = context;
	struct lien_probe_thread found;

	(void)ktid;
	if (lien_thread_get(thread, LIEN_THREAD_PID) != of->pid)
		return 0;
	found = (struct lien_probe_thread){.tid = lien_thread_get(thread, LIEN_THREAD_TID),
		.seen = lien_thread_get(thread, LIEN_THREAD_GATE_TURN) == of->turn,
		.inside = lien_thread_get(thread, LIEN_THREAD_DEPTH),
		.sp = lien_thread_get(thread, LIEN_THREAD_LAST_SP),
		.caller = lien_thread_get(thread, LIEN_THREAD_LAST_CALLER)};
	if (found.seen) {
		found.group = lien_thread_get(thread, LIEN_THREAD_GROUP_INSIDE);
		if (lien_thread_get(thread, LIEN_THREAD_GATE_SP))
			found.call = lien_thread_get(thread, LIEN_THREAD_GATE_CALL);
		found.inside = found.call || found.group;
	}
	return of->fn(of->context, &found);
}

int lien_probes_threads(struct lien_probes *probes, uint32_t pid,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context)
{
	struct of_process of = {pid, 0, fn, context};
	struct lien_probe_gate gate;

	if (!lien_probes_gate_get(probes, pid, &gate))
		return -ENOENT;
	of.turn = gate.turn;
	return lien_threads_each(probes, look_at, &of);
}
