// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/left.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

#define PIDS_SHOWN 8

struct reason {
	const char *text; /* from the reply */
	uint64_t bytes, allocations, processes;
	const json_t *first;
	char *pids;
	bool unknown; /* nor is it known whose the rest is */
};

static int by_bytes(const void *a, const void *b)
{
	const struct reason *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return strcmp(x->text, y->text);
}

static struct reason *find(
	struct reason *reasons, size_t *count, const char *text, const json_t *entry)
{
	for (size_t i = 0; i < *count; i++) {
		if (!strcmp(reasons[i].text, text))
			return &reasons[i];
	}
	reasons[*count].text = text;
	reasons[*count].first = entry;
	return &reasons[(*count)++];
}

static void add(struct reason *reason, const json_t *entry)
{
	uint64_t pid = lien_get_number(entry, "pid");

	reason->bytes += lien_get_number(entry, "bytes");
	reason->allocations += lien_get_number(entry, "allocations");
	if (!pid) {
		reason->unknown = true;
		return;
	}
	if (++reason->processes <= PIDS_SHOWN)
		reason->pids = lien_append(reason->pids, ", ", "%" PRIu64, pid);
}

/* "processes 812, 813 and an unknown one" */
static char *owners(const struct reason *reason)
{
	char *text;

	if (!reason->processes)
		return lien_format("an unknown process");
	text = lien_format("%s %s", reason->processes == 1 ? "process" : "processes", reason->pids);
	if (reason->processes > PIDS_SHOWN)
		text = lien_append(
			text, " ", "and %" PRIu64 " more", reason->processes - PIDS_SHOWN);
	return reason->unknown ? lien_append(text, " ", "and an unknown one") : text;
}

/* " (at 0x7f00, because of process 813)": one example, for `lien holders`. */
static char *example(const struct reason *reason)
{
	const char *address = lien_get_text(reason->first, "address");
	uint64_t holder = lien_get_number(reason->first, "holder");
	uint64_t pid = lien_get_number(reason->first, "pid");
	const char *at = reason->allocations == 1 ? "at" : "first at";
	char *text;

	if (!*address)
		return lien_format("%s", "");
	text = lien_format(" (%s %s", at, address);
	if (pid && reason->processes + reason->unknown > 1)
		text = lien_append(text, " ", "of process %" PRIu64, pid);
	if (lien_get_true(reason->first, "other_user"))
		text = lien_append(text, ", ", "because of a process of another user");
	else if (holder)
		text = lien_append(text, ", ", "because of process %" PRIu64, holder);
	return lien_append(text, "", ")");
}

bool lien_print_left(const char *title, const json_t *left)
{
	struct reason *reasons;
	const json_t *entry;
	size_t i, count = 0;

	if (!json_array_size(left))
		return false;
	reasons = calloc(json_array_size(left), sizeof(*reasons));
	if (!reasons)
		return false;
	json_array_foreach (left, i, entry)
		add(find(reasons, &count, lien_get_text(entry, "reason"), entry), entry);
	qsort(reasons, count, sizeof(*reasons), by_bytes);
	printf("\n%s\n", title);
	for (i = 0; i < count; i++) {
		const struct reason *r = &reasons[i];
		char *where = example(r), *who = owners(r);

		lien_print_wrapped(stdout, 4, "  %s in %" PRIu64 " %s of %s%s: %s",
			lien_size(r->bytes).text,
			LIEN_PLURAL(r->allocations, "allocation", "allocations"), who, where,
			r->text);
		free(who);
		free(where);
		free(r->pids);
	}
	free(reasons);
	return true;
}

void lien_print_short(const char *title, const json_t *rows)
{
	const json_t *row;
	size_t i;

	if (json_array_size(rows))
		printf("\n%s\n", title);
	json_array_foreach (rows, i, row) {
		const uint64_t more = lien_get_number(row, "processes") - 1;
		char *others =
			more ? lien_format(" and %" PRIu64 " more", more) : lien_format("%s", "");

		lien_print_wrapped(stdout, 4,
			"  %s of %s dropped on the GPU of process %" PRIu64
			"%s: another program has allocated meanwhile, or something that lien does "
			"not see holds the old memory (`lien check --deep`, `lien doctor`)",
			lien_size(lien_get_number(row, "missing_bytes")).text,
			lien_size(lien_get_number(row, "dropped_bytes")).text,
			lien_get_number(row, "pid"), others);
		free(others);
	}
}
