// SPDX-License-Identifier: BSD-2-Clause
#include "agent/orders/presence.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "loader/discover/elf_symbols.h"
#include "loader/discover/untrusted.h"

_Static_assert(LIEN_PROBE_CONTROL_MAGIC == LIEN_WIRE_MAGIC, "two names of one number");
_Static_assert(LIEN_PROBE_CONTROL_VERSION == LIEN_WIRE_VERSION, "two names of one number");

#define WAKE_AGAIN_NS 1000000000ull

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
	if (!finding.memfd) /* for later processes; no other process maps a memfd */
		tracked->agent->above->control_file(tracked->agent, tracked->pid, finding.path);
	tracked->place.text = map->start;
	tracked->place.text_end = map->end;
	tracked->place.state = finding.base + value;
	return 0;
}

/* Tells the kernel side where the control library is, and whether to wake its thread. */
static void update_kernel(struct lien_agent *agent, struct lien_tracked *tracked,
	const struct lien_control_state *state, bool wake)
{
	struct lien_probe_control control = {
		.text = tracked->place.text,
		.text_end = tracked->place.text_end,
		.translate = state->translate,
		.translate_end = state->translate_end,
		.handler = state->handler,
		.signal = state->signal,
		.tag = state->tag,
		.wake = wake ? LIEN_PROBE_WAKE_ANY : 0,
	};

	lien_probes_set_control(agent->probes, tracked->pid, &control);
	if (wake)
		tracked->t_woken = lien_now_ns();
}

void lien_presence_passes_on(struct lien_agent *agent, struct lien_process *process)
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

void lien_presence_look(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = lien_agent_track(agent, process);
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
		lien_presence_passes_on(agent, process);
		process->presence = LIEN_CONTROL_OTHER;
	}
	if (err == -ENOTCONN) {
		if (!process->detached)
			lien_presence_passes_on(agent, process);
		process->presence = LIEN_CONTROL_NONE;
		process->detached = true;
	}
	if (err)
		return;
	process->presence = LIEN_CONTROL_LOADED;
	agent->loaded = true;
	tracked->started = lien_link_started(process->pid, &state);
	err = lien_orders_link(agent, process, &state);
	if (!err || err == -EBUSY) {
		update_kernel(agent, tracked, &state, false);
		if (err)
			process->presence = LIEN_CONTROL_TAKEN;
		return; /* ready once it has answered the first question */
	}
	if (!tracked->t_woken || lien_now_ns() - tracked->t_woken > WAKE_AGAIN_NS)
		update_kernel(agent, tracked, &state, true);
}
