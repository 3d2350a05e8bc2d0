// SPDX-License-Identifier: BSD-2-Clause
/* Re-reads processes from the driver, over the links to their control libraries. */
#include "agent/join/walks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/node.h"
#include "agent/core/proc.h"
#include "agent/join/job.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "loader/discover/untrusted.h"

#define CHUNK_US     20000	  /* per order */
#define AGAIN_NS     100000000ull /* between two passes over an address */
#define CALM_NS	     300000000ull /* after the last loss */
#define DELAY_MIN_NS 1000000000ull
#define DELAY_MAX_NS 60000000000ull
#define CHUNK_RANGES                                                                               \
	((LIEN_WIRE_MESSAGE_MAX - sizeof(struct lien_wire_header)) / sizeof(struct lien_wire_range))

struct lien_walk {
	struct lien_tracked *tracked;
	struct lien_reread reread;
	lien_walked_fn *done; /* NULL: the agent began it on its own */
	void *done_for;
	bool repair;
	bool plain;		  /* also look for memory that was there before the agent */
	bool begun;		  /* this pass has begun */
	unsigned next;		  /* next range of the pass */
	uint64_t at;		  /* position in it; 0: its beginning */
	unsigned sent;		  /* ranges in the current order */
	uint64_t t_start, t_pass; /* no pass begins before */
	uint64_t walk_ns;
	unsigned orders;
};

/* Device memory is mapped unreadable, and host memory is shared with the device. */
static int want_region(const struct lien_maps_entry *entry, void *arg)
{
	uint64_t start = (entry->start + LIEN_WIRE_STEP - 1) & ~(LIEN_WIRE_STEP - 1);
	uint64_t end = entry->end & ~(LIEN_WIRE_STEP - 1);

	if (entry->executable || (!entry->shared && (entry->readable || entry->writable)) ||
		start >= end)
		return 0;
	lien_reread_want(arg, start, end - start, LIEN_WIRE_AREA);
	return 0;
}

static void walk_free(struct lien_walk *walk)
{
	if (walk->tracked->walk == walk) {
		walk->tracked->walk = NULL;
		walk->tracked->agent->walks--;
	}
	lien_reread_clear(&walk->reread);
	free(walk);
}

int lien_walk_start(struct lien_agent *agent, struct lien_process *process, bool repair,
	lien_walked_fn *done, void *done_for)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk;
	int err;

	if (tracked->walk || lien_orders_asked(tracked) == LIEN_ASK_WALK)
		return -EBUSY;
	walk = calloc(1, sizeof(*walk));
	if (!walk)
		return -ENOMEM;
	walk->tracked = tracked;
	walk->done = done;
	walk->done_for = done_for;
	walk->repair = repair;
	walk->plain = process->incomplete & LIEN_INCOMPLETE_LATE;
	walk->t_start = lien_now_ns();
	err = lien_maps_read(process->pid, want_region, &walk->reread);
	if (err) {
		walk_free(walk);
		return err;
	}
	lien_reread_want_known(&walk->reread, process);
	tracked->walk = walk;
	agent->walks++;
	return 0;
}

static void emit(void *agent, struct lien_event *event)
{
	lien_agent_event(agent, event);
}

/* Has the process mapped such a library? */
static bool maps(struct lien_process *process, enum lien_library library)
{
	struct lien_library_map *map;

	RB_FOREACH (map, lien_library_tree, &process->libraries)
		if (lien_library_of(map->file->text) == library)
			return true;
	return false;
}

/* Facts that the driver cannot report, and that may have been lost as well. */
static uint32_t doubts_of(struct lien_process *process)
{
	uint32_t doubts = 0;

	if (!(process->incomplete & LIEN_INCOMPLETE_LOST))
		return 0;
	if (maps(process, LIEN_LIB_NCCL))
		doubts |= LIEN_INCOMPLETE_NCCL;
	if (lien_proc_cards() &&
		(maps(process, LIEN_LIB_IBVERBS) || maps(process, LIEN_LIB_GDRAPI)))
		doubts |= LIEN_INCOMPLETE_CARDS;
	return doubts;
}

/* The graph now agrees with the driver, so the earlier losses no longer matter. */
static void note_agreement(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_event event;

	if (!(process->incomplete & LIEN_INCOMPLETE_REREAD) ||
		process->incomplete & (LIEN_INCOMPLETE_LATE | LIEN_INCOMPLETE_SHARE))
		return;
	event = lien_agent_event_of(process->pid, process->start, LIEN_EVENT_REREAD);
	event.size = LIEN_EVENT_SIZE(reread);
	event.reread.doubts = doubts_of(process);
	lien_agent_event(agent, &event);
}

static void log_reread(
	const struct lien_process *process, const struct lien_walk *walk, unsigned differences)
{
	unsigned rest = process->incomplete & (LIEN_INCOMPLETE_REREAD | LIEN_INCOMPLETE_SHARE);

	if (walk->reread.open.count)
		lien_log(4, "process %u was read from the driver, but did not come to rest",
			process->pid);
	else if (rest)
		lien_log(4,
			"process %u was read from the driver, %u differences were mended; it "
			"stays incomplete: it imported memory whose export was not seen",
			process->pid, differences);
	else
		lien_log(5,
			"process %u was read from the driver, %u differences were mended: it is "
			"complete again",
			process->pid, differences);
}

/* All passes are done: puts what is certain into the graph, if that was asked for. */
static void conclude(struct lien_agent *agent, struct lien_process *process, struct lien_walk *walk)
{
	const unsigned differences = walk->reread.certain.count;
	const struct lien_walked walked = {
		.reread = &walk->reread,
		.repaired = differences && walk->repair,
		.orders = walk->orders,
		.ns = lien_now_ns() - walk->t_start,
		.walk_ns = walk->walk_ns,
	};
	struct lien_emitter emitter = {lien_now_ns(), emit, agent};
	struct lien_tracked *tracked = process->agent;

	tracked->objects = walk->reread.objects;
	tracked->own_objects = walk->reread.own_objects;
	tracked->walk = NULL; /* events made below must not count as touches */
	agent->walks--;
	if (walked.repaired)
		lien_reread_repair(&walk->reread, agent->graph, process, &emitter);
	if ((!differences || walk->repair) && !walk->reread.open.count)
		note_agreement(agent, process);
	if (walk->done)
		walk->done(walk->done_for, process, &walked);
	else
		log_reread(process, walk, differences);
	if (!(process->incomplete & LIEN_INCOMPLETE_REREAD))
		tracked->reread_delay = 0;
	walk_free(walk);
}

void lien_walk_end(struct lien_agent *agent, struct lien_process *process, const char *error)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk = tracked ? tracked->walk : NULL;
	struct lien_walked walked = {.error = error};

	(void)agent;
	if (!walk)
		return;
	if (walk->done)
		walk->done(walk->done_for, process, &walked);
	else if (!process->ended)
		lien_log(
			4, "process %u could not be read from the driver: %s", process->pid, error);
	walk_free(walk);
}

static int send_chunk(struct lien_walk *walk)
{
	static struct lien_wire_range chunk[CHUNK_RANGES];
	struct lien_wire_header order = {.type = LIEN_WIRE_WALK,
		.flags = walk->plain ? LIEN_WIRE_ALL : 0,
		.seq = 1,
		.arg = CHUNK_US};
	unsigned n = walk->reread.wanted.count - walk->next;
	int err;

	n = n < CHUNK_RANGES ? n : CHUNK_RANGES;
	memcpy(chunk, walk->reread.wanted.range + walk->next, n * sizeof(*chunk));
	if (walk->at > chunk[0].va && walk->at < chunk[0].va + chunk[0].bytes) {
		chunk[0].bytes -= walk->at - chunk[0].va;
		chunk[0].va = walk->at;
	}
	order.length = sizeof(order) + n * sizeof(*chunk);
	err = lien_link_send(walk->tracked->link, LIEN_ASK_WALK, &order, chunk, NULL, 0);
	if (err)
		return err;
	walk->sent = n;
	walk->orders++;
	return 0;
}

/* Begins the next pass, or ends the walk. */
static int next_pass(struct lien_agent *agent, struct lien_process *process, struct lien_walk *walk)
{
	struct lien_emitter emitter = {lien_now_ns(), emit, agent};
	const int more = lien_reread_end(&walk->reread, process);

	if (more < 0)
		return more;
	lien_reread_learn(&walk->reread, process, &emitter);
	walk->begun = false;
	walk->t_pass = lien_now_ns() + AGAIN_NS;
	if (!more)
		conclude(agent, process, walk);
	return 0;
}

/* Goes on with the walk, if it is its turn. */
static void proceed(struct lien_agent *agent, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk = tracked->walk;
	int err;

	if (!walk || lien_orders_asked(tracked) || lien_orders_waiting(tracked) ||
		agent->transaction || agent->t_finish ||
		(!walk->begun && lien_now_ns() < walk->t_pass))
		return;
	if (!tracked->link) {
		lien_walk_end(agent, process, "its control thread has ended");
		return;
	}
	if (!walk->begun) {
		lien_reread_begin(&walk->reread, process);
		walk->begun = true;
		walk->next = 0;
		walk->at = 0;
	}
	err = walk->next < walk->reread.wanted.count ? send_chunk(walk)
						     : next_pass(agent, process, walk);
	if (err && err != -EBUSY) /* another order is under way: after it */
		lien_walk_end(agent, process, strerror(-err));
}

static struct lien_process *tracked_process(struct lien_agent *agent, uint32_t pid)
{
	struct lien_process *process = lien_graph_process(agent->graph, pid);

	return process && process->agent ? process : NULL;
}

void lien_walks_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	const struct lien_wire_header *header = &reply->header;
	struct lien_process *process = tracked_process(agent, pid);
	struct lien_tracked *tracked = process->agent;
	struct lien_walk *walk = tracked->walk;

	if (!walk)
		return;
	lien_reread_found(&walk->reread, reply->body,
		(header->length - sizeof(*header)) / sizeof(struct lien_wire_found));
	if (!(header->flags & LIEN_WIRE_LAST))
		return;
	walk->walk_ns += header->ns;
	if (header->result) {
		lien_walk_end(agent, process,
			header->text[0] ? header->text
					: strerror(header->result < 0 ? -header->result : EIO));
		return;
	}
	walk->next += header->arg2 < walk->sent ? header->arg2 : walk->sent;
	walk->at = header->arg2 < walk->sent ? header->arg : 0;
	proceed(agent, process);
}

void lien_walks_lost(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process = tracked_process(agent, event->pid);

	if (!process)
		return;
	((struct lien_tracked *)process->agent)->t_lost = lien_now_ns();
	lien_walk_end(agent, process, "events were lost while it was read");
}

void lien_walks_call(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process = agent->walks ? tracked_process(agent, event->pid) : NULL;
	struct lien_tracked *tracked = process ? process->agent : NULL;

	if (tracked && tracked->walk)
		lien_reread_touched(&tracked->walk->reread, event);
}

bool lien_walks_own(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;

	if (!(event->flags & LIEN_EVENT_CONTROL))
		return false;
	/* An adoption counts references by releasing them, and maps exported descriptors. */
	if (agent->adoption.count)
		return true;
	if (event->type != LIEN_CALL_CU_MEM_RETAIN && event->type != LIEN_CALL_CU_MEM_RELEASE &&
		event->type != LIEN_CALL_CU_MEM_EXPORT)
		return false;
	process = tracked_process(agent, event->pid);
	return process && lien_orders_asked(process->agent) == LIEN_ASK_WALK;
}

/*
 * Events were lost, and the process is calm now. Memory from before the agent does not count here.
 */
static bool wants_reading(const struct lien_process *process, uint64_t now)
{
	const struct lien_tracked *tracked = process->agent;

	return tracked && !tracked->walk && lien_orders_asked(tracked) != LIEN_ASK_WALK &&
	       process->cuda && process->presence == LIEN_CONTROL_READY &&
	       process->incomplete & LIEN_INCOMPLETE_REREAD &&
	       !(process->incomplete & LIEN_INCOMPLETE_LATE) && RB_EMPTY(&process->captures) &&
	       now - tracked->t_lost > CALM_NS && now >= tracked->t_reread;
}

void lien_walks_tick(struct lien_agent *agent)
{
	struct lien_process *process, *next;
	struct lien_tracked *tracked;
	uint64_t now = lien_now_ns();

	if (agent->transaction)
		return;
	for (process = lien_graph_first(agent->graph); process; process = next) {
		next = lien_graph_next(process);
		tracked = process->agent;
		if (tracked && tracked->walk)
			proceed(agent, process);
		if (!wants_reading(process, now))
			continue;
		tracked->reread_delay =
			tracked->reread_delay ? 2 * tracked->reread_delay : DELAY_MIN_NS;
		if (tracked->reread_delay > DELAY_MAX_NS)
			tracked->reread_delay = DELAY_MAX_NS;
		tracked->t_reread = now + tracked->reread_delay;
		if (!lien_walk_start(agent, process, true, NULL, NULL))
			proceed(agent, process);
	}
}

/* --- the questions of an adoption (agent/reread/adoption.h) ----------------------------------- */

/* According to the environment that the process started with. */
static bool nvls_is_off(uint32_t pid)
{
	size_t size;
	char *text = lien_environ_read(pid, &size);
	const char *value = lien_environ_variable(text, size, "NCCL_NVLS_ENABLE");
	bool off = value && !strcmp(value, "0");

	free(text);
	return off;
}

/*
 * Facts that the driver cannot report of an adopted process. Memory bound to a multicast object
 * looks like any other. NCCL (2.17 to 2.30) binds some where the devices support it and the node
 * has at least two, unless NCCL_NVLS_ENABLE=0; its objects are for several processes.
 */
static uint32_t adoption_doubts(struct lien_agent *agent, struct lien_process *process)
{
	const struct lien_node *node = lien_node_now(agent);
	const struct lien_tracked *tracked = process->agent;
	bool nccl = maps(process, LIEN_LIB_NCCL);
	uint32_t doubts = nccl ? LIEN_INCOMPLETE_NCCL : 0;

	if (tracked->objects || (nccl && tracked->multicast && !(node && node->count == 1) &&
					!nvls_is_off(process->pid)))
		doubts |= LIEN_INCOMPLETE_MULTICAST;
	if (tracked->own_objects)
		doubts |= LIEN_INCOMPLETE_MULTICAST_OWN;
	return doubts;
}

int lien_adopt_plan(void *context, struct lien_adoption **out, char *why, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_adoption *adoption = &agent->adoption;
	struct lien_process *process;
	unsigned i;
	int err;

	/* Memory that cards may access gets no marks, so this must be known first. */
	for (i = 0; i < adoption->count; i++) {
		process = lien_graph_process(agent->graph, adoption->processes[i].pid);
		if (process && process->incomplete & LIEN_INCOMPLETE_LATE &&
			!(process->incomplete & LIEN_INCOMPLETE_CARDS) &&
			lien_proc_uses_cards(process->pid))
			lien_agent_set_incomplete(
				agent, process, process->incomplete | LIEN_INCOMPLETE_CARDS);
	}
	err = lien_adoption_plan(agent->graph, adoption);
	if (err) {
		snprintf(why, size, "%s", strerror(-err));
		return err;
	}
	for (i = 0; i < adoption->count; i++) {
		process = lien_graph_process(agent->graph, adoption->processes[i].pid);
		adoption->processes[i].doubts = adoption_doubts(agent, process);
		adoption->unread |= adoption->untyped && lien_proc_awaits_files(process->pid);
	}
	*out = adoption;
	return 0;
}

void lien_adopt_answered(void *context)
{
	struct lien_agent *agent = context;
	struct lien_emitter emitter = {lien_now_ns(), emit, agent};

	lien_adoption_emit(&agent->adoption, agent->graph, &emitter);
}

/* --- `compare`: compares the graph with the driver, for a client ------------------------------ */

struct part {
	struct lien_join_part base;
	bool runs; /* being read */
};

struct compare {
	struct lien_join_job base;
	bool repair;
	uint64_t deadline;
	unsigned timeout_ms, differences, compared;
};

static const char *const difference_names[] = {
	[LIEN_DIFFERENCE_MISSING] = "missing",
	[LIEN_DIFFERENCE_GONE] = "gone",
	[LIEN_DIFFERENCE_SIZE] = "size",
	[LIEN_DIFFERENCE_HANDLE] = "allocation",
	[LIEN_DIFFERENCE_PROPERTIES] = "properties",
	[LIEN_DIFFERENCE_ACCESS] = "access",
};

/* The driver's answer for the address. */
static json_t *found_json(const struct lien_wire_found *found)
{
	json_t *access = json_array();
	char handle[24];
	unsigned i;

	if (!found->bytes) {
		json_decref(access);
		return json_null();
	}
	snprintf(handle, sizeof(handle), "%#llx", (unsigned long long)found->handle);
	for (i = 0; i < found->places; i++)
		json_array_append_new(access,
			json_pack("{s:i, s:s}", "device", found->place[i].location_id, "access",
				found->place[i].flags == 3 ? "read-write" : "read"));
	return json_pack("{s:I, s:s, s:o, s:o}", "bytes", (json_int_t)found->bytes, "handle",
		handle, "device",
		found->location_type == 1 ? json_integer(found->location_id) : json_null(),
		"access", access);
}

static json_t *differences_json(const struct lien_reread *reread)
{
	const struct lien_difference *difference = reread->certain.difference;
	json_t *list = json_array();
	char address[24];
	unsigned i;

	for (i = 0; i < reread->certain.count; i++, difference++) {
		snprintf(address, sizeof(address), "%#llx", (unsigned long long)difference->va);
		json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:o}", "kind",
						    difference_names[difference->kind], "address",
						    address, "bytes", (json_int_t)difference->bytes,
						    "driver", found_json(&difference->found)));
	}
	return list;
}

static void add_result(struct compare *compare, const struct lien_join_part *part,
	const struct lien_process *process, const struct lien_walked *walked)
{
	static const struct lien_reread none;
	const struct lien_reread *reread = walked->reread ? walked->reread : &none;
	const unsigned differences = reread->certain.count;

	compare->compared += walked->reread != NULL;
	compare->differences += differences;
	json_array_append_new(compare->base.processes,
		json_pack("{s:i, s:s, s:s?, s:o, s:i, s:i, s:b, s:b, s:i, s:f, s:f}", "pid",
			part->pid, "command", process ? process->command : "", "error",
			walked->error, "differences", differences_json(reread), "mappings",
			reread->mappings, "unsettled", reread->open.count, "repaired",
			walked->repaired, "complete", process && lien_process_whole(process),
			"orders", walked->orders, "ms", walked->ns / 1e6, "walk_ms",
			walked->walk_ns / 1e6));
}

static void answer(struct lien_join_job *job)
{
	const struct compare *compare = (struct compare *)job;

	lien_reply_result(job->client,
		json_pack("{s:O, s:i, s:i, s:i}", "processes", job->processes, "differences",
			compare->differences, "compared", compare->compared, "not_compared",
			job->count - compare->compared));
	lien_client_go_on(job->client);
}

static void fail(struct lien_join_job *job, struct lien_join_part *part, const char *error)
{
	const struct lien_walked walked = {.error = error};

	part->done = true;
	add_result((struct compare *)job, part, lien_join_process(job, part), &walked);
}

static void on_compared(void *to, struct lien_process *process, const struct lien_walked *walked)
{
	struct lien_join_job *job = to;
	struct lien_join_part *part = lien_join_find(job, process->pid, process->start);

	if (!part || !((struct part *)part)->runs)
		return;
	part->done = true;
	add_result((struct compare *)job, part, process, walked);
}

/* Returns why there is nothing to ask; NULL: there may be. */
static const char *not_asked(const struct lien_join_job *job, const struct lien_process *process)
{
	if (!process)
		return "it has ended";
	if (!process->cuda)
		return "it has not used CUDA yet: there is nothing to compare";
	if (job->client && !lien_proc_owned(process, &job->client->viewer))
		return "it does not run as you alone (set-user-id?): only root can compare it";
	return lien_process_takes_no_orders(process);
}

/* Another reader may be at work, or the process slow: tries again with the next tick. */
static void start(
	struct lien_join_job *job, struct lien_join_part *part, struct lien_process *process)
{
	const bool repair = ((struct compare *)job)->repair;
	const char *error = not_asked(job, process);
	int err = 0;

	if (!error)
		error = lien_proc_halted_words(part->pid);
	if (!error)
		err = lien_walk_start(job->agent, process, repair, on_compared, job);
	if (err && err != -EBUSY && err != -ETIMEDOUT)
		error = err == -ESRCH ? "it has ended" : strerror(-err);
	if (error)
		fail(job, part, error);
	else
		((struct part *)part)->runs = !err;
}

static void look(
	struct lien_join_job *job, struct lien_join_part *part, struct lien_process *process)
{
	const struct compare *compare = (struct compare *)job;
	const bool runs = ((struct part *)part)->runs;
	const char *why;
	char error[120];

	if (!job->client || lien_now_ns() >= compare->deadline) {
		why = lien_proc_halted_words(part->pid);
		snprintf(error, sizeof(error), "it was not read within %u ms%s%s",
			compare->timeout_ms, why ? ": " : "", why ? why : "");
		if (runs && process)
			lien_walk_end(job->agent, process, error);
		if (!part->done)
			fail(job, part, error);
	} else if (!runs) {
		start(job, part, process);
	}
}

static const struct lien_join_kind kind = {
	.job_size = sizeof(struct compare),
	.part_size = sizeof(struct part),
	.start = start,
	.look = look,
	.answer = answer,
};

/* One that is named gets a row, if only to say why it is not compared. */
static bool wanted(const struct lien_viewer *viewer, const struct lien_process *process, bool named)
{
	return named || (process->cuda && lien_proc_owned(process, viewer));
}

void lien_compare_start(struct lien_client *client, const uint32_t *pids, unsigned pids_count,
	bool repair, unsigned timeout_ms)
{
	struct compare *compare =
		(struct compare *)lien_join_new(client, &kind, pids, pids_count, wanted);

	if (compare) {
		compare->repair = repair;
		compare->timeout_ms = timeout_ms;
		compare->deadline = lien_now_ns() + timeout_ms * 1000000ull;
	}
	lien_join_begin(client, (struct lien_join_job *)compare);
}
