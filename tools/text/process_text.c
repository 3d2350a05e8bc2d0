// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/process_text.h"

#include <inttypes.h>
#include <string.h>

#include "tools/text/output.h"

char *lien_ranks_text(const json_t *process, size_t max)
{
	const json_t *ranks = json_object_get(process, "ranks"), *rank;
	char *text = NULL;
	size_t i;

	json_array_foreach (ranks, i, rank) {
		if (i == max)
			break;
		text = lien_append(text, " ", "%" PRIu64 "/%" PRIu64, lien_get_number(rank, "rank"),
			lien_get_number(rank, "nranks"));
	}
	if (json_array_size(ranks) > max)
		text = lien_append(text, " ", "+%zu", json_array_size(ranks) - max);
	return text ? text : lien_format("-");
}

char *lien_devices_text(const json_t *process)
{
	const json_t *devices = json_object_get(process, "devices");
	size_t count = json_array_size(devices), last;
	char *text = NULL;

	for (size_t i = 0; i < count; i = last + 1) {
		json_int_t first = json_integer_value(json_array_get(devices, i));

		for (last = i; last + 1 < count; last++) {
			if (json_integer_value(json_array_get(devices, last + 1)) - first !=
				(json_int_t)(last + 1 - i))
				break;
		}
		text = lien_append(text, ",", "%" JSON_INTEGER_FORMAT, first);
		if (last > i)
			text = lien_append(
				text, "-", "%" JSON_INTEGER_FORMAT, first + (json_int_t)(last - i));
	}
	return text ? text : lien_format("-");
}

const char *lien_state_text(const json_t *process)
{
	const char *state = lien_get_text(process, "state");

	return strcmp(state, "partly offloaded") ? state : "partly";
}

enum lien_color lien_state_color(const json_t *process)
{
	const char *state = lien_get_text(process, "state");

	if (json_is_false(json_object_get(process, "complete")))
		return LIEN_COLOR_YELLOW;
	return strcmp(state, "running") ? LIEN_COLOR_CYAN : LIEN_COLOR_GREEN;
}

bool lien_uses_memory(const json_t *process)
{
	return json_is_false(json_object_get(process, "complete")) ||
	       lien_get_number(process, "bytes") || lien_get_number(process, "imported_bytes") ||
	       lien_get_number(process, "offloaded_bytes");
}

char *lien_left_out_text(unsigned count)
{
	return lien_format(
		"%u %s without GPU memory: `--all`", count, count == 1 ? "process" : "processes");
}

void lien_drop_arena(json_t *graph)
{
	const json_t *allocations = json_object_get(graph, "allocations");
	json_t *kept, *allocation;
	size_t i;

	if (!json_is_array(allocations))
		return;
	kept = json_array();
	json_array_foreach (allocations, i, allocation)
		if (!lien_get_true(allocation, "arena"))
			json_array_append(kept, allocation);
	json_object_set_new(graph, "allocations", kept);
}
