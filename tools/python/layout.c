// SPDX-License-Identifier: BSD-2-Clause
/* Writes tools/python/lien/_layout.py: where the members of struct lien_event are. */
#include <stdio.h>

#include <lien/cuda_abi.h>
#include <lien/event.h>

#include "agent/graph/graph.h"
#include "agent/journal/recording.h"
#include "tools/cli/event_text.h"

static void print_field(
	void *context, const char *name, const char *kind, unsigned offset, unsigned size)
{
	(void)context;
	printf("(\"%s\", \"%s\", %u, %u), ", name, kind, offset, size);
}

static void print_number(const char *name, unsigned long number)
{
	printf("%s = %lu\n", name, number);
}

int main(void)
{
	unsigned i;

	printf("# SPDX-License-Identifier: BSD-2-Clause\n"
	       "# Made by `make python-layout` from include/lien/event.h and "
	       "tools/cli/event_text.c.\n"
	       "from typing import Dict, Tuple\n\n");
	print_number("FORMAT", LIEN_RECORDING_VERSION);
	print_number("HEADER", LIEN_EVENT_HEADER);
	print_number("LONGEST", sizeof(struct lien_event));
	print_number("ENTRY", LIEN_EVENT_ENTRY);
	print_number("CONTROL", LIEN_EVENT_CONTROL);
	print_number("PARTIAL", LIEN_EVENT_PARTIAL);
	print_number("END", LIEN_EVENT_END);
	print_number("FIRST_CALL", LIEN_CALL_CU_INIT);
	print_number("FIRST_STATE", LIEN_STATE_process);
	print_number("DEVICE", CU_MEM_LOCATION_TYPE_DEVICE);
	printf("# (offset of the count, offset of the first one)\n");
	printf("PLACES = {\"places\": (%zu, %zu), \"mapped\": (%zu, %zu)}\n",
		offsetof(struct lien_event, access.count),
		offsetof(struct lien_event, access.access),
		offsetof(struct lien_event, state.mapping.count),
		offsetof(struct lien_event, state.mapping.access));
	printf("ORIGINS = (");
	for (i = 0; i < LIEN_ORIGIN_COUNT; i++)
		printf("\"%s\", ", i ? lien_origin_name(i) : "unknown");
	printf(")\n# number: (name, ((argument, kind, offset, size), ...))\nEVENTS: Dict[int, "
	       "Tuple[str, Tuple[Tuple[str, str, int, int], ...]]] = {\n");
	for (i = 0; i < LIEN_CALL_MAX; i++) {
		if (!lien_event_name(i).text[0])
			continue;
		printf("    %u: (\"%s\", (", i, lien_event_name(i).text);
		lien_event_fields(i, print_field, NULL);
		printf(")),\n");
	}
	printf("}\n");
	return 0;
}
