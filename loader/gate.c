// SPDX-License-Identifier: BSD-2-Clause
#include "loader/gate.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/close_later.h"
#include "loader/elf_symbols.h"
#include "loader/probes_internal.h"
#include "loader/uprobe_multi.h"

static const struct gated {
	const char *symbol;
	enum lien_call number;
	enum lien_library library;
	unsigned flags;
} calls[] = {
#define CALL_ROW(name, number, lib, symbol, flags)                                                 \
	{symbol, LIEN_CALL_##name, LIEN_LIB_##lib, flags},
	LIEN_CALLS(CALL_ROW) LIEN_GATE_CALLS(CALL_ROW)
#undef CALL_ROW
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

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

int lien_probes_gate(struct lien_probes *probes, uint32_t pid, uint64_t start, uint32_t signal)
{
	struct lien_probe_gate gate = {.start = start, .signal = signal}, before;

	if (!probes->can_follow)
		return -EOPNOTSUPP;
	if (find(probes, pid) && lien_probes_gate_get(probes, pid, &before) &&
		before.start == start)
		return 0;
	if (!lien_gate_add(probes, pid))
		return -ENOMEM;
	/* Of a gate before this one: its probes went before the calls returned. */
	lien_probes_held(probes, forget, find(probes, pid));
	gate.turn = ++probes->next_gate ^ (uint32_t)getpid() << 16;
	return bpf_map_update_elem(gates_fd(probes), &pid, &gate, BPF_ANY);
}

/* The places of a file's gated calls, each once. How many, or -errno. */
static int places(enum lien_library library, int fd, unsigned flags, unsigned number,
	uint64_t *offsets, uint64_t *cookies)
{
	struct lien_elf_lookup lookups[CALLS] = {0};
	unsigned of_call[CALLS], n = 0, found = 0, i, j;
	struct lien_elf *elf;
	int err = lien_elf_open(fd, &elf);

	if (err)
		return err;
	for (i = 0; i < CALLS; i++)
		if (calls[i].library == library && calls[i].flags & flags) {
			of_call[n] = i;
			lookups[n++].name = calls[i].symbol;
		}
	err = lien_elf_functions(elf, lookups, n);
	lien_elf_close(elf);
	if (err < 0)
		return err;
	for (i = 0; i < n; i++) {
		uint64_t offset = lookups[i].file_offset;

		if (lookups[i].result)
			continue;
		offset = lien_behind_endbr(fd, offset);
		for (j = 0; j < found && offsets[j] != offset; j++)
			;
		if (j < found)
			continue;
		offsets[found] = offset;
		cookies[found++] = LIEN_COOKIE(calls[of_call[i]].number, 0, number);
	}
	return found;
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

static int attach(struct lien_probes *probes, uint32_t pid, struct lien_gate_file *file, int fd,
	enum lien_library library)
{
	unsigned flags = LIEN_CALL_GATED | (file->all ? LIEN_CALL_GATED_ALL : 0);
	struct lien_uprobe_multi_how how = {.pid = pid, .at_return = true};
	uint64_t offsets[CALLS], cookies[CALLS];
	char path[32];
	int count = places(library, fd, flags, file->number, offsets, cookies);

	if (count <= 0)
		return count;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	/* Returns first: who is counted in is counted out. */
	file->link[0] =
		lien_uprobe_multi_attach(bpf_program__fd(probes->skel->progs.lien_gate_return),
			path, offsets, cookies, count, how);
	if (file->link[0] < 0)
		return file->link[0];
	how.at_return = false;
	file->link[1] =
		lien_uprobe_multi_attach(bpf_program__fd(probes->skel->progs.lien_gate_entry), path,
			offsets, cookies, count, how);
	if (file->link[1] >= 0)
		return count;
	close(file->link[0]);
	return file->link[1];
}

int lien_probes_gate_file(struct lien_probes *probes, uint32_t pid, enum lien_library library,
	const char *path, bool all)
{
	struct lien_gate *gate = find(probes, pid);
	struct lien_gate_file file = {.all = all, .number = ++probes->next_attachment};
	struct stat st;
	int fd, n;

	if (!gate)
		return -ENOENT;
	fd = lien_library_open(path, &st);
	if (fd < 0)
		return fd;
	file.device = st.st_dev;
	file.inode = st.st_ino;
	if (has_file(gate, &st, all))
		n = 0;
	else
		n = gate->files_count == LIEN_GATE_FILES ? -EMFILE
							 : attach(probes, pid, &file, fd, library);
	close(fd);
	if (n <= 0)
		return n;
	gate->files[gate->files_count++] = file;
	lien_keep_gate(probes, gate, &file);
	return 0;
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
	lien_keep_ungate(probes, gate);
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

/* The members that are needed of struct thread, which only the BPF programs know. */
struct layout {
	unsigned pid, tid, depth, sp, caller, turn;
};

static bool find_member(const struct btf *btf, const char *name, unsigned *offset)
{
	int id = btf__find_by_name_kind(btf, "thread", BTF_KIND_STRUCT);
	const struct btf_type *type = id < 0 ? NULL : btf__type_by_id(btf, id);
	unsigned i;

	for (i = 0; type && i < btf_vlen(type); i++)
		if (!strcmp(btf__name_by_offset(btf, btf_members(type)[i].name_off), name)) {
			*offset = btf_member_bit_offset(type, i) / 8;
			return true;
		}
	return false;
}

static bool find_layout(const struct lien_probes *probes, struct layout *layout)
{
	const struct btf *btf = bpf_object__btf(probes->skel->obj);

	return find_member(btf, "pid", &layout->pid) && find_member(btf, "tid", &layout->tid) &&
	       find_member(btf, "depth", &layout->depth) &&
	       find_member(btf, "last_sp", &layout->sp) &&
	       find_member(btf, "last_caller", &layout->caller) &&
	       find_member(btf, "gate_turn", &layout->turn);
}

static uint64_t take(const unsigned char *from, unsigned offset, size_t size)
{
	uint64_t value = 0;

	memcpy(&value, from + offset, size);
	return value;
}

int lien_probes_unseen(struct lien_probes *probes, uint32_t pid,
	int (*fn)(void *context, const struct lien_probe_thread *thread), void *context)
{
	const struct bpf_map *map = probes->skel->maps.threads;
	unsigned rest = 2 * bpf_map__max_entries(map);
	struct lien_probe_thread thread;
	struct lien_probe_gate gate;
	uint32_t key, *from = NULL, next;
	unsigned char *value;
	struct layout layout;
	int result = 0;

	if (!lien_probes_gate_get(probes, pid, &gate))
		return -ENOENT;
	value = malloc(bpf_map__value_size(map));
	if (!value || !find_layout(probes, &layout)) {
		free(value);
		return -ENOMEM;
	}
	while (!result && rest-- && !bpf_map_get_next_key(bpf_map__fd(map), from, &next)) {
		key = next;
		from = &key;
		if (bpf_map_lookup_elem(bpf_map__fd(map), &key, value) ||
			take(value, layout.pid, 4) != pid ||
			take(value, layout.turn, 4) == gate.turn)
			continue;
		thread = (struct lien_probe_thread){.tid = take(value, layout.tid, 4),
			.inside = take(value, layout.depth, 4),
			.sp = take(value, layout.sp, 8),
			.caller = take(value, layout.caller, 8)};
		result = fn(context, &thread);
	}
	free(value);
	return result;
}
