// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/own.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/daemon/select.h"
#include "agent/plan/plan.h"

#define PERIODS_MAX 64

static struct lien_process *own_process(struct lien_client *client)
{
	return lien_graph_process(client->agent->graph, client->viewer.pid);
}

static void refuse(struct lien_client *client, uint64_t address, bool unnamed)
{
	char error[200];

	snprintf(error, sizeof(error), "process %u has no communicator at 0x%" PRIx64 "%s",
		client->viewer.pid, address,
		unnamed ? " whose group is known: it was made before it was watched" : "");
	lien_reply_failure(
		client, error, (struct lien_blame){LIEN_CAUSE_INVALID, client->viewer.pid, 0});
}

struct lien_comm *lien_own_comm(struct lien_client *client, const char *address)
{
	struct lien_process *process = own_process(client);
	const size_t digits = address && !strncmp(address, "0x", 2) ? strlen(address + 2) : 0;
	struct lien_comm key, *comm;

	if (!digits || digits > 16 || strspn(address + 2, "0123456789abcdefABCDEF") != digits) {
		lien_reply_invalid(client, "a communicator's address must be a text such as "
					   "\"0x5580\"");
		return NULL;
	}
	key.address = strtoull(address, NULL, 16);
	comm = process ? RB_FIND(lien_comm_tree, &process->comms, &key) : NULL;
	if (comm && !lien_comm_unnamed(comm))
		return comm;
	refuse(client, key.address, comm);
	return NULL;
}

void lien_own_name(const struct lien_comm *comm, char name[LIEN_OWN_NAME])
{
	snprintf(name, LIEN_OWN_NAME, "%016" PRIx64, lien_comm_group(comm));
}

/* --- by the time at which they were made ------------------------------------------------------ */

struct periods {
	uint64_t from[PERIODS_MAX], to[PERIODS_MAX];
	unsigned count;
};

static bool read_periods(json_t *list, struct periods *periods)
{
	json_t *period;
	size_t i;

	if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > PERIODS_MAX)
		return false;
	json_array_foreach (list, i, period) {
		if (!json_is_integer(json_array_get(period, 0)) ||
			!json_is_integer(json_array_get(period, 1)) ||
			json_array_size(period) != 2 ||
			json_integer_value(json_array_get(period, 0)) < 0 ||
			json_integer_value(json_array_get(period, 1)) < 0)
			return false;
		periods->from[i] = json_integer_value(json_array_get(period, 0));
		periods->to[i] = json_integer_value(json_array_get(period, 1));
	}
	periods->count = json_array_size(list);
	return true;
}

static bool is_in(const struct periods *periods, uint64_t t)
{
	unsigned i;

	for (i = 0; i < periods->count; i++)
		if (t >= periods->from[i] && t < periods->to[i])
			return true;
	return false;
}

static int group_cmp(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* In one order, each once: ranks of the same groups ask for the same. */
static json_t *list_of(uint64_t *groups, unsigned count)
{
	json_t *list = json_array();
	unsigned i;

	qsort(groups, count, sizeof(*groups), group_cmp);
	for (i = 0; i < count; i++)
		if (!i || groups[i] != groups[i - 1])
			json_array_append_new(list, json_sprintf("%016" PRIx64, groups[i]));
	return list;
}

static void refuse_unseen(struct lien_client *client)
{
	char error[250];

	snprintf(error, sizeof(error),
		"process %u may have made communicators before its NCCL was watched, and none "
		"since: which memory is theirs is not known (start it again: the agent knows this "
		"NCCL now)",
		client->viewer.pid);
	lien_reply_failure(
		client, error, (struct lien_blame){LIEN_CAUSE_UNABLE, client->viewer.pid, 0});
}

bool lien_own_made(struct lien_client *client, json_t *request, bool *none)
{
	json_t *made = json_object_get(request, "comms_made");
	struct lien_process *process = own_process(client);
	uint64_t groups[LIEN_SELECT_GROUPS];
	struct periods periods;
	struct lien_comm *comm;
	unsigned count = 0;

	*none = false;
	if (!made)
		return true;
	if (json_object_get(request, "comms") || !read_periods(made, &periods)) {
		lien_reply_invalid(client, "comms_made must be a list of 1 to 64 pairs of times, "
					   "without comms");
		return false;
	}
	for (comm = process ? RB_MIN(lien_comm_tree, &process->comms) : NULL; comm;
		comm = RB_NEXT(lien_comm_tree, &process->comms, comm)) {
		if (!is_in(&periods, comm->t_init))
			continue;
		if (count == LIEN_SELECT_GROUPS) {
			lien_reply_invalid(client, "more than 1024 communicators are selected");
			return false;
		}
		if (lien_comm_unnamed(comm)) {
			refuse(client, comm->address, true);
			return false;
		}
		groups[count++] = lien_comm_group(comm);
	}
	if (!count && process &&
		process->incomplete & (LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_LATE) &&
		!strcmp(json_string_value(json_object_get(request, "op")), "offload")) {
		refuse_unseen(client);
		return false;
	}
	*none = !count;
	json_object_del(request, "comms_made");
	if (count)
		json_object_set_new(request, "comms", list_of(groups, count));
	return true;
}

/* --- one of them ------------------------------------------------------------------------------ */

void lien_own_request(struct lien_client *client, json_t *request)
{
	struct lien_comm *comm =
		lien_own_comm(client, json_string_value(json_object_get(request, "address")));
	uint64_t bytes = 0, movable = 0, offloaded = 0;
	const struct lien_allocation *allocation;
	char name[LIEN_OWN_NAME];

	if (!comm)
		return;
	LIST_FOREACH (allocation, &own_process(client)->owned, of_owner) {
		if (lien_allocation_comm(allocation) != comm || !lien_allocation_held(allocation) ||
			!lien_allocation_on_device(allocation))
			continue;
		bytes += allocation->bytes;
		if (lien_allocation_offloaded(allocation))
			offloaded += allocation->bytes;
		else if (!lien_plan_unmovable(allocation))
			movable += allocation->bytes;
	}
	lien_own_name(comm, name);
	lien_reply_result(client,
		json_pack("{s:s, s:I, s:I, s:I, s:I}", "group", name, "made_ns",
			(json_int_t)comm->t_init, "bytes", (json_int_t)bytes, "movable_bytes",
			(json_int_t)movable, "offloaded_bytes", (json_int_t)offloaded));
}
