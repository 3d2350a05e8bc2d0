// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/unknown.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "tools/text/output.h"

static void print_read(const json_t *entry)
{
	uint64_t bytes = lien_get_number(entry, "bytes");
	uint64_t movable = lien_get_number(entry, "movable_bytes");

	printf("  process %" PRIu64 ": %s in %" PRIu64 " %s", lien_get_number(entry, "pid"),
		lien_size(bytes).text,
		LIEN_PLURAL(lien_get_number(entry, "allocations"), "allocation", "allocations"));
	if (movable == bytes)
		printf(", all movable\n");
	else
		printf(", %s movable\n", lien_size(movable).text);
}

static void print_unread(const json_t *entry)
{
	uint64_t pid = lien_get_number(entry, "pid");

	lien_print_wrapped(stdout, 4,
		"  process %" PRIu64 ": ran before the agent, and its memory has not been read: "
		"`lien attach %" PRIu64 "` reads it",
		pid, pid);
}

void lien_print_unknown(const json_t *unknown)
{
	uint64_t movable = 0, stays = 0;
	const json_t *entry;
	size_t i;

	if (!json_array_size(unknown))
		return;
	printf("\nnot selected, because its owner is unknown:\n");
	json_array_foreach (unknown, i, entry) {
		movable += lien_get_number(entry, "movable_bytes");
		stays += lien_get_number(entry, "bytes") - lien_get_number(entry, "movable_bytes");
		if (lien_get_number(entry, "bytes"))
			print_read(entry);
		if (json_is_false(json_object_get(entry, "read")))
			print_unread(entry);
	}
	if (movable)
		lien_print_wrapped(stdout, 2,
			"`lien offload --owner unknown` moves %s of this; `lien offload "
			"--owner all` moves it with everything else",
			lien_size(movable).text);
	if (stays)
		lien_print_wrapped(stdout, 2,
			"`lien offload --owner unknown --dry-run` says why %s cannot be moved",
			lien_size(stays).text);
}
