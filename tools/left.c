// SPDX-License-Identifier: BSD-2-Clause
#include "tools/left.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/output.h"

#define PIDS_SHOWN 8

struct reason {
	const char *text; /* of the reply */
	uint64_t bytes, allocations, processes;
	char *pids;
};

static int by_bytes(const void *a, const void *b)
{
	const struct reason *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return strcmp(x->text, y->text);
}

static struct reason *find(struct reason *reasons, size_t *count, const char *text)
{
	for (size_t i = 0; i < *count; i++) {
		if (!strcmp(reasons[i].text, text))
			return &reasons[i];
	}
	reasons[*count].text = text;
	return &reasons[(*count)++];
}

static void add(struct reason *reason, const json_t *entry)
{
	uint64_t pid = lien_get_number(entry, "pid");

	reason->bytes += lien_get_number(entry, "bytes");
	reason->allocations += lien_get_number(entry, "allocations");
	reason->processes++;
	if (reason->processes > PIDS_SHOWN)
		return;
	if (pid)
		reason->pids = lien_append(reason->pids, ", ", "%" PRIu64, pid);
	else
		reason->pids = lien_append(reason->pids, ", ", "unknown");
}

void lien_print_left(const char *title, const json_t *left)
{
	struct reason *reasons;
	const json_t *entry;
	size_t i, count = 0;

	if (!json_array_size(left))
		return;
	reasons = calloc(json_array_size(left), sizeof(*reasons));
	if (!reasons)
		return;
	json_array_foreach (left, i, entry)
		add(find(reasons, &count, lien_get_text(entry, "reason")), entry);
	qsort(reasons, count, sizeof(*reasons), by_bytes);
	printf("\n%s\n", title);
	for (i = 0; i < count; i++) {
		const struct reason *r = &reasons[i];

		if (r->processes > PIDS_SHOWN)
			reasons[i].pids = lien_append(
				r->pids, " ", "and %" PRIu64 " more", r->processes - PIDS_SHOWN);
		lien_print_wrapped(stdout, 4, "  %s in %" PRIu64 " %s of %s %s: %s",
			lien_size(r->bytes).text,
			LIEN_PLURAL(r->allocations, "allocation", "allocations"),
			r->processes == 1 ? "process" : "processes", r->pids, r->text);
		free(reasons[i].pids);
	}
	free(reasons);
}
