// SPDX-License-Identifier: BSD-2-Clause
/* Control libraries are found in their processes; links to them are made, heard, and closed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/orders/orders.h"
#include "agent/quiesce/gate.h"
#include "loader/discover/elf_symbols.h"
#include "loader/discover/untrusted.h"

/* At the agent's end, for all processes together: pinning one chunk takes that long on a machine
 * that first has to make the memory as it is touched. */
#define FINISH_NS 3000000000ull

void lien_orders_unlink(struct lien_tracked *tracked)
{
	if (!tracked->link)
		return;
	/* The job shares the socket: closing ours does not remove it from the epoll set. */
	epoll_ctl(tracked->agent->epoll, EPOLL_CTL_DEL, tracked->orders.fd, NULL);
	epoll_ctl(tracked->agent->epoll, EPOLL_CTL_DEL, tracked->life.fd, NULL);
	lien_link_close(tracked->link);
	tracked->link = NULL;
}

static void unlink_process(struct lien_tracked *tracked)
{
	struct lien_process *process = lien_graph_process(tracked->agent->graph, tracked->pid);

	lien_orders_unlink(tracked);
	tracked->t_woken = 0; /* its thread may have to be started again */
	if (process)
		process->presence = LIEN_CONTROL_LOADED;
	if (tracked->agent->transaction)
		lien_transaction_gone(tracked->agent->transaction, tracked->pid);
}

static void hello_devices(struct lien_process *process, const struct lien_wire_hello *hello)
{
	struct lien_ordinals ordinals = {.by_driver = true, .count = hello->devices};
	unsigned i;

	if (!hello->devices || hello->devices > LIEN_ORDINALS_MAX)
		return;
	for (i = 0; i < hello->devices; i++)
		memcpy(ordinals.uuid[i].bytes, hello->uuids[i], sizeof(hello->uuids[i]));
	lien_node_ordinals(process, &ordinals);
}

static void hello_reply(struct lien_tracked *tracked, const struct lien_reply *reply)
{
	struct lien_process *process = lien_graph_process(tracked->agent->graph, tracked->pid);
	const struct lien_wire_hello *hello = reply->body;

	if (reply->header.length < sizeof(reply->header) + sizeof(*hello) || !process)
		return;
	process->held_bytes = hello->bytes;
	process->held_items = hello->items;
	tracked->heard = true;
	tracked->multicast = hello->multicast;
	hello_devices(process, hello);
	if (!lien_gate_found(tracked->agent, process, hello->items > hello->here, hello->shut))
		process->presence = LIEN_CONTROL_READY;
	if (hello->items > hello->here)
		lien_log(5,
			"process %u holds %s offloaded by an earlier agent: `lien restore` puts "
			"them back",
			tracked->pid, lien_log_size(hello->bytes).text);
	else if (hello->items)
		lien_log(5,
			"process %u keeps memory that others may lack, for an offload or a restore "
			"was cut short: `lien restore`",
			tracked->pid);
}

/* Every last reply carries it. */
static void note_arena(struct lien_agent *agent, uint32_t pid, const struct lien_wire_header *reply)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	if (!process || !(reply->flags & LIEN_WIRE_LAST))
		return;
	/* The process speaks only for itself; the limit keeps sums from overflowing. */
	process->arena_bytes = reply->arena_bytes < LIEN_WIRE_BYTES_MAX ? reply->arena_bytes : 0;
	process->arena_used =
		reply->arena_used < process->arena_bytes ? reply->arena_used : process->arena_bytes;
}

/* Passes a reply to whoever gave the order. */
static void route(struct lien_agent *agent, uint32_t pid, struct lien_reply *reply)
{
	struct lien_tracked *tracked = lien_orders_tracked(agent, pid);

	lien_turn_part(agent, "reply to", lien_orders_words(reply->asker));
	if (reply->asker == LIEN_ASK_TRANSACTION && agent->transaction) {
		lien_transaction_reply(agent->transaction, pid, &reply->header, reply->body,
			reply->fds, reply->fds_count);
		return;
	}
	lien_link_discard(reply);
	switch (reply->asker) {
	case LIEN_ASK_HELLO:
		hello_reply(tracked, reply);
		break;
	case LIEN_ASK_GATE:
		lien_graph_process(agent->graph, pid)->presence = LIEN_CONTROL_READY;
		break;
	case LIEN_ASK_PREPARE:
		if (reply->header.flags & LIEN_WIRE_LAST)
			lien_prepare_reply(agent, pid, reply);
		break;
	default:
		if (agent->above->reply[reply->asker])
			agent->above->reply[reply->asker](agent, pid, reply);
		break;
	}
}

static void orders_ready(struct lien_source *source, uint32_t events)
{
	struct lien_tracked *tracked =
		(void *)((char *)source - __builtin_offsetof(struct lien_tracked, orders));
	struct lien_agent *agent = tracked->agent;
	uint32_t pid = tracked->pid;
	struct lien_reply reply;
	int n;

	(void)events;
	if (!tracked->link)
		return;
	/* One per turn: the graph has everything that was done before it. */
	n = lien_link_receive(tracked->link, &reply);
	if (n > 0) {
		note_arena(agent, pid, &reply.header);
		route(agent, pid, &reply); /* may end the link */
	}
	tracked = lien_orders_tracked(agent, pid);
	if (n > 0 && tracked && tracked->link)
		n = lien_link_next(tracked->link);
	if (n < 0 && tracked)
		unlink_process(tracked);
}

static void life_ready(struct lien_source *source, uint32_t events)
{
	struct lien_tracked *tracked =
		(void *)((char *)source - __builtin_offsetof(struct lien_tracked, life));
	struct lien_agent *agent = tracked->agent;
	struct lien_process *process;
	struct lien_event event;

	(void)events;
	epoll_ctl(agent->epoll, EPOLL_CTL_DEL, source->fd, NULL);
	process = lien_graph_process(agent->graph, tracked->pid);
	if (!process || process->agent != tracked)
		return;
	/* The kernel side has reported the end too, unless the ring was full. */
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_EXIT);
	lien_agent_event(agent, &event);
}

int lien_orders_link(struct lien_agent *agent, struct lien_process *process,
	const struct lien_control_state *state)
{
	struct lien_wire_header hello = {
		.length = sizeof(hello), .type = LIEN_WIRE_HELLO, .seq = 1};
	struct lien_tracked *tracked = process->agent;
	int err;

	err = lien_link_open(&tracked->link, process->pid, state);
	if (err)
		return err;
	/* Another process may have got the pid since. The link's process is the right one if the
	 * pid has this start and the link's process lives. */
	if (!lien_proc_runs(process->pid, process->start) || !lien_link_alive(tracked->link)) {
		lien_link_close(tracked->link);
		tracked->link = NULL;
		return -ESRCH;
	}
	tracked->orders = (struct lien_source){.fd = tracked->link->fd,
		.ready = orders_ready,
		.name = "control library",
		.reacts = true};
	tracked->life = (struct lien_source){.fd = tracked->link->pidfd,
		.ready = life_ready,
		.name = "process's end",
		.reacts = true};
	err = lien_agent_watch(agent, &tracked->orders, EPOLLIN);
	if (!err)
		err = lien_agent_watch(agent, &tracked->life, EPOLLIN);
	if (!err)
		err = lien_link_send(tracked->link, LIEN_ASK_HELLO, &hello, NULL, NULL, 0);
	if (err)
		lien_orders_unlink(tracked);
	return err;
}

/* Is a short order under way? The next agent would take its calls for the application's. */
static bool is_short(const struct lien_tracked *tracked)
{
	enum lien_asker asked = tracked ? lien_orders_asked(tracked) : LIEN_ASK_NOBODY;

	return asked == LIEN_ASK_WALK || asked == LIEN_ASK_PREPARE;
}

bool lien_orders_finishing(struct lien_agent *agent)
{
	struct lien_process *process;

	if (!agent->t_finish)
		agent->t_finish = lien_now_ns() + FINISH_NS;
	LIEN_FOREACH_PROCESS (process, agent->graph)
		if (is_short(process->agent))
			return lien_now_ns() < agent->t_finish;
	return false;
}

/* --- the control library of a process --------------------------------------------------------- */

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
	struct stat st;
	uint64_t value;
	int fd, err;

	lien_maps_read(tracked->pid, find_control, &finding);
	if (!finding.found)
		return -ENOENT;
	fd = lien_untrusted_open(finding.path, &st);
	if (fd < 0)
		return fd;
	err = lien_elf_object(fd, "lien_control_state", &value);
	close(fd);
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
