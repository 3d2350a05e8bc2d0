// SPDX-License-Identifier: BSD-2-Clause
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "loader/elf_symbols.h"
#include "loader/hash.h"
#include "loader/probes_internal.h"
#include "loader/uprobe_multi.h"

struct call {
	const char *symbol;
	enum lien_call number;
	enum lien_library library;
	unsigned flags;
};

static const struct call calls[] = {
#define CALL_ROW(name, number, lib, symbol, flags)                                                 \
	{symbol, LIEN_CALL_##name, LIEN_LIB_##lib, flags},
	LIEN_CALLS(CALL_ROW)
#undef CALL_ROW
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

const char *lien_probes_symbol(const char *name)
{
	unsigned i;

	for (i = 0; i < CALLS; i++)
		if (!strcmp(calls[i].symbol, name))
			return calls[i].symbol;
	return NULL;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static int on_record(void *context, void *data, size_t size)
{
	struct lien_probes *probes = context;

	probes->config.on_event(probes->config.context, data, size);
	return 0;
}

/* libbpf's chatter is for us, not for users; LIEN_DEBUG=1 shows it. */
static int print(enum libbpf_print_level level, const char *format, va_list args)
{
	if (level == LIBBPF_DEBUG || !getenv("LIEN_DEBUG"))
		return 0;
	return vfprintf(stderr, format, args);
}

/* The syscall tracepoints are found through tracefs, which bare systems do not mount. */
static void tracefs_mount(void)
{
	if (access("/sys/kernel/tracing/events", F_OK) &&
		access("/sys/kernel/debug/tracing/events", F_OK))
		mount("tracefs", "/sys/kernel/tracing", "tracefs", MS_NOSUID | MS_NODEV | MS_NOEXEC,
			NULL);
}

static int explain(int err, const char *what, char *error, size_t size)
{
	const char *why = err == -EPERM || err == -EACCES
				  ? "not permitted: run as root or with CAP_BPF, CAP_PERFMON and "
				    "CAP_SYS_PTRACE"
				  : strerror(-err);

	snprintf(error, size, "%s: %s (`lien doctor` checks what this machine lacks)", what, why);
	return err;
}

static int open_and_load(struct lien_probes *probes, char *error, size_t size)
{
	struct stat pidns;
	int err;

	if (stat("/proc/self/ns/pid", &pidns))
		return explain(-errno, "cannot read /proc/self/ns/pid", error, size);
	probes->skel = trace_bpf__open();
	if (!probes->skel)
		return explain(-errno, "cannot open the BPF programs", error, size);
	probes->skel->rodata->lien_pidns = pidns.st_ino;
	if (probes->config.ring_bytes)
		bpf_map__set_max_entries(probes->skel->maps.events, probes->config.ring_bytes);
	probes->multi = !probes->config.no_multi && lien_uprobe_multi_supported();
	probes->can_follow = probes->multi && lien_uprobe_multi_of_process_supported();
	probes->skel->rodata->lien_all_contexts = !probes->can_follow;
	if (probes->multi) {
		bpf_program__set_expected_attach_type(
			probes->skel->progs.lien_entry, LIEN_UPROBE_MULTI_TYPE);
		bpf_program__set_expected_attach_type(
			probes->skel->progs.lien_return, LIEN_UPROBE_MULTI_TYPE);
		bpf_program__set_expected_attach_type(
			probes->skel->progs.lien_gate_entry, LIEN_UPROBE_MULTI_TYPE);
		bpf_program__set_expected_attach_type(
			probes->skel->progs.lien_gate_return, LIEN_UPROBE_MULTI_TYPE);
	}
	err = lien_keep_begin(probes);
	if (err)
		return explain(err,
			"cannot go on with the pinned maps, which `lien agent --clean` removes",
			error, size);
	err = trace_bpf__load(probes->skel);
	if (err)
		return explain(err, "the kernel refused the BPF programs", error, size);
	lien_keep_maps(probes);
	lien_keep_take_gates(probes);
	return 0;
}

static int attach_system(struct lien_probes *probes, char *error, size_t size)
{
	struct trace_bpf *skel = probes->skel;
	struct {
		struct bpf_program *program;
		const char *name;
	} parts[] = {
		{skel->progs.lien_exec, "process exec"},
		{skel->progs.lien_exit, "process exit"},
		{skel->progs.lien_fork, "process fork"},
		{skel->progs.lien_mmap_enter, "mmap"},
		{skel->progs.lien_mmap_exit, "mmap"},
	};
	struct lien_attached *system;
	struct bpf_link *link;
	char what[64];
	unsigned i;

	if (probes->system)
		return 0;
	system = probes->system = lien_attached_new("tracepoints");
	if (!system)
		return explain(-ENOMEM, "cannot attach to tracepoints", error, size);
	system->number = ++probes->next_attachment;
	tracefs_mount();
	for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		link = bpf_program__attach(parts[i].program);
		if (!link) {
			snprintf(what, sizeof(what), "cannot attach to the tracepoint of %s",
				parts[i].name);
			return explain(-errno, what, error, size);
		}
		system->links[system->links_count++] = link;
	}
	lien_keep_links(probes, system);
	return 0;
}

int lien_probes_open(struct lien_probes **out, const struct lien_probes_config *config, char *error,
	size_t error_size)
{
	struct lien_probes *probes = calloc(1, sizeof(*probes));
	int err;

	if (!probes)
		return explain(-ENOMEM, "cannot start", error, error_size);
	probes->config = *config;
	libbpf_set_print(print);
	err = open_and_load(probes, error, error_size);
	if (err)
		goto failed;
	probes->ring =
		ring_buffer__new(bpf_map__fd(probes->skel->maps.events), on_record, probes, NULL);
	if (!probes->ring) {
		err = explain(-errno, "cannot map the ring buffer", error, error_size);
		goto failed;
	}
	err = attach_system(probes, error, error_size);
	if (err)
		goto failed;
	lien_keep_save(probes);
	*out = probes;
	return 0;
failed:
	if (!probes->resumed)
		lien_probes_unpin(probes);
	lien_probes_close(probes);
	return err;
}

struct lien_attached *lien_attached_new(const char *name)
{
	struct lien_attached *attached = calloc(1, sizeof(*attached));

	if (!attached)
		return NULL;
	attached->multi[0] = attached->multi[1] = -1;
	attached->file.path = lien_library_text(name);
	if (attached->file.path)
		return attached;
	free(attached);
	return NULL;
}

void lien_attached_free(struct lien_attached *attached)
{
	unsigned i;

	for (i = 0; i < attached->links_count; i++) {
		/* Else libbpf would switch the event off, pinned or not. */
		if (attached->pins)
			bpf_link__disconnect(attached->links[i]);
		bpf_link__destroy(attached->links[i]);
	}
	for (i = 0; i < 2; i++)
		if (attached->multi[i] >= 0)
			close(attached->multi[i]);
	free(attached->file.path);
	free(attached);
}

int lien_attached_add(struct lien_attached_list *list, struct lien_attached *attached)
{
	struct lien_attached **items =
		realloc(list->items, (list->count + 1) * sizeof(*list->items));

	if (!items)
		return -ENOMEM;
	list->items = items;
	items[list->count++] = attached;
	return 0;
}

void lien_attached_clear(struct lien_attached_list *list)
{
	while (list->count)
		lien_attached_free(list->items[--list->count]);
	free(list->items);
	list->items = NULL;
}

static void close_gate(const struct lien_gate *gate)
{
	unsigned i;

	for (i = 0; i < 2 * gate->files_count; i++)
		close(gate->files[i / 2].link[i % 2]);
}

void lien_probes_close(struct lien_probes *probes)
{
	if (!probes)
		return;
	while (probes->following_count)
		close(probes->following[--probes->following_count].link);
	free(probes->following);
	while (probes->gates_count)
		close_gate(&probes->gates[--probes->gates_count]);
	free(probes->gates);
	lien_attached_clear(&probes->files);
	lien_attached_clear(&probes->old);
	if (probes->system)
		lien_attached_free(probes->system);
	lien_pins_close(probes->pins);
	lien_skipped_clear(&probes->skipped);
	ring_buffer__free(probes->ring);
	trace_bpf__destroy(probes->skel);
	free(probes);
}

static int attach_multi(struct lien_probes *probes, struct lien_attached *attached,
	const char *path, const uint64_t *offsets, const uint64_t *cookies, unsigned count)
{
	int fd = -1;

	/* Returns first: a call seen entering is then always seen returning. */
	if (count > attached->quick)
		fd = lien_uprobe_multi_attach(bpf_program__fd(probes->skel->progs.lien_return),
			path, offsets + attached->quick, cookies + attached->quick,
			count - attached->quick, LIEN_UPROBE_MULTI_RETURNS);
	if (fd < 0 && count > attached->quick)
		return fd;
	attached->multi[0] = fd;
	fd = lien_uprobe_multi_attach(bpf_program__fd(probes->skel->progs.lien_entry), path,
		offsets, cookies, count, LIEN_UPROBE_MULTI_ENTRIES);
	if (fd < 0)
		return fd;
	attached->multi[1] = fd;
	return 0;
}

static int attach_each(struct lien_probes *probes, struct lien_attached *attached, const char *path,
	const uint64_t *offsets, const uint64_t *cookies, unsigned count)
{
	struct bpf_link *link;
	unsigned i, at_return;

	for (i = 0; i < count; i++)
		for (at_return = i >= attached->quick; at_return + 1 > 0; at_return--) {
			LIBBPF_OPTS(bpf_uprobe_opts, options, .bpf_cookie = cookies[i],
				.retprobe = at_return);

			link = bpf_program__attach_uprobe_opts(
				at_return ? probes->skel->progs.lien_return
					  : probes->skel->progs.lien_entry,
				-1, path, offsets[i], &options);
			if (!link)
				return -errno;
			attached->links[attached->links_count++] = link;
		}
	return 0;
}

/* In which order calls are attached: returns are skipped for the first, cuInit comes last. */
static unsigned pass_of(const struct call *call)
{
	return call->flags & LIEN_CALL_QUICK ? 0 : call->flags & LIEN_CALL_FIRST ? 2 : 1;
}

/* Two names of one function would have each call seen twice. */
static bool is_alias(const uint64_t *offsets, unsigned count, uint64_t offset)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (offsets[i] == offset)
			return true;
	return false;
}

/*
 * Where a function's probe goes: behind an endbr64, which changes nothing. The kernel emulates most
 * instructions that functions begin with; this one it would run in a copy, and trap once more.
 */
uint64_t lien_behind_endbr(int fd, uint64_t offset)
{
	static const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
	unsigned char first[sizeof(endbr64)];

	if (pread(fd, first, sizeof(first), offset) == sizeof(first) &&
		!memcmp(first, endbr64, sizeof(first)))
		return offset + sizeof(first);
	return offset;
}

/* The calls that a library may have, and where one has them. */
struct lookup {
	struct lien_elf_lookup found[CALLS];
	const struct call *call[CALLS];
	unsigned count;
};

static int look_up(
	struct lookup *lookup, int fd, enum lien_library library, char *build_id, size_t size)
{
	struct lien_elf *elf;
	unsigned i;
	int err;

	memset(lookup, 0, sizeof(*lookup));
	err = lien_elf_open(fd, &elf);
	if (err)
		return err;
	for (i = 0; i < CALLS; i++)
		if (calls[i].library == library) {
			lookup->call[lookup->count] = &calls[i];
			lookup->found[lookup->count++].name = calls[i].symbol;
		}
	err = lien_elf_functions(elf, lookup->found, lookup->count);
	if (lien_elf_build_id(elf, build_id, size))
		build_id[0] = '\0';
	lien_elf_close(elf);
	return err < 0 ? err : 0;
}

static void take_contexts(struct lien_attached *attached, const struct lookup *lookup, int fd)
{
	unsigned i;

	attached->contexts_known = true;
	for (i = 0; i < lookup->count && attached->contexts < LIEN_CONTEXT_CALLS; i++) {
		if (!(lookup->call[i]->flags & LIEN_CALL_CONTEXT) || lookup->found[i].result)
			continue;
		attached->context_offsets[attached->contexts] =
			lien_behind_endbr(fd, lookup->found[i].file_offset);
		attached->context_cookies[attached->contexts++] =
			LIEN_COOKIE(lookup->call[i]->number, lookup->call[i]->flags, 0);
	}
}

int lien_attached_contexts(struct lien_attached *attached, int fd)
{
	struct lookup lookup;
	char build_id[41];
	int err;

	if (!attached->contexts_known) {
		err = look_up(&lookup, fd, attached->file.library, build_id, sizeof(build_id));
		if (err)
			return err;
		take_contexts(attached, &lookup, fd);
	}
	return attached->contexts ? 0 : -ENODATA;
}

/* Looks up the library's calls. Returns how many there are, or -errno. */
static int find_calls(const struct lien_probes *probes, struct lien_attached *attached, int fd,
	uint64_t *offsets, uint64_t *cookies)
{
	unsigned missing = 0, found = 0, pass, i;
	const struct call *call;
	struct lookup lookup;
	uint64_t offset;
	int err;

	err = look_up(&lookup, fd, attached->file.library, attached->file.build_id,
		sizeof(attached->file.build_id));
	if (err)
		return err;
	if (probes->can_follow)
		take_contexts(attached, &lookup, fd);
	for (pass = 0; pass < 3; pass++) {
		for (i = 0; i < lookup.count; i++) {
			call = lookup.call[i];
			if (pass_of(call) != pass)
				continue;
			if (lookup.found[i].result) {
				attached->file.missing[missing++] = call->symbol;
				continue;
			}
			offset = lien_behind_endbr(fd, lookup.found[i].file_offset);
			if (is_alias(offsets, found, offset) ||
				(probes->can_follow && call->flags & LIEN_CALL_CONTEXT))
				continue;
			offsets[found] = offset;
			cookies[found++] = LIEN_COOKIE(call->number, call->flags, attached->number);
		}
		if (!pass)
			attached->quick = found;
	}
	return found ? (int)found : -ENODATA;
}

struct lien_attached *lien_attached_find(
	const struct lien_probes *probes, dev_t device, ino_t inode)
{
	unsigned i;

	for (i = 0; i < probes->files.count; i++)
		if (probes->files.items[i]->file.device == device &&
			probes->files.items[i]->file.inode == inode)
			return probes->files.items[i];
	return NULL;
}

const struct lien_probed_file *lien_probes_file(
	const struct lien_probes *probes, dev_t device, ino_t inode)
{
	const struct lien_attached *attached = lien_attached_find(probes, device, inode);

	return attached ? &attached->file : NULL;
}

/* When these calls of the file began to be seen: by another build already, if it saw the same. */
static uint64_t t_attached(const struct lien_probes *probes, const struct lien_attached *attached)
{
	const struct lien_attached *old;
	unsigned i;

	for (i = 0; i < probes->old.count; i++) {
		old = probes->old.items[i];
		if (old->file.device == attached->file.device &&
			old->file.inode == attached->file.inode && old->probes == attached->probes)
			return old->file.t_attached;
	}
	return now_ns();
}

/* What is probed, whatever the attachment's number; contexts are followed in this way or that. */
static uint64_t hash_probes(const uint64_t *offsets, const uint64_t *cookies, unsigned count)
{
	uint64_t hash = LIEN_HASH_START;
	uint32_t call;

	for (; count--; offsets++, cookies++) {
		call = (uint32_t)*cookies;
		if (LIEN_COOKIE_FLAGS(*cookies) & LIEN_CALL_CONTEXT)
			continue;
		hash = lien_hash(hash, offsets, sizeof(*offsets));
		hash = lien_hash(hash, &call, sizeof(call));
	}
	return hash;
}

/* Remembers why, and says so once. */
static int skip(struct lien_probes *probes, const char *name, const struct stat *st, int err)
{
	const struct lien_skipped_file *file;

	if (lien_skipped_find(&probes->skipped, name, st))
		return err;
	file = lien_skipped_add(&probes->skipped, name, st, err);
	if (file)
		probes->config.on_skipped(probes->config.context, file);
	return err;
}

/* Its contents are not worth reading again. */
static int refused_before(const struct lien_probes *probes, const char *name, const struct stat *st)
{
	const struct lien_skipped_file *file = lien_skipped_find(&probes->skipped, name, st);

	return file && (file->err == -ENOEXEC || file->err == -EBADMSG || file->err == -ENODATA)
		       ? file->err
		       : 0;
}

int lien_probes_attach(
	struct lien_probes *probes, enum lien_library library, const char *path, const char *name)
{
	uint64_t offsets[CALLS], cookies[CALLS];
	struct lien_attached *attached = NULL;
	struct stat st = {0};
	char fd_path[32];
	int fd, err;

	fd = lien_library_open(path, &st);
	if (fd < 0)
		return skip(probes, name, &st, fd);
	err = refused_before(probes, name, &st);
	if (err || lien_probes_file(probes, st.st_dev, st.st_ino))
		goto out;
	err = -ENOMEM;
	attached = lien_attached_new(name);
	if (!attached)
		goto out;
	attached->number = ++probes->next_attachment;
	attached->file.library = library;
	attached->file.device = st.st_dev;
	attached->file.inode = st.st_ino;
	err = find_calls(probes, attached, fd, offsets, cookies);
	if (err < 0)
		goto out;
	attached->file.calls = err;
	attached->probes = hash_probes(offsets, cookies, err);
	/* By the open file: the path may lead elsewhere by now. */
	snprintf(fd_path, sizeof(fd_path), "/proc/self/fd/%d", fd);
	err = probes->multi ? attach_multi(probes, attached, fd_path, offsets, cookies,
				      attached->file.calls)
			    : attach_each(probes, attached, fd_path, offsets, cookies,
				      attached->file.calls);
	if (err)
		goto out;
	attached->file.t_attached = t_attached(probes, attached);
	err = lien_attached_add(&probes->files, attached);
	if (err)
		goto out;
	lien_keep_links(probes, attached);
	lien_keep_save(probes);
	attached = NULL;
out:
	if (attached)
		lien_attached_free(attached);
	close(fd);
	return err ? skip(probes, name, &st, err) : 0;
}

const struct lien_skipped *lien_probes_skipped(const struct lien_probes *probes)
{
	return &probes->skipped;
}

const struct lien_probed_file *lien_probes_each(const struct lien_probes *probes, unsigned index)
{
	return index < probes->files.count ? &probes->files.items[index]->file : NULL;
}

const char *lien_probes_method(const struct lien_probes *probes)
{
	return probes->multi ? "uprobe-multi" : "perf";
}

int lien_probes_fd(const struct lien_probes *probes)
{
	return ring_buffer__epoll_fd(probes->ring);
}

int lien_probes_consume(struct lien_probes *probes)
{
	return ring_buffer__consume(probes->ring);
}

uint64_t lien_probes_counter(const struct lien_probes *probes, enum lien_probe_counter counter)
{
	uint32_t key = counter;
	uint64_t value = 0;

	bpf_map_lookup_elem(bpf_map__fd(probes->skel->maps.counters), &key, &value);
	return value;
}

bool lien_probes_lost(struct lien_probes *probes, uint32_t *pid, uint64_t *count)
{
	int fd = bpf_map__fd(probes->skel->maps.lost);

	return !bpf_map_get_next_key(fd, NULL, pid) && !bpf_map_lookup_elem(fd, pid, count);
}

uint64_t lien_probes_lost_noted(struct lien_probes *probes, uint32_t pid, uint64_t count)
{
	uint64_t all;

	return bpf_map_lookup_and_delete_elem(bpf_map__fd(probes->skel->maps.lost), &pid, &all)
		       ? 0
		       : all - count;
}

bool lien_probes_traffic_of(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	struct lien_probe_traffic *traffic)
{
	struct lien_probe_comm key = {.comm = comm, .pid = pid};

	return !bpf_map_lookup_elem(bpf_map__fd(probes->skel->maps.traffic), &key, traffic);
}

int lien_probes_shares_fd(const struct lien_probes *probes)
{
	return bpf_map__fd(probes->skel->maps.shares);
}

#define TRAFFIC_BATCH 512 /* no bucket of the map is as full */

/* In batches: walking from key to key begins anew when the key at hand has gone meanwhile. */
int lien_probes_traffic(struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_comm *comm,
		const struct lien_probe_traffic *traffic),
	void *context)
{
	static struct lien_probe_comm keys[TRAFFIC_BATCH];
	static struct lien_probe_traffic values[TRAFFIC_BATCH];
	int fd = bpf_map__fd(probes->skel->maps.traffic), err = 0, result;
	uint32_t count, at, *from = NULL, i;

	while (!err) {
		count = TRAFFIC_BATCH;
		err = bpf_map_lookup_batch(fd, from, &at, keys, values, &count, NULL);
		if (err && err != -ENOENT)
			return err;
		for (i = 0; i < count; i++) {
			result = fn(context, &keys[i], &values[i]);
			if (result)
				return result;
		}
		from = &at;
	}
	return 0;
}

int lien_probes_add_process(struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	int fd = bpf_map__fd(probes->skel->maps.processes);
	struct lien_probe_process process;

	/* What an agent before this one, or the kernel side, knows of it stays. */
	if (bpf_map_lookup_elem(fd, &pid, &process) || process.start != start)
		process = (struct lien_probe_process){.start = start};
	process.announced = 1;
	return bpf_map_update_elem(fd, &pid, &process, BPF_ANY);
}

int lien_probes_set_control(
	struct lien_probes *probes, uint32_t pid, const struct lien_probe_control *control)
{
	return bpf_map_update_elem(
		bpf_map__fd(probes->skel->maps.controls), &pid, control, BPF_ANY);
}

/* Where lien_control_state is mapped, counted from where the code is. */
static int control_layout(int fd, struct lien_probe_layout *layout)
{
	uint64_t state, text, offset;
	struct lien_elf *elf;
	int err;

	err = lien_elf_open(fd, &elf);
	if (err)
		return err;
	err = lien_elf_object(elf, "lien_control_state", &state);
	if (!err)
		err = lien_elf_text(elf, &text, &offset);
	lien_elf_close(elf);
	layout->text_offset = offset;
	layout->state = state - text;
	return err;
}

int lien_probes_add_control_file(struct lien_probes *probes, const char *path)
{
	struct lien_probe_layout layout;
	struct stat st;
	uint64_t inode;
	int fd, err;

	fd = lien_library_open(path, &st);
	if (fd < 0)
		return fd;
	err = control_layout(fd, &layout);
	close(fd);
	if (err)
		return err;
	inode = st.st_ino;
	return bpf_map_update_elem(
		bpf_map__fd(probes->skel->maps.control_files), &inode, &layout, BPF_ANY);
}
