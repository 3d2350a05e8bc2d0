// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/core/node.h"
#include "agent/daemon/own.h"
#include "agent/graph/event_check.h"
#include "agent/graph/named.h"

static bool invalid(struct lien_client *client, const char *error)
{
	lien_reply_invalid(client, error);
	return false;
}

/* Adds a GPU once. */
static bool add_gpu(struct lien_selection *selection, struct lien_selected *selected,
	const struct lien_uuid *uuid)
{
	unsigned i;

	for (i = 0; i < selection->gpus_count; i++)
		if (lien_uuid_equal(&selected->gpus[i], uuid))
			return true;
	if (selection->gpus_count == LIEN_SELECT_GPUS)
		return false;
	selected->gpus[selection->gpus_count++] = *uuid;
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
	return invalid(client, error);
}

static bool unknown_group(struct lien_client *client, const struct seen *seen, const char *name)
{
	char error[LIEN_KNOWN_SIZE];

	lien_known_groups(seen->groups, seen->groups_count, name, error, sizeof(error));
	return invalid(client, error);
}

/* Adds each device of a process whose UUID begins like this. Returns false after an error reply. */
static bool add_by_uuid(struct lien_client *client, struct seen *seen,
	struct lien_selection *selection, struct lien_selected *selected, const char *text)
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
		if (!seen->gpus[i].chosen && !add_gpu(selection, selected, &seen->gpus[i].uuid))
			return invalid(client, "gpus names more than 256 GPUs");
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
	struct lien_selection *selection, struct lien_selected *selected, json_int_t number)
{
	const struct lien_node *node = lien_node_now(client->agent);
	unsigned i;

	for (i = 0; node && i < node->count; i++)
		if (node->devices[i].index == number)
			return add_gpu(selection, selected, &node->devices[i].uuid);
	if ((node && node->count) || number < 0)
		return false;
	if (!seen->devices)
		seen->devices = may_have_devices(client);
	if (number >= seen->devices)
		return false;
	selection->ordinals |= 1ull << number;
	return true;
}

static bool read_gpus(struct lien_client *client, json_t *list, struct seen *seen,
	struct lien_selection *selection, struct lien_selected *selected)
{
	char number[24];
	json_t *gpu;
	size_t i;

	if (list && (!json_is_array(list) || !json_array_size(list) ||
			    json_array_size(list) > LIEN_SELECT_GPUS))
		return invalid(client, "gpus must be a list of 1 to 256 GPUs");
	selection->by_gpu = list;
	selection->gpus = selected->gpus;
	json_array_foreach (list, i, gpu) {
		if (json_is_string(gpu)) {
			if (!add_by_uuid(client, seen, selection, selected, json_string_value(gpu)))
				return false;
		} else if (json_is_integer(gpu)) {
			snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
				json_integer_value(gpu));
			if (!add_by_number(
				    client, seen, selection, selected, json_integer_value(gpu)))
				return unknown_gpu(client, seen, number);
		} else {
			return invalid(client, "each of gpus must be a number, or the beginning of "
					       "a UUID, such as \"GPU-5f0a\"");
		}
	}
	return true;
}

/* Turns the address of a communicator of the client's own process into its group's name. */
static bool name_group(struct lien_client *client, json_t *address)
{
	const struct lien_comm *comm = lien_own_comm(client, json_string_value(address));
	char name[LIEN_OWN_NAME];

	if (!comm)
		return false;
	lien_own_name(comm, name);
	json_string_set(address, name);
	return true;
}

static bool read_comms(struct lien_client *client, json_t *list, struct seen *seen,
	struct lien_selection *selection, struct lien_selected *selected)
{
	const char *name;
	json_t *comm;
	size_t i;

	if (list && (!json_is_array(list) || !json_array_size(list) ||
			    json_array_size(list) > LIEN_SELECT_GROUPS))
		return invalid(client, "comms must be a list of 1 to 1024 groups");
	selection->groups = selected->groups;
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
			return invalid(client, "each of comms must be a group as `comms` names it, "
					       "16 hexadecimal digits, or the address of a "
					       "communicator of the client's own process");
		selected->groups[i] = strtoull(name, NULL, 16);
		if (strlen(name) != 16 || strspn(name, "0123456789abcdefABCDEF") != 16 ||
			!lien_groups_find(seen->groups, seen->groups_count, selected->groups[i]))
			return unknown_group(client, seen, name);
		selection->groups_count = i + 1;
	}
	return true;
}

bool lien_select_tag(struct lien_client *client, const char *text)
{
	char tag[LIEN_TAG_BYTES] = "";

	if (text && strlen(text) < sizeof(tag))
		strcpy(tag, text);
	return lien_tag_valid(tag) ||
	       invalid(client, "a tag has 1 to 63 printable ASCII characters");
}

/* The texts remain the request's. */
static bool read_tags(struct lien_client *client, json_t *list, struct lien_selection *selection,
	struct lien_selected *selected)
{
	json_t *tag;
	size_t i;

	if (list && (!json_is_array(list) || !json_array_size(list) ||
			    json_array_size(list) > LIEN_SELECT_TAGS))
		return invalid(client, "tags must be a list of 1 to 256 tags");
	selection->tags = selected->tags;
	json_array_foreach (list, i, tag) {
		if (!lien_select_tag(client, json_string_value(tag)))
			return false;
		selected->tags[i] = json_string_value(tag);
		selection->tags_count = i + 1;
	}
	return true;
}

bool lien_select_comms(struct lien_client *client, json_t *request,
	struct lien_selection *selection, struct lien_selected *selected)
{
	struct seen seen = {0};
	bool read =
		read_comms(client, json_object_get(request, "comms"), &seen, selection, selected);

	free(seen.groups);
	return read;
}

bool lien_select_tags(struct lien_client *client, json_t *request, struct lien_selection *selection,
	struct lien_selected *selected)
{
	return read_tags(client, json_object_get(request, "tags"), selection, selected);
}

bool lien_select_read(struct lien_client *client, json_t *request, struct lien_selection *selection,
	struct lien_selected *selected)
{
	struct seen seen = {0};
	bool read =
		read_gpus(client, json_object_get(request, "gpus"), &seen, selection, selected) &&
		read_comms(client, json_object_get(request, "comms"), &seen, selection, selected) &&
		read_tags(client, json_object_get(request, "tags"), selection, selected);

	free(seen.gpus);
	free(seen.groups);
	return read;
}
