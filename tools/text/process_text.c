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
