// SPDX-License-Identifier: BSD-2-Clause
/* Makes gates, and attaches them to libraries. */
#include "agent/quiesce/gate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/link/link.h"
#include "loader/probes/calls.h"
#include "loader/probes/follow.h"
#include "loader/probes/functions.h"
#include "loader/probes/gate.h"

struct attaching {
	struct lien_agent *agent;
	uint32_t pid;
	bool all, wait;
	int err;
	char path[256]; /* of the first file that failed */
};

#define TRIES 3

/* Notes the first error: a library whose calls cannot be held is a hole in the gate. */
static int attach_file(const struct lien_maps_entry *entry, void *arg)
{
	enum lien_library library = lien_library_of(entry->path);
	struct attaching *attaching = arg;
	char path[512];
	int err;

	if (!entry->executable || !lien_gated_library(library))
		return 0;
	err = lien_maps_open_path(attaching->pid, entry, path, sizeof(path));
	if (!err)
		err = lien_probes_gate_file(attaching->agent->probes, attaching->pid, library, path,
			attaching->all, attaching->wait);
	if (err && err != -ENODATA && !attaching->err) {
		attaching->err = err;
		snprintf(attaching->path, sizeof(attaching->path), "%s", entry->path);
	}
	return 0;
}

/* Returns 0, or -errno and why. */
static int result_of(const struct attaching *attaching, char *why, size_t size)
{
	if (attaching->err == -EINPROGRESS) {
		snprintf(why, size, "the kernel has not yet put its gate on %s", attaching->path);
		return -ETIMEDOUT;
	}
	if (attaching->err == -ETXTBSY)
		snprintf(why, size,
			"its threads cannot be held back: it has rewritten functions of %s in its "
			"memory",
			attaching->path);
	else if (attaching->err)
		snprintf(why, size, "its threads cannot be held back in %s: %s", attaching->path,
			strerror(-attaching->err));
	return attaching->err;
}

/* Attaches the gate to the libraries that the process is known to have. To read its mappings takes
 * milliseconds (docs/measurements.md). `wait`: for the kernel, for a while. */
static int attach_known(
	struct lien_agent *agent, struct lien_process *process, bool wait, char *why, size_t size)
{
	const struct lien_tracked *tracked = process->agent;
	struct attaching attaching = {
		.agent = agent, .pid = process->pid, .all = tracked->gate_all, .wait = wait};
	struct lien_library_map *map;

	RB_FOREACH (map, lien_library_tree, &process->libraries)
		attach_file(&(struct lien_maps_entry){.start = map->start,
				    .end = map->end,
				    .offset = map->offset,
				    .inode = map->inode,
				    .dev_major = map->dev_major,
				    .dev_minor = map->dev_minor,
				    .executable = true,
				    .path = map->file->text},
			&attaching);
	return result_of(&attaching, why, size);
}

/* Attaches the gate to all libraries that the process has mapped, and waits for the kernel, for a
 * while. */
static int attach_libraries(
	struct lien_agent *agent, struct lien_tracked *tracked, char *why, size_t size)
{
	struct attaching attaching = {
		.agent = agent, .pid = tracked->pid, .all = tracked->gate_all, .wait = true};
	struct lien_probe_gate gate;
	bool exists;
	unsigned tries = 0;
	int err;

	/* before reading: a later mapping changes the count again */
	exists = lien_probes_gate_get(agent->probes, tracked->pid, &gate);
	/* A mapping that changed after it was listed has another name (mprotect() of a part). */
	do {
		attaching.err = 0;
		err = lien_maps_read_code(tracked->pid, attach_file, &attaching);
	} while (attaching.err == -ENOENT && ++tries < TRIES);
	if (attaching.err)
		return result_of(&attaching, why, size);
	if (err)
		snprintf(why, size, "its mappings cannot be read: %s", strerror(-err));
	else if (exists)
		tracked->gate_mapped = gate.mapped;
	return err;
}

/* Checks for threads and communicators that the gate would not see. 0, or -EBUSY and why. */
static int check_known(struct lien_agent *agent, uint32_t pid, char *why, size_t size)
{
	struct lien_probe_process known;

	if (!lien_probes_process(agent->probes, pid, &known)) {
		snprintf(why, size,
			"its user has more processes that use CUDA than lien follows: it is not "
			"one of those");
		return -EBUSY;
	}
	if (known.untracked)
		snprintf(why, size,
			"its user has more threads that use CUDA than lien follows, and some of "
			"this process are not among those: try again with fewer threads");
	else if (known.uncounted)
		snprintf(why, size,
			"its user has more communicators than lien counts, and some of this "
			"process are not among those");
	return known.untracked || known.uncounted ? -EBUSY : 0;
}

int lien_gate_make(
	struct lien_agent *agent, struct lien_process *process, bool wait, char *why, size_t size)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_control_state state;
	int err;

	err = tracked ? lien_link_state(process->pid, &tracked->place, &state) : -ENOENT;
	if (err == -ETIMEDOUT) {
		snprintf(why, size, "its control library cannot be read in time");
		return err;
	}
	if (err) {
		snprintf(why, size,
			"its threads cannot be held back: its first thread has ended, or its "
			"control "
			"library cannot be read");
		return -EOPNOTSUPP;
	}
	err = check_known(agent, process->pid, why, size);
	if (err)
		return err;
	err = lien_probes_gate_prepare(
		agent->probes, process->pid, process->start, tracked->gate_shared);
	if (err) {
		snprintf(why, size, "its threads cannot be held back: %s", strerror(-err));
		return err;
	}
	if (wait && !lien_probes_gate_ready(agent->probes, process->pid)) {
		snprintf(why, size, "the kernel has not yet put its gate on its libraries");
		return -ETIMEDOUT;
	}
	err = attach_known(agent, process, wait, why, size);
	if (!wait)
		return err;
	if (err && err != -ETIMEDOUT) /* what is known may be outdated */
		err = attach_libraries(agent, tracked, why, size);
	if (err)
		return err;
	err = lien_probes_gate(agent->probes, process->pid, process->start);
	if (err < 0) {
		snprintf(why, size, "its threads cannot be held back: %s", strerror(-err));
		return err;
	}
	/* From now on it notices what the process loads; until now it has not. */
	return attach_libraries(agent, tracked, why, size);
}

void lien_gate_say_unheld(uint32_t pid, uint32_t tid, const char *call, char *why, size_t size)
{
	snprintf(why, size,
		"thread %u of process %u blocks the signal that would hold it back, or the process "
		"handles that otherwise%s%s",
		tid, pid, call ? ": it has entered " : "", call ? call : "");
}

bool lien_gate_covers(struct lien_agent *agent, uint32_t pid, const struct lien_probe_gate *gate,
	char *why, size_t size)
{
	struct lien_tracked *tracked = lien_gate_tracked(agent, pid);

	if (tracked && gate->mapped != tracked->gate_mapped) {
		if (!attach_libraries(agent, tracked, why, size))
			snprintf(why, size, "process %u has just loaded a library", pid);
		return false;
	}
	if (gate->unheld)
		lien_gate_say_unheld(
			pid, gate->unheld_tid, lien_calls_name(gate->unheld_call), why, size);
	else if (gate->untracked || gate->unlisted)
		snprintf(why, size,
			"more threads of process %u, or of its user, use CUDA than lien follows",
			pid);
	return !gate->unheld && !gate->untracked && !gate->unlisted;
}

void lien_gate_cover(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_probe_shut range;
	struct lien_probe_gate gate;
	char why[200];
	int err;

	if (!tracked || process->presence != LIEN_CONTROL_READY || tracked->t_gate ||
		lien_now_ns() < tracked->t_cover ||
		!lien_probes_gate_get(agent->probes, process->pid, &gate) ||
		gate.mapped == tracked->gate_mapped ||
		!lien_probes_gate_holds(agent->probes, process->pid, &range))
		return;
	err = attach_libraries(agent, tracked, why, sizeof(why));
	if (!err || err == -ETIMEDOUT)
		return;
	tracked->t_cover = lien_now_ns() + LIEN_GATE_AGAIN_NS;
	lien_log(
		4, "process %u, whose memory is away, has loaded a library: %s", process->pid, why);
}
