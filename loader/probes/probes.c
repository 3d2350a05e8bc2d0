// SPDX-License-Identifier: BSD-2-Clause
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/discover/elf_symbols.h"
#include "loader/probes/gate_links.h"
#include "loader/probes/make_link.h"
#include "loader/probes/maps.h"
#include "loader/discover/untrusted.h"
#include "loader/probes/uprobe.h"

static int on_record(void *context, void *data, size_t size)
{
	struct lien_probes *probes = context;

	/* libbpf counts the record as consumed, and stops. */
	return probes->config.on_event(probes->config.context, data, size) ? -EAGAIN : 0;
}

/* libbpf's messages are for developers; LIEN_DEBUG=1 shows them. */
static int print(enum libbpf_print_level level, const char *format, va_list args)
{
	if (level == LIBBPF_DEBUG || !getenv("LIEN_DEBUG"))
		return 0;
	return vfprintf(stderr, format, args);
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

/* With fewer threads than usual there is less room for all else that is kept of them: the kernel
 * takes a map's memory when it is made. Maps that are pinned stay as they are. */
static void set_room(struct trace_bpf *skel, uint32_t usual)
{
	struct bpf_map *const maps[] = {skel->maps.processes, skel->maps.lost, skel->maps.controls,
		skel->maps.gates, skel->maps.gates_all, skel->maps.shut, skel->maps.followed,
		skel->maps.contexts, skel->maps.traffic, skel->maps.pairs, skel->maps.unmades,
		skel->maps.shares, skel->maps.export_slots};
	uint32_t threads = bpf_map__max_entries(skel->maps.threads), shift = 0;
	unsigned i;

	while (threads << shift < usual)
		shift++;
	skel->rodata->lien_threads_max = threads;
	skel->rodata->lien_room_shift = shift;
	for (i = 0; shift && i < sizeof(maps) / sizeof(maps[0]); i++)
		bpf_map__set_max_entries(maps[i], (bpf_map__max_entries(maps[i]) >> shift) + 1);
}

const struct lien_probes_facts *lien_probes_facts(const struct lien_probes *probes)
{
	return &probes->facts;
}

/* Chooses how to attach, as far as the kernel and the configuration permit. */
static void choose(struct lien_probes *probes)
{
	struct trace_bpf *skel = probes->skel;
	struct bpf_program *const uprobes[] = {skel->progs.lien_entry, skel->progs.lien_return,
		skel->progs.lien_gate_entry, skel->progs.lien_gate_return};
	unsigned i;

	probes->facts.multi = !probes->config.no_multi && lien_uprobe_multi_supported();
	probes->facts.method = probes->facts.multi ? "uprobe-multi" : "perf";
	probes->facts.can_follow = probes->facts.multi && !probes->config.no_bound &&
				   lien_uprobe_multi_of_process_supported();
	probes->facts.gate_lacks = lien_uprobe_gate_lacks(probes->facts.multi);
	skel->rodata->lien_all_contexts = !probes->facts.can_follow;
	for (i = 0; probes->facts.multi && i < sizeof(uprobes) / sizeof(uprobes[0]); i++)
		bpf_program__set_expected_attach_type(uprobes[i], LIEN_UPROBE_MULTI_TYPE);
}

static int open_and_load(struct lien_probes *probes, char *error, size_t size)
{
	struct trace_bpf *skel;
	struct stat pidns;
	uint32_t threads;
	int err;

	if (stat("/proc/self/ns/pid", &pidns))
		return explain(-errno, "cannot read /proc/self/ns/pid", error, size);
	skel = probes->skel = trace_bpf__open();
	if (!skel)
		return explain(-errno, "cannot open the BPF programs", error, size);
	skel->rodata->lien_pidns = pidns.st_ino;
	if (probes->config.ring_bytes)
		bpf_map__set_max_entries(skel->maps.events, probes->config.ring_bytes);
	threads = bpf_map__max_entries(skel->maps.threads);
	if (probes->config.threads) {
		bpf_map__set_max_entries(skel->maps.threads, probes->config.threads);
		bpf_map__set_max_entries(skel->maps.held, probes->config.threads);
	}
	choose(probes);
	err = lien_keep_begin(probes);
	if (err)
		return explain(err,
			"cannot go on with the pinned maps, which `lien agent --clean` removes",
			error, size);
	set_room(skel, threads);
	/* A third of the room is for exports of restores, an eighth of that for each user:
	 * bpf/sharing.h. */
	probes->facts.exports_max = bpf_map__max_entries(skel->maps.export_slots) / 3 / 8;
	err = trace_bpf__load(skel);
	if (err)
		return explain(err, "the kernel refused the BPF programs", error, size);
	skel->links.lien_images = bpf_program__attach_iter(skel->progs.lien_images, NULL);
	skel->links.lien_files = bpf_program__attach_iter(skel->progs.lien_files, NULL);
	skel->links.lien_unheld = bpf_program__attach_iter(skel->progs.lien_unheld, NULL);
	if (!skel->links.lien_images || !skel->links.lien_files || !skel->links.lien_unheld)
		return explain(-errno, "cannot iterate over processes", error, size);
	lien_keep_maps(probes);
	lien_gate_take(probes);
	return 0;
}

static int attach_system(struct lien_probes *probes, char *error, size_t size)
{
	struct trace_bpf *skel = probes->skel;
	struct {
		struct bpf_program *program;
		const char *tracepoint, *name;
	} parts[] = {
		{skel->progs.lien_exec, "sched_process_exec", "process exec"},
		{skel->progs.lien_exit, "sched_process_exit", "process exit"},
		{skel->progs.lien_fork, "sched_process_fork", "process fork"},
		{skel->progs.lien_mmap_exit, "sys_exit", "mmap"},
	};
	struct lien_attached *system;
	char what[64];
	unsigned i;
	int fd;

	if (probes->system)
		return 0;
	system = probes->system = lien_attached_new("tracepoints");
	if (!system || lien_attached_room(system, sizeof(parts) / sizeof(parts[0])))
		return explain(-ENOMEM, "cannot attach to tracepoints", error, size);
	system->number = ++probes->next_attachment;
	for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		fd = bpf_raw_tracepoint_open(
			parts[i].tracepoint, bpf_program__fd(parts[i].program));
		if (fd < 0) {
			snprintf(what, sizeof(what), "cannot attach to the tracepoint of %s",
				parts[i].name);
			return explain(fd, what, error, size);
		}
		system->links[i] = fd;
	}
	lien_keep_links(probes, system);
	return 0;
}

/* The first page of a ring has the reader's position, the second one the writer's. */
static int map_positions(struct lien_probes *probes)
{
	int fd = MAP(probes, events);
	size_t page = sysconf(_SC_PAGESIZE);
	void *consumed, *produced;

	consumed = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
	if (consumed == MAP_FAILED)
		return -errno;
	probes->consumed = consumed;
	produced = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, page);
	if (produced == MAP_FAILED)
		return -errno;
	probes->produced = produced;
	return 0;
}

static void unmap_positions(struct lien_probes *probes)
{
	size_t page = sysconf(_SC_PAGESIZE);

	if (probes->consumed)
		munmap((void *)probes->consumed, page);
	if (probes->produced)
		munmap((void *)probes->produced, page);
}

int lien_probes_open(struct lien_probes **out, const struct lien_probes_config *config, char *error,
	size_t error_size)
{
	struct lien_probes *probes = calloc(1, sizeof(*probes));
	int err;

	if (!probes)
		return explain(-ENOMEM, "cannot start", error, error_size);
	probes->config = *config;
	TAILQ_INIT(&probes->files);
	TAILQ_INIT(&probes->attaching);
	TAILQ_INIT(&probes->old);
	TAILQ_INIT(&probes->gate_links);
	libbpf_set_print(print);
	lien_uprobe_close_prepare();
	err = open_and_load(probes, error, error_size);
	if (err)
		goto failed;
	probes->ring = ring_buffer__new(MAP(probes, events), on_record, probes, NULL);
	if (!probes->ring) {
		err = explain(-errno, "cannot map the ring buffer", error, error_size);
		goto failed;
	}
	err = map_positions(probes);
	if (err) {
		explain(err, "cannot map the ring buffer", error, error_size);
		goto failed;
	}
	err = attach_system(probes, error, error_size);
	if (err)
		goto failed;
	lien_keep_save(probes);
	*out = probes;
	return 0;
failed:
	if (!probes->facts.resumed)
		lien_probes_unpin(probes);
	lien_probes_close(probes);
	return err;
}

void lien_probes_close(struct lien_probes *probes)
{
	unsigned i;

	if (!probes)
		return;
	for (i = 0; i < probes->following_count; i++)
		lien_attached_free(probes->following[i].links);
	free(probes->following);
	lien_gate_links_free(probes);
	free(probes->gates);
	lien_attached_clear(&probes->files);
	lien_attached_clear(&probes->attaching);
	lien_attached_clear(&probes->old);
	if (probes->system)
		lien_attached_free(probes->system);
	lien_pins_close(probes->pins);
	for (i = 0; i < probes->facts.skipped.kept; i++)
		free(probes->facts.skipped.files[i].path);
	free(probes->images);
	unmap_positions(probes);
	ring_buffer__free(probes->ring);
	trace_bpf__destroy(probes->skel);
	free(probes);
}

int lien_probes_fd(const struct lien_probes *probes)
{
	return ring_buffer__epoll_fd(probes->ring);
}

int lien_probes_consume(struct lien_probes *probes)
{
	int n = ring_buffer__consume(probes->ring);

	return n == -EAGAIN ? 1 : n < 0 ? n : 0;
}

uint64_t lien_probes_produced(const struct lien_probes *probes)
{
	return __atomic_load_n(probes->produced, __ATOMIC_ACQUIRE);
}

uint64_t lien_probes_consumed(const struct lien_probes *probes)
{
	return __atomic_load_n(probes->consumed, __ATOMIC_ACQUIRE);
}

uint64_t lien_probes_counter(const struct lien_probes *probes, enum lien_probe_counter counter)
{
	uint32_t key = counter;
	uint64_t value = 0;

	bpf_map_lookup_elem(MAP(probes, counters), &key, &value);
	return value;
}

bool lien_probes_lost(struct lien_probes *probes, uint32_t *pid, uint64_t *count)
{
	int fd = MAP(probes, lost);

	return !bpf_map_get_next_key(fd, NULL, pid) && !bpf_map_lookup_elem(fd, pid, count);
}

uint64_t lien_probes_lost_noted(struct lien_probes *probes, uint32_t pid, uint64_t count)
{
	uint64_t all;

	return bpf_map_lookup_and_delete_elem(MAP(probes, lost), &pid, &all) ? 0 : all - count;
}

bool lien_probes_traffic_of(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	struct lien_probe_traffic *traffic)
{
	struct lien_probe_comm key = {.comm = comm, .pid = pid};

	return !bpf_map_lookup_elem(MAP(probes, traffic), &key, traffic);
}

int lien_probes_traffic(const struct lien_probes *probes, lien_map_fn *fn, void *context)
{
	return lien_map_each(probes->skel->maps.traffic, fn, context);
}

/* --- processes -------------------------------------------------------------------------------- */

static int by_pid(const void *a, const void *b)
{
	const struct lien_probe_image *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

static int read_images(struct lien_probes *probes)
{
	void *found;
	int err;

	free(probes->images);
	err = lien_iterator_read(probes->skel->links.lien_images, sizeof(*probes->images), &found,
		&probes->images_count);
	probes->images = found;
	if (found)
		qsort(found, probes->images_count, sizeof(*probes->images), by_pid);
	return err;
}

/* Returns NULL if there was no such process. */
static const struct lien_probe_image *image_of(const struct lien_probes *probes, uint32_t pid)
{
	const struct lien_probe_image key = {.pid = pid};

	return probes->images
		       ? bsearch(&key, probes->images, probes->images_count, sizeof(key), by_pid)
		       : NULL;
}

/* As last read, or, if it is not among those, as it is now. */
static const struct lien_probe_image *known_image(struct lien_probes *probes, uint32_t pid)
{
	const struct lien_probe_image *image = image_of(probes, pid);

	return image || read_images(probes) ? image : image_of(probes, pid);
}

uint64_t lien_probes_start_of(struct lien_probes *probes, uint32_t pid)
{
	const struct lien_probe_image *image = known_image(probes, pid);

	return image ? image->start : 0;
}

bool lien_probes_process(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_process *process)
{
	return !bpf_map_lookup_elem(MAP(probes, processes), &pid, process);
}

bool lien_probes_is_another(struct lien_probes *probes, uint32_t pid, uint64_t start, bool *asked)
{
	const struct lien_probe_image *image;
	struct lien_probe_process known;

	if (lien_probes_process(probes, pid, &known) && known.start == start)
		return false;
	*asked = *asked || !read_images(probes);
	image = *asked ? image_of(probes, pid) : NULL;
	return image && image->start && image->start != start;
}

int lien_probes_add_process(struct lien_probes *probes, uint32_t pid, uint64_t start)
{
	const struct lien_probe_image *image;
	struct lien_probe_process process;

	/* Keeps what an earlier agent or the kernel side recorded. */
	if (!lien_probes_process(probes, pid, &process) || process.start != start) {
		image = known_image(probes, pid);
		process = (struct lien_probe_process){.start = start,
			.account = image ? image->account : LIEN_ACCOUNT_UNKNOWN,
			.entered = 1};
	}
	process.announced = 1;
	return bpf_map_update_elem(MAP(probes, processes), &pid, &process, BPF_ANY);
}

int lien_probes_set_control(
	struct lien_probes *probes, uint32_t pid, const struct lien_probe_control *control)
{
	return bpf_map_update_elem(MAP(probes, controls), &pid, control, BPF_ANY);
}

/* Computes the place of lien_control_state relative to the mapped code. */
static int control_layout(int fd, struct lien_probe_layout *layout)
{
	uint64_t state, text, offset;
	int err = lien_elf_object(fd, "lien_control_state", &state)
			  ?: lien_elf_text(fd, &text, &offset);

	layout->text_offset = offset;
	layout->state = state - text;
	return err;
}

void lien_probes_remove_control_file(struct lien_probes *probes, ino_t inode)
{
	uint64_t key = inode;

	bpf_map_delete_elem(MAP(probes, control_files), &key);
}

void lien_probes_forget_control_files(struct lien_probes *probes)
{
	int fd = MAP(probes, control_files);
	uint64_t inode;

	while (!bpf_map_get_next_key(fd, NULL, &inode) && !bpf_map_delete_elem(fd, &inode))
		;
}

int lien_probes_add_control_file(struct lien_probes *probes, const char *path, ino_t *number)
{
	struct lien_probe_layout layout;
	struct stat st;
	uint64_t inode;
	int fd, err;

	fd = lien_untrusted_open(path, &st);
	if (fd < 0)
		return fd;
	err = control_layout(fd, &layout);
	close(fd);
	if (err)
		return err;
	inode = *number = st.st_ino;
	return bpf_map_update_elem(MAP(probes, control_files), &inode, &layout, BPF_ANY);
}
