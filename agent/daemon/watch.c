// SPDX-License-Identifier: BSD-2-Clause
/* Which processes there are, which files they run from, and where their control library is. */
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

#include "agent/daemon/contexts.h"
#include "agent/daemon/node.h"
#include "agent/daemon/probing.h"
#include "agent/daemon/sites.h"
#include "agent/join/walks.h"
#include "loader/discover/elf_symbols.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"
#include "loader/discover/untrusted.h"

_Static_assert(LIEN_PROBE_CONTROL_MAGIC == LIEN_WIRE_MAGIC, "two names of one number");
_Static_assert(LIEN_PROBE_CONTROL_VERSION == LIEN_WIRE_VERSION, "two names of one number");

#define FDS_MAX	      65536 /* a process that has more may have a card open */
#define WAKE_AGAIN_NS 1000000000ull
#define WAKE_SOON_NS  5000000000ull /* then it is looked at now and then only: it makes no calls */

#define FLAG_EXITING 0x4 /* PF_EXITING: set before its files are closed */

/* Fields 3, 9, 20 and 22 of /proc/PID/stat, counted after the command's last ')'. */
struct stat_line {
	char state;
	unsigned flags, threads;
	unsigned long long start; /* clock ticks */
};

/* 0, or -ESRCH. */
static int read_stat(uint32_t pid, struct stat_line *stat)
{
	char path[32], line[1024];
	const char *at;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%u/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return -ESRCH;
	/* The command may contain newlines. */
	line[fread(line, 1, sizeof(line) - 1, file)] = 0;
	fclose(file);
	at = strrchr(line, ')');
	return at && sscanf(at + 1,
			     " %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			     "%u %*s %llu",
			     &stat->state, &stat->flags, &stat->threads, &stat->start) == 4
		       ? 0
		       : -ESRCH;
}

bool lien_watch_runs(uint32_t pid, uint64_t start)
{
	struct stat_line stat;

	return !read_stat(pid, &stat) && stat.start == LIEN_START_TICKS(start);
}

/* No thread of it runs any more. A process whose first thread has ended may go on, and looks like
 * one that waits for its parent. */
bool lien_watch_has_ended(uint32_t pid, uint64_t start)
{
	struct stat_line stat;

	return read_stat(pid, &stat) || stat.start != LIEN_START_TICKS(start) ||
	       ((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1);
}

bool lien_watch_is_ending(uint32_t pid, uint64_t start)
{
	struct stat_line stat;

	return read_stat(pid, &stat) || stat.start != LIEN_START_TICKS(start) ||
	       stat.flags & FLAG_EXITING;
}

struct reading {
	struct lien_agent *agent;
	uint32_t pid;
	uint64_t start;
	bool driver, control; /* mapped */
};

static const char *last_component(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Probes a file that a process has mapped, unless that was done. */
static int attach_mapped(
	struct lien_agent *agent, uint32_t pid, const struct lien_maps_entry *entry, uint32_t user)
{
	enum lien_library library = lien_library_of(entry->path);
	char path[512];
	int err;

	if (!library || library == LIEN_LIB_CONTROL ||
		lien_probes_file(
			agent->probes, makedev(entry->dev_major, entry->dev_minor), entry->inode))
		return 0;
	err = lien_maps_open_path(pid, entry, path, sizeof(path));
	return err ? err : lien_probes_attach(agent->probes, library, path, entry->path, user);
}

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

	if (!entry->executable || !entry->inode)
		return 0;
	switch (lien_library_of(entry->path)) {
	case LIEN_LIB_CUDA:
		reading->driver = true;
		break;
	case LIEN_LIB_CONTROL:
		reading->control = true;
		break;
	default:
		break;
	}
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
	strncpy(event.library.name, last_component(entry->path), sizeof(event.library.name) - 1);
	deleted = strstr(event.library.name, " (deleted)"); /* the kernel's words, not the name */
	if (deleted)
		*deleted = '\0';
	lien_agent_event(reading->agent, &event);
	return 0;
}

/* The libraries that were mapped before the process came to our notice. Those that the kernel side
 * has told of keep the time at which they were mapped. */
static void read_libraries(struct lien_agent *agent, struct lien_process *process)
{
	struct reading reading = {agent, process->pid, process->start, false, false};
	bool late = lien_maps_read(process->pid, read_entry, &reading) == -ETIMEDOUT;
	struct lien_tracked *tracked = late ? lien_watch_track(agent, process) : process->agent;

	if (tracked)
		tracked->unread = late;
}

static void command_of(uint32_t pid, char *command, size_t size)
{
	char path[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, command, size - 1);
	if (fd >= 0)
		close(fd);
	command[n > 0 ? n : 0] = '\0';
	command[strcspn(command, "\n")] = '\0';
}

static uint32_t uid_of(uint32_t pid)
{
	struct stat st;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u", pid);
	return stat(path, &st) ? 0 : st.st_uid;
}

bool lien_watch_owned(const struct lien_process *process, const struct lien_viewer *viewer)
{
	unsigned real = -1u, effective = -1u, saved = -1u;
	char path[32], line[128];
	FILE *file;

	if (!process || !viewer->one_user)
		return process;
	snprintf(path, sizeof(path), "/proc/%u/status", process->pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Uid: %u %u %u", &real, &effective, &saved) == 3)
			break;
	if (file)
		fclose(file);
	return process->uid == viewer->uid && real == viewer->uid && effective == real &&
	       saved == real;
}

const struct lien_probed_file *lien_watch_probed_file(
	const struct lien_agent *agent, const struct lien_library_map *map)
{
	const struct lien_probed_file *file, *other;
	unsigned i;

	file = lien_probes_file(agent->probes, makedev(map->dev_major, map->dev_minor), map->inode);
	/* Some file systems number their devices otherwise in maps and in stat(). */
	for (i = 0; !file && (other = lien_probes_each(agent->probes, i)); i++)
		if (other->inode == map->inode)
			file = other;
	return file;
}

/* Seen from its first call on, or to be: it mapped the driver, each copy that it has, when that was
 * probed already. */
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
		file = lien_watch_probed_file(agent, map);
		if (!file || !map->t_mapped || map->t_mapped < file->t_attached)
			return false;
		any = true;
	}
	return any;
}

uint64_t lien_watch_start_of(struct lien_agent *agent, uint32_t pid)
{
	const struct lien_process *process = lien_graph_process(agent->graph, pid);
	struct stat_line stat;
	uint64_t start;

	if (read_stat(pid, &stat))
		return 0;
	if (process && LIEN_START_TICKS(process->start) == stat.start)
		return process->start;
	start = lien_probes_start_of(agent->probes, pid);
	return LIEN_START_TICKS(start) == stat.start ? start : stat.start;
}

/* A process that ran before the agent did: what it did until now is not known. */
static void adopt(struct lien_agent *agent, uint32_t pid)
{
	struct reading reading = {agent, pid, 0, false, false};
	uint64_t start = lien_watch_start_of(agent, pid);
	struct lien_process *process;
	struct lien_event event;
	int err;

	if (lien_maps_read(pid, read_entry, &reading) || !reading.driver || !start)
		return;
	process = lien_graph_process(agent->graph, pid);
	if (process && process->start == start && seen_whole(agent, process))
		return;
	err = lien_probes_add_process(agent->probes, pid, start);
	if (err)
		lien_log(
			4, "process %u cannot be told to the kernel side: %s", pid, strerror(-err));
	event = lien_agent_event_of(pid, start, LIEN_EVENT_PROCESS);
	event.size = LIEN_EVENT_SIZE(process);
	event.process.uid = uid_of(pid);
	command_of(pid, event.process.comm, sizeof(event.process.comm));
	lien_agent_event(agent, &event);
}

static int attach_found(const struct lien_library_file *file, void *arg)
{
	struct lien_agent *agent = arg;

	if (file->library != LIEN_LIB_CONTROL)
		lien_probing_found(agent, file);
	return 0;
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
		if (err)
			return err;
	}
	err = lien_libraries_each(attach_found, agent);
	if (err)
		return err;
	lien_agent_consume(agent);
	lien_resume_ends(agent);
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

/* They can be told of memory only where there are some. */
bool lien_watch_cards(void)
{
	DIR *cards = opendir("/sys/class/infiniband");
	struct dirent *entry;
	bool any = false;

	while (cards && (entry = readdir(cards)))
		any |= entry->d_name[0] != '.';
	if (cards)
		closedir(cards);
	return any;
}

bool lien_watch_uses_cards(uint32_t pid)
{
	char path[40], link[64];
	struct dirent *entry;
	unsigned count = 0;
	bool any = false;
	ssize_t n;
	DIR *fds;

	if (!lien_watch_cards())
		return false;
	snprintf(path, sizeof(path), "/proc/%u/fd", pid);
	fds = opendir(path);
	while (fds && !any && (entry = readdir(fds))) {
		n = readlinkat(dirfd(fds), entry->d_name, link, sizeof(link) - 1);
		link[n < 0 ? 0 : n] = '\0';
		any = !strncmp(link, "/dev/infiniband/uverbs", 22) || ++count > FDS_MAX;
	}
	if (fds)
		closedir(fds);
	return any || !fds; /* not to be seen: it may */
}

/* The process may have called this library before it was probed. */
static void doubt(
	struct lien_agent *agent, struct lien_process *process, const struct lien_library_map *map)
{
	enum lien_library library = lien_library_of(map->file->text);
	const struct lien_probed_file *file;
	struct lien_event event;
	unsigned reason;
	uint64_t since;

	if (!library || library == LIEN_LIB_CONTROL || library == LIEN_LIB_CUDART)
		return;
	/* Neither makes communicators nor registers GPU memory before the driver's first call. */
	since = map->t_mapped;
	if (library != LIEN_LIB_CUDA && process->t_first > since)
		since = process->t_first;
	file = lien_watch_probed_file(agent, map);
	if (file && since >= file->t_attached)
		return;
	if (library == LIEN_LIB_NCCL)
		reason = LIEN_INCOMPLETE_NCCL;
	else if (library == LIEN_LIB_CUDA)
		reason = LIEN_INCOMPLETE_LATE;
	else
		reason = lien_watch_cards() ? LIEN_INCOMPLETE_CARDS : 0;
	if (!(reason & ~process->incomplete))
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_INCOMPLETE);
	event.size = LIEN_EVENT_SIZE(incomplete);
	event.incomplete.reasons = process->incomplete | reason;
	lien_agent_event(agent, &event);
	lien_log(5,
		"process %u mapped %s before it was probed, and may have made calls that were "
		"missed",
		process->pid, file ? file->path : map->file->text);
}

static void doubt_all(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_library_map *map;

	RB_FOREACH (map, lien_library_tree, &process->libraries)
		doubt(agent, process, map);
}

struct finding {
	const struct lien_library_map *map;
	uint64_t base;
	char path[512];
	uint32_t pid;
	bool found, memfd;
};

static int find_control(const struct lien_maps_entry *entry, void *arg)
{
	struct finding *finding = arg;

	if (entry->inode != finding->map->inode || lien_library_of(entry->path) != LIEN_LIB_CONTROL)
		return 0;
	if (!finding->found && !entry->offset) {
		finding->base = entry->start;
		finding->memfd = !strncmp(entry->path, "/memfd:", strlen("/memfd:"));
		finding->found = !lien_maps_open_path(
			finding->pid, entry, finding->path, sizeof(finding->path));
	}
	return 0;
}

static int control_place(struct lien_tracked *tracked, const struct lien_library_map *map)
{
	struct finding finding = {.map = map, .pid = tracked->pid};
	struct lien_elf *elf;
	struct stat st;
	uint64_t value;
	int fd, err;

	lien_maps_read(tracked->pid, find_control, &finding);
	if (!finding.found)
		return -ENOENT;
	fd = lien_untrusted_open(finding.path, &st);
	if (fd < 0)
		return fd;
	err = lien_elf_open(fd, &elf);
	close(fd);
	if (err)
		return err;
	err = lien_elf_object(elf, "lien_control_state", &value);
	lien_elf_close(elf);
	if (err)
		return err;
	if (!finding.memfd) /* for those to come; nobody else will map that */
		lien_probing_control(tracked->agent, tracked->pid, finding.path);
	tracked->place.text = map->start;
	tracked->place.text_end = map->end;
	tracked->place.state = finding.base + value;
	return 0;
}

struct lien_tracked *lien_watch_track(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;

	if (tracked)
		return tracked;
	tracked = calloc(1, sizeof(*tracked));
	if (!tracked)
		return NULL;
	tracked->agent = agent;
	tracked->pid = process->pid;
	tracked->t_first = lien_now_ns();
	process->agent = tracked;
	return tracked;
}

/* Tells the kernel side where the control library is, and to wake it if its thread does not run. */
static void tell_kernel(struct lien_agent *agent, struct lien_tracked *tracked,
	const struct lien_control_state *state, bool wake)
{
	struct lien_probe_control control = {
		.text = tracked->place.text,
		.text_end = tracked->place.text_end,
		.translate = state->translate,
		.translate_end = state->translate_end,
		.handler = state->handler,
		.signal = state->signal,
		.wake = wake ? LIEN_PROBE_WAKE_ANY : 0,
	};

	lien_probes_set_control(agent->probes, tracked->pid, &control);
	if (wake)
		tracked->t_woken = lien_now_ns();
}

void lien_watch_passes_on(struct lien_agent *agent, struct lien_process *process)
{
	const struct lien_tracked *tracked = process->agent;
	const struct lien_probe_control control = {
		.text = tracked->place.text,
		.text_end = tracked->place.text_end,
		.translate = tracked->place.text,
		.translate_end = tracked->place.text_end,
	};

	lien_probes_set_control(agent->probes, process->pid, &control);
}

static void look_for_control(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = lien_watch_track(agent, process);
	struct lien_control_state state;
	struct lien_library_map *map;
	int err;

	if (!tracked || tracked->link)
		return;
	if (!tracked->place.state) {
		RB_FOREACH (map, lien_library_tree, &process->libraries)
			if (lien_library_of(map->file->text) == LIEN_LIB_CONTROL &&
				!control_place(tracked, map))
				break;
		if (!map)
			return;
	}
	err = lien_link_state(process->pid, &tracked->place, &state);
	if (err == -EPROTO && process->presence != LIEN_CONTROL_OTHER) {
		lien_log(4, "process %u has a control library of another version of lien",
			process->pid);
		lien_watch_passes_on(agent, process);
		process->presence = LIEN_CONTROL_OTHER;
	}
	if (err == -ENOTCONN) {
		if (!process->detached)
			lien_watch_passes_on(agent, process);
		process->presence = LIEN_CONTROL_NONE;
		process->detached = true;
	}
	if (err)
		return;
	process->presence = LIEN_CONTROL_LOADED;
	tracked->started = lien_link_started(process->pid, &state);
	err = lien_orders_link(agent, process, &state);
	if (!err || err == -EBUSY) {
		tell_kernel(agent, tracked, &state, false);
		if (err)
			process->presence = LIEN_CONTROL_TAKEN;
		return; /* ready when it has answered the first question */
	}
	if (!tracked->t_woken || lien_now_ns() - tracked->t_woken > WAKE_AGAIN_NS)
		tell_kernel(agent, tracked, &state, true);
}

struct mapped_file {
	struct lien_agent *agent;
	const struct lien_event *event;
	uint32_t user;
	int err;
};

static int attach_same(const struct lien_maps_entry *entry, void *arg)
{
	struct mapped_file *file = arg;

	if (!entry->executable || entry->inode != file->event->library.inode)
		return 0;
	file->err = attach_mapped(file->agent, file->event->pid, entry, file->user);
	return 1;
}

/* The kernel side tells of a file by its name and inode; the path is in the process's maps. */
int lien_watch_attach(struct lien_agent *agent, const struct lien_event *event, uint32_t user)
{
	struct mapped_file file = {agent, event, user, 0};
	int err = lien_maps_read(event->pid, attach_same, &file);

	return err < 0 ? err : file.err;
}

static bool needs_probing(struct lien_agent *agent, const struct lien_event *event)
{
	enum lien_library library = lien_library_of(event->library.name);

	return library && library != LIEN_LIB_CONTROL &&
	       !lien_probes_file(agent->probes,
		       makedev(event->library.dev_major, event->library.dev_minor),
		       event->library.inode);
}

/* It mapped a driver that was not probed yet, and may have made all its calls by now. */
static void meet_early(struct lien_agent *agent, const struct lien_event *event)
{
	const struct lien_process *process = lien_graph_process(agent->graph, event->pid);
	const struct lien_probed_file *file = lien_probes_file(agent->probes,
		makedev(event->library.dev_major, event->library.dev_minor), event->library.inode);

	if (lien_library_of(event->library.name) == LIEN_LIB_CUDA && process && !process->cuda &&
		file && event->t_return < file->t_attached)
		adopt(agent, event->pid);
}

static void set_incomplete(
	struct lien_agent *agent, const struct lien_process *process, uint32_t reasons)
{
	struct lien_event event;

	if (process->incomplete == reasons)
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_INCOMPLETE);
	event.size = LIEN_EVENT_SIZE(incomplete);
	event.incomplete.reasons = reasons;
	lien_agent_event(agent, &event);
}

void lien_watch_unprobed(struct lien_agent *agent, const struct lien_event *event)
{
	enum lien_library library = lien_library_of(event->library.name);
	struct lien_process *process;

	if (library != LIEN_LIB_CUDA && library != LIEN_LIB_NCCL)
		return;
	/* None of its calls will tell of it. */
	process = lien_graph_process(agent->graph, event->pid);
	if (library == LIEN_LIB_CUDA && (!process || !process->cuda))
		adopt(agent, event->pid);
	process = lien_graph_process(agent->graph, event->pid);
	if (process && process->start == event->start)
		set_incomplete(agent, process, process->incomplete | LIEN_INCOMPLETE_UNPROBED);
}

void lien_watch_probed(struct lien_agent *agent, const struct lien_event *event)
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
	lien_contexts_event(agent, event);
	if (process->incomplete & LIEN_INCOMPLETE_UNPROBED && !lien_probing_refuses(agent, process))
		set_incomplete(agent, process, process->incomplete & ~LIEN_INCOMPLETE_UNPROBED);
}

void lien_watch_event(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;

	if (event->type == LIEN_EVENT_LIBRARY && event->t_return) {
		if (needs_probing(agent, event))
			lien_probing_mapped(agent, event);
		else
			lien_watch_probed(agent, event);
	}
	if (event->type != LIEN_EVENT_PROCESS)
		return;
	process = lien_graph_process(agent->graph, event->pid);
	if (!process)
		return;
	if (event->process.complete)
		doubt_all(agent, process);
	read_libraries(agent, process);
	if (lien_probing_refuses(agent, process))
		set_incomplete(agent, process, process->incomplete | LIEN_INCOMPLETE_UNPROBED);
	lien_node_process(agent, process);
	look_for_control(agent, process);
}

void lien_watch_resume(struct lien_agent *agent)
{
	struct lien_library_map *map;
	struct lien_process *process;

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		read_libraries(agent, process);
		if (!process->cuda)
			continue;
		lien_node_process(agent, process);
		/* Of those whose time is not known it was found out when they were found. */
		RB_FOREACH (map, lien_library_tree, &process->libraries)
			if (map->t_mapped)
				doubt(agent, process, map);
	}
}

#define SWEEP	 64 /* processes at a time */
#define SWEEP_NS 1000000000ull

/* Or has become another program. */
static bool is_over(
	struct lien_agent *agent, const struct lien_process *process, struct lien_images *images)
{
	return lien_watch_has_ended(process->pid, process->start) ||
	       lien_probes_is_another(agent->probes, process->pid, process->start, images);
}

/* Ends processes that have ended without a word, their last record lost. */
static void sweep(struct lien_agent *agent)
{
	struct lien_images images = {};
	struct lien_process *process;
	struct lien_event event;
	unsigned i;

	if (lien_now_ns() - agent->t_swept < SWEEP_NS)
		return;
	agent->t_swept = lien_now_ns();
	for (i = 0; i < SWEEP; i++) {
		process = lien_graph_process_after(agent->graph, agent->swept);
		agent->swept = process ? process->pid : 0;
		if (!process)
			break;
		if (!is_over(agent, process, &images))
			continue;
		lien_agent_consume(agent); /* its end may be on its way */
		process = lien_graph_process(agent->graph, agent->swept);
		if (!process || !is_over(agent, process, &images))
			continue;
		event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_EXIT);
		lien_agent_event(agent, &event);
	}
	lien_images_free(&images);
}

void lien_watch_tick(struct lien_agent *agent)
{
	struct lien_tracked *tracked;
	struct lien_process *process;

	uint64_t now = lien_now_ns();

	sweep(agent);
	agent->waking = 0;
	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		tracked = process->agent;
		if (tracked && tracked->unread)
			read_libraries(agent, process);
		if (process->presence == LIEN_CONTROL_READY || !process->cuda)
			continue;
		look_for_control(agent, process);
		tracked = process->agent;
		if (process->presence == LIEN_CONTROL_LOADED &&
			now - tracked->t_first < WAKE_SOON_NS)
			agent->waking++;
	}
}

void lien_watch_look(struct lien_agent *agent, struct lien_process *process)
{
	read_libraries(agent, process);
	look_for_control(agent, process);
}

void lien_watch_process_end(void *context, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_agent *agent = context;

	if (agent->transaction)
		lien_transaction_gone(agent->transaction, process->pid);
	lien_sites_process_end(agent);
	lien_probing_process_end(agent);
	if (agent->probes && !agent->ended) {
		lien_probes_unfollow(agent->probes, process->pid);
		lien_probes_ungate(agent->probes, process->pid);
	}
	if (!tracked)
		return;
	lien_walk_end(agent, process, "it has ended");
	lien_orders_unlink(tracked);
	free(tracked->ordinals);
	free(tracked);
	process->agent = NULL;
	process->ordinals = NULL;
}
