// SPDX-License-Identifier: BSD-2-Clause
/* Finds processes, the files that they run from, and their control libraries. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/processes/probing.h"
#include "agent/processes/sites.h"
#include "agent/processes/watch.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "agent/ras/ras.h"
#include "agent/quiesce/gate.h"
#include "agent/quiesce/quiesce.h"
#include "agent/join/join.h"
#include "loader/discover/elf_symbols.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"
#include "loader/probes/functions.h"
#include "loader/discover/untrusted.h"

#define WAKE_SOON_NS 5000000000ull /* after a call; then it is checked now and then */

/* --- contexts --------------------------------------------------------------------------------- */

/*
 * Follows the contexts of processes that have, or may have, more than one. For a process known to
 * have one there is nothing more to learn, and following it would cost several traps per
 * collective.
 */

/* A process that has made its only context current this often, and no other, will hardly make
 * another one. If it does, it is followed from then on. */
#define ENOUGH 1000

struct place {
	uint32_t pid;
	int err; /* 0: found */
	char path[512];
};

static int find_driver(const struct lien_maps_entry *entry, void *arg)
{
	struct place *place = arg;

	if (lien_library_of(entry->path) != LIEN_LIB_CUDA)
		return 0;
	place->err = lien_maps_open_path(place->pid, entry, place->path, sizeof(place->path));
	return !place->err;
}

static void cannot_follow(void *context, uint32_t pid, int err)
{
	(void)context;
	lien_log(4,
		"the contexts of process %u cannot be followed: %s; of memory that it allocates in "
		"several contexts the device may not be known",
		pid, strerror(-err));
}

/* The process was too slow to be read: a tick tries again. */
static void look_again(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = lien_agent_track(agent, process);

	if (tracked)
		tracked->look_again = true;
}

static void follow(struct lien_agent *agent, struct lien_process *process)
{
	struct place place = {.pid = process->pid, .err = -ENOENT};
	int err = lien_maps_read_code(process->pid, find_driver, &place);

	if (place.err) {
		if (err == -ETIMEDOUT || place.err == -ETIMEDOUT)
			look_again(agent, process);
		return;
	}
	err = lien_probes_follow(agent->probes, process->pid, process->start, place.path);
	if (!lien_proc_runs(process->pid, process->start))
		lien_probes_unfollow(
			agent->probes, process->pid); /* another process has its pid by now */
	else if (err == -ETIMEDOUT)
		look_again(agent, process);
	else if (err && err != -ENOENT) /* not probed yet; called again when it is */
		cannot_follow(NULL, process->pid, err);
}

/* A process that has made enough calls with one context would reveal nothing new. */
static void look_at(struct lien_agent *agent, struct lien_process *process)
{
	const bool followed = lien_probes_is_followed(agent->probes, process->pid);
	struct lien_probe_process known;
	bool learnt;

	if (!lien_probes_facts(agent->probes)->can_follow)
		return;
	learnt = lien_probes_process(agent->probes, process->pid, &known) && !known.contexts_many &&
		 known.contexts_set >= ENOUGH;
	if (learnt && followed)
		lien_probes_unfollow(agent->probes, process->pid);
	else if (!learnt && !followed)
		follow(agent, process);
}

void lien_watch_context(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process = lien_graph_process(agent->graph, event->pid);

	if (process && process->start == event->start)
		look_at(agent, process);
}

static void check_followed(struct lien_agent *agent)
{
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		if (lien_probes_is_followed(agent->probes, process->pid))
			look_at(agent, process);
}

void lien_watch_follow(struct lien_agent *agent)
{
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		look_at(agent, process);
}

/* --- libraries and processes ------------------------------------------------------------------ */

struct reading {
	struct lien_agent *agent;
	uint32_t pid;
	uint64_t start;
	bool driver, nvml; /* mapped */
};

static bool is_known(const struct reading *reading, const struct lien_maps_entry *entry)
{
	struct lien_process *process = lien_graph_process(reading->agent->graph, reading->pid);
	const struct lien_library_map *map = process && process->start == reading->start
						     ? lien_process_library(process, entry->start)
						     : NULL;

	return map && map->start == entry->start && map->end == entry->end &&
	       map->inode == entry->inode;
}

static int read_entry(const struct lien_maps_entry *entry, void *arg)
{
	struct reading *reading = arg;
	struct lien_event event;
	char *deleted;

	reading->driver |= lien_library_of(entry->path) == LIEN_LIB_CUDA;
	reading->nvml |= !strncmp(basename(entry->path), "libnvidia-ml.so", 15);
	if (!reading->start || is_known(reading, entry))
		return 0;
	event = lien_agent_event_of(reading->pid, reading->start, LIEN_EVENT_LIBRARY);
	event.size = LIEN_EVENT_SIZE(library);
	event.t_entry = event.t_return = 0; /* mapped some time before now */
	event.library.start = entry->start;
	event.library.length = entry->end - entry->start;
	event.library.offset = entry->offset;
	event.library.inode = entry->inode;
	event.library.dev_major = entry->dev_major;
	event.library.dev_minor = entry->dev_minor;
	strncpy(event.library.name, basename(entry->path), sizeof(event.library.name) - 1);
	deleted = strstr(event.library.name, " (deleted)"); /* the kernel's words, not the name */
	if (deleted)
		*deleted = '\0';
	lien_agent_event(reading->agent, &event);
	return 0;
}

/* Adds the libraries that were mapped before the agent noticed the process. Libraries that the
 * kernel side has reported keep their mapping time. */
static void read_libraries(struct lien_agent *agent, struct lien_process *process)
{
	struct reading reading = {.agent = agent, .pid = process->pid, .start = process->start};

	if (lien_maps_read_code(process->pid, read_entry, &reading) == -ETIMEDOUT)
		look_again(agent, process);
}

/* Is the process seen from its first call on? Yes if it mapped each of its copies of the driver
 * when that copy was already probed. */
static bool seen_whole(struct lien_agent *agent, struct lien_process *process)
{
	const struct lien_probed_file *file;
	struct lien_library_map *map;
	bool any = false;

	if (process->cuda)
		return !(process->incomplete & LIEN_INCOMPLETE_LATE);
	RB_FOREACH (map, lien_library_tree, &process->libraries) {
		if (lien_library_of(map->file->text) != LIEN_LIB_CUDA)
			continue;
		file = lien_probing_mapped_file(agent, map);
		if (!file || !map->t_mapped || map->t_mapped < file->t_attached)
			return false;
		any = true;
	}
	return any;
}

static uint64_t start_of(struct lien_agent *agent, uint32_t pid)
{
	const struct lien_process *process = lien_graph_process(agent->graph, pid);
	uint64_t ticks = lien_proc_start(pid), start;

	if (!ticks)
		return 0;
	if (process && LIEN_START_TICKS(process->start) == ticks)
		return process->start;
	start = lien_probes_start_of(agent->probes, pid);
	return LIEN_START_TICKS(start) == ticks ? start : ticks;
}

/* NVML maps the driver, too; but whoever has called cuInit has devices mapped
 * (docs/measurements.md). */
static int find_device(const struct lien_maps_entry *entry, void *arg)
{
	static const char device[] = "/dev/nvidia";
	const char *after = entry->path + sizeof(device) - 1;

	*(bool *)arg = !strncmp(entry->path, device, sizeof(device) - 1) &&
		       ((*after >= '0' && *after <= '9') || !strncmp(after, "-uvm", 4));
	return *(bool *)arg;
}

/* Adds a process that ran before the agent; what it did until now is not known. */
static void adopt(struct lien_agent *agent, uint32_t pid)
{
	struct reading reading = {.agent = agent, .pid = pid};
	uint64_t start = start_of(agent, pid);
	bool device = false;
	struct lien_process *process;
	struct lien_event event;
	struct stat st;
	char path[32];
	int err;

	if (lien_maps_read_code(pid, read_entry, &reading) || !reading.driver || !start ||
		(reading.nvml && !lien_maps_read(pid, find_device, &device) && !device))
		return; /* it only asks NVML about devices, as DCGM and nvidia-smi do */
	process = lien_graph_process(agent->graph, pid);
	if (process && process->start == start && seen_whole(agent, process))
		return;
	err = lien_probes_add_process(agent->probes, pid, start);
	if (err)
		lien_log(
			4, "the kernel side cannot be told of process %u: %s", pid, strerror(-err));
	event = lien_agent_event_of(pid, start, LIEN_EVENT_PROCESS);
	event.size = LIEN_EVENT_SIZE(process);
	snprintf(path, sizeof(path), "/proc/%u", pid);
	event.process.uid = stat(path, &st) ? 0 : st.st_uid; /* the effective user */
	lien_proc_command(pid, event.process.comm, sizeof(event.process.comm));
	lien_agent_event(agent, &event);
}

/* Marks the process incomplete if it may have called this library before the library was probed. */
static void doubt(
	struct lien_agent *agent, struct lien_process *process, const struct lien_library_map *map)
{
	enum lien_library library = lien_library_of(map->file->text);
	const struct lien_probed_file *file;
	unsigned reason;
	uint64_t since;

	if (!library || library == LIEN_LIB_CONTROL || library == LIEN_LIB_CUDART)
		return;
	/*
	 * Neither library makes communicators or registers GPU memory before the driver's first
	 * call.
	 */
	since = map->t_mapped;
	if (library != LIEN_LIB_CUDA && process->t_first > since)
		since = process->t_first;
	file = lien_probing_mapped_file(agent, map);
	if (file && since >= file->t_attached)
		return;
	if (library == LIEN_LIB_NCCL)
		reason = LIEN_INCOMPLETE_NCCL;
	else if (library == LIEN_LIB_CUDA)
		reason = LIEN_INCOMPLETE_LATE;
	else
		reason = lien_proc_cards() ? LIEN_INCOMPLETE_CARDS : 0;
	if (!(reason & ~process->incomplete))
		return;
	lien_agent_set_incomplete(agent, process, process->incomplete | reason);
	lien_log(5,
		"process %u mapped %s before it was probed, and may have made calls that were "
		"missed",
		process->pid, file ? file->path : map->file->text);
}

static bool needs_probing(struct lien_agent *agent, const struct lien_event *event)
{
	enum lien_library library = lien_library_of(event->library.name);

	return library && library != LIEN_LIB_CONTROL &&
	       !lien_probes_file(agent->probes,
		       makedev(event->library.dev_major, event->library.dev_minor),
		       event->library.inode);
}

/* The process mapped a driver that was not probed yet, and may already have made all its calls. */
static void meet_early(struct lien_agent *agent, const struct lien_event *event)
{
	const struct lien_process *process = lien_graph_process(agent->graph, event->pid);
	const struct lien_probed_file *file = lien_probes_file(agent->probes,
		makedev(event->library.dev_major, event->library.dev_minor), event->library.inode);

	if (lien_library_of(event->library.name) == LIEN_LIB_CUDA && process && !process->cuda &&
		file && event->t_return < file->t_attached)
		adopt(agent, event->pid);
}

/* There is no room to probe the file: marks the process incomplete. */
static void unprobed(struct lien_agent *agent, const struct lien_event *event)
{
	enum lien_library library = lien_library_of(event->library.name);
	struct lien_process *process;

	if (library != LIEN_LIB_CUDA && library != LIEN_LIB_NCCL)
		return;
	/* None of its calls will report it. */
	process = lien_graph_process(agent->graph, event->pid);
	if (library == LIEN_LIB_CUDA && (!process || !process->cuda))
		adopt(agent, event->pid);
	process = lien_graph_process(agent->graph, event->pid);
	if (process && process->start == event->start)
		lien_agent_set_incomplete(
			agent, process, process->incomplete | LIEN_INCOMPLETE_UNPROBED);
}

/* The file has been probed, or will not be. */
static void probed(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;
	struct lien_library_map *map;

	meet_early(agent, event);
	process = lien_graph_process(agent->graph, event->pid);
	if (!process || process->start != event->start)
		return;
	map = lien_process_library(process, event->library.start);
	if (map && process->cuda)
		doubt(agent, process, map);
	if (lien_library_of(event->library.name) == LIEN_LIB_CUDA)
		lien_watch_context(agent, event);
	if (process->incomplete & LIEN_INCOMPLETE_UNPROBED && !lien_probing_refuses(agent, process))
		lien_agent_set_incomplete(
			agent, process, process->incomplete & ~LIEN_INCOMPLETE_UNPROBED);
}

/* Has it probed, if its user may have more files. */
static void queue(struct lien_agent *agent, const struct lien_event *event)
{
	if (!lien_probing_mapped(agent, event))
		unprobed(agent, event);
}

void lien_watch_turn(struct lien_agent *agent)
{
	struct lien_event event;

	switch (lien_probing_turn(agent, &event)) {
	case LIEN_PROBING_DONE:
		probed(agent, &event);
		break;
	case LIEN_PROBING_REFUSED:
		unprobed(agent, &event);
		break;
	case LIEN_PROBING_GOES_ON:
		break;
	}
}

void lien_watch_call(struct lien_agent *agent, const struct lien_event *event)
{
	const struct lien_process *process;
	struct lien_tracked *tracked;

	if (!agent->loaded)
		return;
	process = lien_graph_process(agent->graph, event->pid);
	tracked = process ? process->agent : NULL;
	if (!tracked || process->presence != LIEN_CONTROL_LOADED)
		return;
	tracked->t_called = lien_now_ns();
	agent->waking = true;
}

void lien_watch_library(struct lien_agent *agent, const struct lien_event *event)
{
	const enum lien_library library = lien_library_of(event->library.name);
	struct lien_process *process;

	if (event->t_return || lien_probes_is_rewritten(agent->probes, event->library.inode)) {
		if (needs_probing(agent, event))
			queue(agent, event);
		else
			probed(agent, event);
	}
	process = lien_graph_process(agent->graph, event->pid);
	if (process && !agent->transaction && lien_gated_library(library))
		lien_gate_cover(agent, process); /* some of its calls are to be held */
	if (library == LIEN_LIB_CUDA)
		lien_watch_context(agent, event);
}

void lien_watch_process(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process = lien_graph_process(agent->graph, event->pid);
	struct lien_library_map *map;

	if (process) {
		if (event->process.complete)
			RB_FOREACH (map, lien_library_tree, &process->libraries)
				doubt(agent, process, map);
		read_libraries(agent, process);
		if (lien_probing_refuses(agent, process))
			lien_agent_set_incomplete(
				agent, process, process->incomplete | LIEN_INCOMPLETE_UNPROBED);
		lien_node_process(process);
		lien_presence_look(agent, process);
		agent->waking = true; /* the next tick looks again */
	}
	lien_watch_context(agent, event);
}

void lien_watch_resume(struct lien_agent *agent)
{
	struct lien_library_map *map;
	struct lien_process *process;

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		read_libraries(agent, process);
		if (!process->cuda)
			continue;
		lien_node_process(process);
		/* Libraries without a mapping time were checked when they were found. */
		RB_FOREACH (map, lien_library_tree, &process->libraries)
			if (map->t_mapped)
				doubt(agent, process, map);
	}
}

/* Probes a file that was there before the agent. */
static int attach_found(const struct lien_library_file *file, void *arg)
{
	struct lien_agent *agent = arg;
	struct lien_event event;

	if (file->library == LIEN_LIB_CONTROL || lien_probing_found(agent, file))
		return 0;
	event = lien_agent_event_of(file->pid, start_of(agent, file->pid), LIEN_EVENT_LIBRARY);
	event.library.inode = file->inode;
	event.library.dev_major = major(file->device);
	event.library.dev_minor = minor(file->device);
	strncpy(event.library.name, basename(file->path), sizeof(event.library.name) - 1);
	queue(agent, &event);
	return 0;
}

static void end_process(struct lien_agent *agent, const struct lien_process *process)
{
	const struct lien_event event =
		lien_agent_event_of(process->pid, process->start, LIEN_EVENT_EXIT);

	lien_agent_event(agent, &event);
}

/* Ends the processes that ended while no agent ran. */
static void end_the_ended(struct lien_agent *agent)
{
	struct lien_process *process, *next;

	if (!agent->taken_over)
		return;
	for (process = lien_graph_first(agent->graph); process; process = next) {
		next = lien_graph_next(process);
		if (!lien_proc_runs(process->pid, process->start))
			end_process(agent, process);
	}
}

int lien_watch_start(struct lien_agent *agent, const char *const *libraries)
{
	const char *const *path;
	struct dirent *entry;
	unsigned long pid;
	char *end;
	DIR *proc;
	int err;

	for (path = libraries; path && *path; path++) {
		enum lien_library library = lien_library_of(*path);

		err = library ? lien_probes_attach(
					agent->probes, library, *path, *path, LIEN_PROBES_SYSTEM)
			      : -EINVAL;
		if (!library)
			lien_log(3, "cannot probe %s: not named like libcuda, libcudart or libnccl",
				*path);
		if (err && err != -ETXTBSY) /* which passes */
			return err;
	}
	err = lien_libraries_each(attach_found, agent);
	if (err)
		return err;
	lien_agent_consume(agent);
	end_the_ended(agent);
	proc = opendir("/proc");
	if (!proc)
		return -errno;
	while ((entry = readdir(proc))) {
		pid = strtoul(entry->d_name, &end, 10);
		if (!*end && pid && pid != (unsigned long)getpid()) {
			lien_agent_consume(agent);
			adopt(agent, pid);
		}
	}
	closedir(proc);
	return 0;
}

#define SWEEP	 64 /* processes at a time */
#define SWEEP_NS 1000000000ull

/* Has the process ended, or become another program? */
static bool is_over(struct lien_agent *agent, const struct lien_process *process, bool *asked)
{
	return lien_proc_has_ended(process->pid, process->start) ||
	       lien_probes_is_another(agent->probes, process->pid, process->start, asked);
}

/* Ends processes whose end was not reported because their last record was lost. A process counts as
 * ended at the second look: by then the graph has everything reported before the first. */
static void sweep(struct lien_agent *agent)
{
	struct lien_process *process;
	bool asked = false;
	unsigned i;

	for (i = 0; i < SWEEP; i++) {
		process = lien_graph_process_after(agent->graph, agent->swept);
		agent->swept = process ? process->pid : 0;
		if (!process)
			break;
		if (!is_over(agent, process, &asked))
			process->over = false;
		else if (!process->over)
			process->over = true;
		else
			end_process(agent, process);
	}
}

void lien_watch_tick(struct lien_agent *agent)
{
	struct lien_tracked *tracked;
	struct lien_process *process;
	uint64_t now = lien_now_ns();

	lien_probes_follow_tick(agent->probes, cannot_follow, NULL);
	if (now - agent->t_swept >= SWEEP_NS) {
		agent->t_swept = now;
		check_followed(agent);
		sweep(agent);
	}
	agent->waking = agent->loaded = false;
	LIEN_FOREACH_PROCESS (process, agent->graph) {
		tracked = process->agent;
		if (tracked && tracked->look_again) {
			tracked->look_again = false;
			read_libraries(agent, process);
			look_at(agent, process);
		}
		if (process->presence == LIEN_CONTROL_READY || !process->cuda)
			continue;
		lien_presence_look(agent, process);
		tracked = process->agent;
		if (process->presence != LIEN_CONTROL_LOADED &&
			process->presence != LIEN_CONTROL_UNKNOWN)
			continue;
		agent->loaded |= process->presence == LIEN_CONTROL_LOADED;
		agent->waking |= tracked && now - tracked->t_called < WAKE_SOON_NS;
	}
}

void lien_watch_look(struct lien_agent *agent, struct lien_process *process)
{
	read_libraries(agent, process);
	lien_presence_look(agent, process);
}

void lien_watch_process_end(void *context, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_agent *agent = context;

	if (agent->transaction)
		lien_transaction_gone(agent->transaction, process->pid);
	agent->t_process_end = lien_now_ns();
	if (agent->probes && !agent->ended) {
		lien_probes_unfollow(agent->probes, process->pid);
		lien_probes_ungate(agent->probes, process->pid, true);
	}
	free((void *)process->ordinals);
	process->ordinals = NULL;
	lien_ras_report_free(process->ras);
	process->ras = NULL;
	if (!tracked)
		return;
	lien_walk_end(agent, process, "it has ended");
	lien_orders_unlink(tracked);
	lien_since_clear(tracked, 0);
	free(tracked);
	process->agent = NULL;
}
