// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/arena.h"

#include "tools/text/output.h"

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
