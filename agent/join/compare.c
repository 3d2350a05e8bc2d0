// SPDX-License-Identifier: BSD-2-Clause
/* `compare`: compares the graph with the driver, for a client. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/core/proc.h"
#include "agent/join/job.h"
#include "agent/join/walks.h"

struct part {
	struct lien_join_part base;
	bool runs; /* being read */
};

struct compare {
	struct lien_join_job base;
	bool repair;
	uint64_t deadline;
	unsigned timeout_ms, differences, compared;
	json_t *processes;
};

static const char *const difference_names[] = {
	[LIEN_DIFFERENCE_MISSING] = "missing",
	[LIEN_DIFFERENCE_GONE] = "gone",
	[LIEN_DIFFERENCE_SIZE] = "size",
	[LIEN_DIFFERENCE_HANDLE] = "allocation",
	[LIEN_DIFFERENCE_PROPERTIES] = "properties",
	[LIEN_DIFFERENCE_ACCESS] = "access",
};

static void dropped(struct lien_join_job *job)
{
	((struct compare *)job)->deadline = 0;
}

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
	const struct lien_difference *difference;
	json_t *list = json_array();
	char address[24];
	unsigned count, i;

	difference = lien_reread_differences(reread, &count);
	for (i = 0; i < count; i++) {
		snprintf(address, sizeof(address), "%#llx", (unsigned long long)difference[i].va);
		json_array_append_new(
			list, json_pack("{s:s, s:s, s:I, s:o}", "kind",
				      difference_names[difference[i].kind], "address", address,
				      "bytes", (json_int_t)difference[i].bytes, "driver",
				      found_json(&difference[i].found)));
	}
	return list;
}

static void add_result(struct compare *compare, const struct lien_join_part *part,
	const struct lien_process *process, const struct lien_walked *walked)
{
	const struct lien_reread *reread = walked->reread;
	unsigned differences = 0;

	if (reread) {
		lien_reread_differences(reread, &differences);
		compare->compared++;
	}
	compare->differences += differences;
	json_array_append_new(compare->processes,
		json_pack("{s:i, s:s, s:s?, s:o, s:i, s:i, s:b, s:b, s:i, s:f, s:f}", "pid",
			part->pid, "command", process ? process->command : "", "error",
			walked->error, "differences",
			reread ? differences_json(reread) : json_array(), "mappings",
			reread ? lien_reread_mappings(reread) : 0, "unsettled",
			reread ? lien_reread_unstable(reread) : 0, "repaired", walked->repaired,
			"complete", process && lien_process_whole(process), "orders",
			walked->orders, "ms", walked->ns / 1e6, "walk_ms", walked->walk_ns / 1e6));
}

static void answer(struct lien_join_job *job)
{
	const struct compare *compare = (struct compare *)job;

	lien_reply_result(job->client,
		json_pack("{s:O, s:i, s:i, s:i}", "processes", compare->processes, "differences",
			compare->differences, "compared", compare->compared, "not_compared",
			job->count - compare->compared));
	lien_client_go_on(job->client);
}

static void release(struct lien_join_job *job)
{
	json_decref(((struct compare *)job)->processes);
}

static void fail(struct lien_join_job *job, struct lien_join_part *part, const char *error)
{
	const struct lien_walked walked = {.error = error};

	part->done = true;
	add_result((struct compare *)job, part, lien_join_process(job, part), &walked);
}

static void on_walked(void *to, struct lien_process *process, const struct lien_walked *walked)
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
		err = lien_walk_start(job->agent, process, repair, on_walked, job);
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

	if (lien_now_ns() >= compare->deadline) {
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
	.dropped = dropped,
	.release = release,
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

	if (compare)
		compare->processes = json_array();
	if (!compare || !compare->processes) {
		if (compare)
			lien_join_free(&compare->base);
		lien_reply_error(client, "out of memory");
		return;
	}
	compare->repair = repair;
	compare->timeout_ms = timeout_ms;
	compare->deadline = lien_now_ns() + timeout_ms * 1000000ull;
	lien_join_begin(&compare->base);
}
