// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/select.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/node.h"
#include "agent/graph/array.h"
#include "agent/graph/event_check.h"
#include "agent/graph/named.h"
#include "agent/plan/plan.h"
#include "agent/quiesce/gate.h"

#define TIMEOUT_MS	10000
#define TIMEOUT_MS_MAX	3600000
#define TIMEOUT_MS_USER 60000
#define PERIODS_MAX	64

bool lien_read_flag(struct lien_client *client, json_t *request, const char *name, bool *value)
{
	const json_t *flag = json_object_get(request, name);

	*value = json_is_true(flag);
	return !flag || json_is_boolean(flag) ||
	       lien_reply_invalid(client, "%s must be true or false", name);
}

void lien_name_client(const struct lien_client *client, json_t *pid)
{
	if (json_is_integer(pid) && !json_integer_value(pid))
		json_integer_set(pid, client->viewer.pid);
}

/* Positive. Without the member: 0. */
static bool read_bytes(
	struct lien_client *client, json_t *request, const char *name, uint64_t *bytes)
{
	const json_t *value = json_object_get(request, name);

	*bytes = json_integer_value(value);
	return !value || (json_is_integer(value) && json_integer_value(value) > 0) ||
	       lien_reply_invalid(client, "%s must be a positive number", name);
}

/* --- the client's own communicators ----------------------------------------------------------- */

static struct lien_process *own_process(struct lien_client *client)
{
	return lien_graph_process(client->agent->graph, client->viewer.pid);
}

static void refuse_address(struct lien_client *client, uint64_t address, bool unnamed)
{
	char error[200];

	snprintf(error, sizeof(error), "process %u has no communicator at 0x%" PRIx64 "%s",
		client->viewer.pid, address,
		unnamed ? " whose group is known: it was made before it was watched" : "");
	lien_reply_failure(
		client, error, (struct lien_blame){LIEN_CAUSE_INVALID, client->viewer.pid, 0});
}

/* Finds the communicator at an address ("0x5580") of the client's process. NULL after an error
 * reply: there is none, or its group is not known. */
static struct lien_comm *own_comm(struct lien_client *client, const char *address)
{
	struct lien_process *process = own_process(client);
	const size_t digits = address && !strncmp(address, "0x", 2) ? strlen(address + 2) : 0;
	struct lien_comm key, *comm;

	if (!digits || digits > 16 || strspn(address + 2, "0123456789abcdefABCDEF") != digits) {
		lien_reply_invalid(
			client, "a communicator's address must be a text such as \"0x5580\"");
		return NULL;
	}
	key.address = strtoull(address, NULL, 16);
	comm = process ? RB_FIND(lien_comm_tree, &process->comms, &key) : NULL;
	if (comm && !lien_comm_unnamed(comm))
		return comm;
	refuse_address(client, key.address, comm);
	return NULL;
}

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

/* In one order, each once: ranks of the same groups ask for the same. */
static json_t *list_of(uint64_t *groups, unsigned count)
{
	json_t *list = json_array();
	unsigned i;

	qsort(groups, count, sizeof(*groups), lien_u64_cmp);
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

/*
 * Replaces the member `comms_made` of a request, if there is one, by `comms`: the groups of the
 * communicators that the client's process made in these periods. *none: there are no such
 * communicators.
 */
static bool read_made(struct lien_client *client, json_t *request, bool *none)
{
	json_t *made = json_object_get(request, "comms_made");
	struct lien_process *process = own_process(client);
	uint64_t groups[LIEN_SELECT_GROUPS];
	struct periods periods;
	struct lien_comm *comm;
	unsigned count = 0, i;

	*none = false;
	if (!made)
		return true;
	if (json_object_get(request, "comms") || !read_periods(made, &periods))
		return lien_reply_invalid(client,
			"comms_made must be a list of 1 to 64 pairs of times, without comms");
	for (comm = process ? RB_MIN(lien_comm_tree, &process->comms) : NULL; comm;
		comm = RB_NEXT(lien_comm_tree, &process->comms, comm)) {
		for (i = 0; i < periods.count; i++)
			if (comm->t_init >= periods.from[i] && comm->t_init < periods.to[i])
				break;
		if (i == periods.count)
			continue;
		if (count == LIEN_SELECT_GROUPS)
			return lien_reply_invalid(
				client, "more than 1024 communicators are selected");
		if (lien_comm_unnamed(comm)) {
			refuse_address(client, comm->address, true);
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

void lien_own_request(struct lien_client *client, json_t *request)
{
	struct lien_comm *comm =
		own_comm(client, json_string_value(json_object_get(request, "address")));
	uint64_t bytes = 0, movable = 0, offloaded = 0;
	const struct lien_allocation *allocation;

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
	lien_reply_result(client,
		json_pack("{s:o, s:I, s:I, s:I, s:I}", "group",
			json_sprintf("%016" PRIx64, lien_comm_group(comm)), "made_ns",
			(json_int_t)comm->t_init, "bytes", (json_int_t)bytes, "movable_bytes",
			(json_int_t)movable, "offloaded_bytes", (json_int_t)offloaded));
}

/* --- GPUs, communicators, tags ---------------------------------------------------------------- */

/* Adds a GPU once. */
static bool add_gpu(struct lien_transfer *transfer, const struct lien_uuid *uuid)
{
	struct lien_selection *selection = &transfer->selection;
	unsigned i;

	for (i = 0; i < selection->gpus_count; i++)
		if (lien_uuid_equal(&transfer->gpus[i], uuid))
			return true;
	if (selection->gpus_count == LIEN_SELECT_GPUS)
		return false;
	transfer->gpus[selection->gpus_count++] = *uuid;
	return true;
}

/* What the client sees of what it can name; collected when it first names something. */
struct seen {
	struct lien_named_gpu *gpus;
	uint64_t *groups;
	unsigned gpus_count, groups_count;
	unsigned devices; /* of a process, at most; 0: not counted yet */
};

static bool unknown_gpu(struct lien_client *client, const struct seen *seen, const char *name)
{
	const unsigned count = seen->devices < LIEN_ORDINALS_MAX ? seen->devices : 0;
	char error[LIEN_KNOWN_SIZE];

	lien_known_gpus(lien_node_now(client->agent), count, name, error, sizeof(error));
	return lien_reply_invalid(client, "%s", error);
}

static bool unknown_group(struct lien_client *client, const struct seen *seen, const char *name)
{
	char error[LIEN_KNOWN_SIZE];

	lien_known_groups(seen->groups, seen->groups_count, name, error, sizeof(error));
	return lien_reply_invalid(client, "%s", error);
}

/* Adds each device of a process whose UUID begins like this. Returns false after an error reply. */
static bool add_by_uuid(struct lien_client *client, struct seen *seen,
	struct lien_transfer *transfer, const char *text)
{
	unsigned first, count, i;

	if (!seen->gpus && lien_gpus_seen(client->agent->graph, &client->viewer, &seen->gpus,
				   &seen->gpus_count)) {
		lien_reply_error(client, "out of memory");
		return false;
	}
	count = lien_gpus_find(seen->gpus, seen->gpus_count, text, &first);
	if (!count)
		return unknown_gpu(client, seen, text);
	for (i = first; i < first + count && i <= first + LIEN_SELECT_GPUS; i++) {
		if (!seen->gpus[i].chosen && !add_gpu(transfer, &seen->gpus[i].uuid))
			return lien_reply_invalid(client, "gpus names more than 256 GPUs");
		seen->gpus[i].chosen = true;
	}
	return true;
}

/* Returns how many devices a process may have at most, as far as is known. */
static unsigned may_have_devices(const struct lien_client *client)
{
	struct lien_process *process;
	unsigned most = 0, count;

	for (process = lien_graph_first(client->agent->graph); process && most < LIEN_ORDINALS_MAX;
		process = lien_graph_next(process)) {
		if (!process->cuda || !lien_viewer_sees(&client->viewer, process))
			continue;
		count = process->ordinals ? process->ordinals->count : LIEN_ORDINALS_MAX;
		most = count > most ? count : most;
	}
	return most;
}

/* nvidia-smi's index; without NVML the processes' own number. */
static bool add_by_number(struct lien_client *client, struct seen *seen,
	struct lien_transfer *transfer, json_int_t number)
{
	const struct lien_node *node = lien_node_now(client->agent);
	unsigned i;

	for (i = 0; node && i < node->count; i++)
		if (node->devices[i].index == number)
			return add_gpu(transfer, &node->devices[i].uuid);
	if ((node && node->count) || number < 0)
		return false;
	if (!seen->devices)
		seen->devices = may_have_devices(client);
	if (number >= seen->devices)
		return false;
	transfer->selection.ordinals |= 1ull << number;
	return true;
}

static bool read_gpus(struct lien_client *client, json_t *request, struct seen *seen,
	struct lien_transfer *transfer)
{
	json_t *list = json_object_get(request, "gpus");
	char number[24];
	json_t *gpu;
	size_t i;

	if (list && (!json_is_array(list) || !json_array_size(list) ||
			    json_array_size(list) > LIEN_SELECT_GPUS))
		return lien_reply_invalid(client, "gpus must be a list of 1 to 256 GPUs");
	transfer->selection.by_gpu = list;
	json_array_foreach (list, i, gpu) {
		if (json_is_string(gpu)) {
			if (!add_by_uuid(client, seen, transfer, json_string_value(gpu)))
				return false;
		} else if (json_is_integer(gpu)) {
			snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
				json_integer_value(gpu));
			if (!add_by_number(client, seen, transfer, json_integer_value(gpu)))
				return unknown_gpu(client, seen, number);
		} else {
			return lien_reply_invalid(client,
				"each of gpus must be a number, or the beginning of "
				"a UUID, such as \"GPU-5f0a\"");
		}
	}
	return true;
}

/* Turns the address of a communicator of the client's own process into its group's name. */
static bool name_group(struct lien_client *client, json_t *address)
{
	const struct lien_comm *comm = own_comm(client, json_string_value(address));
	char name[17];

	if (!comm)
		return false;
	snprintf(name, sizeof(name), "%016" PRIx64, lien_comm_group(comm));
	json_string_set(address, name);
	return true;
}

static bool read_comms(struct lien_client *client, json_t *request, struct seen *seen,
	struct lien_transfer *transfer)
{
	json_t *list = json_object_get(request, "comms");
	const char *name;
	json_t *comm;
	size_t i;

	if (list && (!json_is_array(list) || !json_array_size(list) ||
			    json_array_size(list) > LIEN_SELECT_GROUPS))
		return lien_reply_invalid(client, "comms must be a list of 1 to 1024 groups");
	if (list && lien_groups_seen(client->agent->graph, &client->viewer, &seen->groups,
			    &seen->groups_count)) {
		lien_reply_error(client, "out of memory");
		return false;
	}
	json_array_foreach (list, i, comm) {
		name = json_string_value(comm);
		if (name && !strncmp(name, "0x", 2) && !name_group(client, comm))
			return false;
		name = json_string_value(comm);
		if (!name)
			return lien_reply_invalid(client,
				"each of comms must be a group as `comms` names it, "
				"16 hexadecimal digits, or the address of a "
				"communicator of the client's own process");
		transfer->groups[i] = strtoull(name, NULL, 16);
		if (strlen(name) != 16 || strspn(name, "0123456789abcdefABCDEF") != 16 ||
			!lien_u64_find(seen->groups, seen->groups_count, transfer->groups[i]))
			return unknown_group(client, seen, name);
		transfer->selection.groups_count = i + 1;
	}
	return true;
}

/* Is it a tag, as far as its characters and its length go? */
static bool check_tag(struct lien_client *client, const char *text)
{
	char tag[LIEN_TAG_BYTES] = "";

	if (text && strlen(text) < sizeof(tag))
		strcpy(tag, text);
	return lien_tag_valid(tag) ||
	       lien_reply_invalid(client, "a tag has 1 to 63 printable ASCII characters");
}

/* The texts remain the request's. */
static bool read_tags(struct lien_client *client, json_t *request, struct lien_transfer *transfer)
{
	json_t *list = json_object_get(request, "tags");
	json_t *tag;
	size_t i;

	if (list && (!json_is_array(list) || !json_array_size(list) ||
			    json_array_size(list) > LIEN_SELECT_TAGS))
		return lien_reply_invalid(client, "tags must be a list of 1 to 256 tags");
	json_array_foreach (list, i, tag) {
		if (!check_tag(client, json_string_value(tag)))
			return false;
		transfer->tags[i] = json_string_value(tag);
		transfer->selection.tags_count = i + 1;
	}
	return true;
}

/* Nothing that the client sees has such a name, or it is not one: false after an error reply. */
static bool read_names(struct lien_client *client, json_t *request, struct lien_transfer *transfer)
{
	struct seen seen = {0};
	bool read = read_gpus(client, request, &seen, transfer) &&
		    read_comms(client, request, &seen, transfer) &&
		    read_tags(client, request, transfer);

	free(seen.gpus);
	free(seen.groups);
	return read;
}

/* --- requests --------------------------------------------------------------------------------- */

struct lien_transfer *lien_read_transfer(struct lien_client *client, json_t *request)
{
	static struct lien_transfer transfer;
	json_t *timeout = json_object_get(request, "timeout_ms"), *pid;
	json_t *pids = json_object_get(request, "pids");
	const json_int_t ms = timeout ? json_integer_value(timeout) : TIMEOUT_MS;
	bool valid = true;
	size_t i;

	memset(&transfer, 0, sizeof(transfer));
	if ((timeout && !json_is_integer(timeout)) || ms < 1 || ms > TIMEOUT_MS_MAX)
		valid = lien_reply_invalid(client, "timeout_ms must be between 1 and 3600000");
	else if (client->viewer.one_user && ms > TIMEOUT_MS_USER)
		valid = lien_reply_invalid(
			client, "timeout_ms must be between 1 and 60000, except for root");
	else if (pids && (!json_array_size(pids) || json_array_size(pids) > LIEN_SELECT_PIDS))
		valid = lien_reply_invalid(client,
			"pids must be a list of 1 to 4096 process ids; without pids, all "
			"processes are meant");
	if (!valid)
		return NULL;
	json_array_foreach (pids, i, pid) {
		if (!json_is_integer(pid) || json_integer_value(pid) < 0 ||
			json_integer_value(pid) > UINT32_MAX) {
			lien_reply_invalid(client, "pids must be a list of process ids");
			return NULL;
		}
		/* Two clients that each name themselves do not ask for the same. */
		lien_name_client(client, pid);
		transfer.pids[i] = json_integer_value(pid);
	}
	transfer.request = request;
	transfer.how.timeout_ms = ms;
	transfer.selection.viewer = client->viewer;
	lien_transfer_point(&transfer);
	transfer.selection.pids_count = json_array_size(pids);
	return &transfer;
}

#define DISCARD_TAG "tag:"

/* Parses "nccl" or "tag:kv_cache". The strings remain the request's. */
static bool read_discards(
	struct lien_client *client, json_t *request, struct lien_transfer *transfer)
{
	json_t *list = json_object_get(request, "discard"), *entry;
	const char *text;
	size_t i;

	if (list && (!json_is_array(list) || json_array_size(list) > LIEN_SELECT_DISCARD))
		return lien_reply_invalid(
			client, "discard must be a list of at most 1024 selectors");
	json_array_foreach (list, i, entry) {
		struct lien_discard *discard = &transfer->discard[i];

		text = json_string_value(entry);
		if (text && !strncmp(text, DISCARD_TAG, strlen(DISCARD_TAG))) {
			discard->tag = text + strlen(DISCARD_TAG);
			if (!check_tag(client, discard->tag))
				return false;
		} else if (text && text[0] && !strchr(text, ':')) {
			discard->owner = text;
		} else {
			return lien_reply_invalid(client,
				"discard: '%.64s' is neither an owner, such as nccl, nor a tag, "
				"such as tag:kv_cache",
				text ? text : "");
		}
	}
	transfer->selection.discard_count = json_array_size(list);
	return true;
}

static bool read_on_use(struct lien_client *client, json_t *request, enum lien_on_use *on_use)
{
	const json_t *value = json_object_get(request, "on_use");
	unsigned i;

	*on_use = LIEN_ON_USE_WAIT;
	for (i = 0; value && i <= LIEN_ON_USE_IGNORE; i++)
		if (json_is_string(value) &&
			!strcmp(json_string_value(value), lien_on_use_names[i])) {
			*on_use = i;
			return true;
		}
	return !value ||
	       lien_reply_invalid(client, "on_use must be \"wait\", \"restore\" or \"ignore\"");
}

/* Tagged memory is mostly the program's own, so tags alone do not mean NCCL's. */
static bool read_owner(struct lien_client *client, json_t *request, const char **owner)
{
	const json_t *name = json_object_get(request, "owner");

	if (name && !json_is_string(name))
		return lien_reply_invalid(
			client, "owner must be the name of a library, or \"all\"");
	*owner = name ? json_string_value(name) : json_object_get(request, "tags") ? "all" : "nccl";
	if (!strcmp(*owner, "all"))
		*owner = NULL;
	return true;
}

struct lien_transfer *lien_read_offload(struct lien_client *client, json_t *request)
{
	struct lien_transfer *transfer;
	struct lien_selection *selection;
	const char *owner = NULL;
	bool verify;

	if (!read_owner(client, request, &owner))
		return NULL;
	transfer = lien_read_transfer(client, request);
	if (!transfer)
		return NULL;
	selection = &transfer->selection;
	selection->owner = owner;
	if (!lien_read_flag(client, request, "strict", &selection->strict) ||
		!lien_read_flag(client, request, "with_closure", &selection->with_closure) ||
		!lien_read_flag(client, request, "multicast", &selection->multicast) ||
		!read_bytes(client, request, "free_bytes", &selection->free))
		return NULL;
	if (selection->free && selection->strict) {
		lien_reply_invalid(client,
			"free_bytes and strict exclude each other: what is not needed is left");
		return NULL;
	}
	if (!lien_read_flag(client, request, "verify", &verify) ||
		!read_discards(client, request, transfer) ||
		!read_bytes(client, request, "host_limit_bytes", &transfer->how.host_limit) ||
		!read_on_use(client, request, &transfer->how.on_use) ||
		!lien_read_flag(client, request, "dry_run", &transfer->dry_run) ||
		!read_made(client, request, &transfer->none) ||
		!read_names(client, request, transfer))
		return NULL;
	transfer->how.flags = verify ? LIEN_WIRE_VERIFY : 0;
	return transfer;
}

struct lien_transfer *lien_read_restore(struct lien_client *client, json_t *request)
{
	struct lien_transfer *transfer = lien_read_transfer(client, request);

	if (!transfer || !lien_read_flag(client, request, "lazy", &transfer->how.lazy) ||
		!read_made(client, request, &transfer->none))
		return NULL;
	if (transfer->none)
		return transfer;
	if (!read_names(client, request, transfer))
		return NULL;
	if (transfer->how.lazy && transfer->selection.tags_count)
		lien_reply_invalid(client, "lazy goes by communicator: it excludes tags");
	else if (transfer->how.lazy && json_object_get(request, "coordinate"))
		lien_reply_invalid(client,
			"on several nodes everything comes back together: it excludes lazy");
	else
		return transfer;
	return NULL;
}
