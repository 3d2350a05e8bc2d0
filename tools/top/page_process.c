// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/process_text.h"
#include "tools/top/page.h"

#define LARGEST	  10 /* allocations shown */
#define IMPORTERS 4  /* importers named for each */

static void add_memory(struct lien_page *page, const struct lien_top *top, uint64_t pid)
{
	static const struct lien_column columns[] = {
		{"OWNER", LIEN_TEXT, .text = lien_owner_text},
		{"KIND", LIEN_TEXT, .member = "kind"},
		{"ALLOCATIONS", LIEN_NUMBER, .member = "allocations"},
		{"MAPPINGS", LIEN_NUMBER, .member = "mappings", .drop = 1},
		{"GPU", LIEN_BYTES, .member = "bytes"},
		{"OFFLOADED", LIEN_BYTES, .member = "offloaded_bytes"},
		{"TAG", LIEN_TEXT, .member = "tag", .optional = true},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *row;
	size_t i;

	json_array_foreach (json_object_get(top->mem, "rows"), i, row)
		if (lien_get_number(row, "pid") == pid)
			lien_table_row(table, row, NULL);
	lien_page_add_table(page, table);
}

/* Returns the communicator with the agent's counts, or NULL. */
static const json_t *counted_of(const struct lien_top *top, const json_t *comm)
{
	const json_t *list = json_object_get(top->comms, "communicators"), *counted;
	size_t i;

	json_array_foreach (list, i, counted)
		if (lien_get_number(counted, "pid") == lien_get_number(comm, "pid") &&
			!strcmp(lien_get_text(counted, "address"), lien_get_text(comm, "address")))
			return counted;
	return NULL;
}

static void add_communicators(struct lien_page *page, const struct lien_top *top, uint64_t pid)
{
	static const struct lien_column columns[] = {
		{"COMMUNICATOR", LIEN_TEXT, .member = "group"},
		{"RANK", LIEN_NUMBER, .member = "rank"},
		{"OF", LIEN_NUMBER, .member = "nranks"},
		{"REGISTERED", LIEN_NUMBER, .member = "registrations", .drop = 1},
		{"COLLECTIVES", LIEN_NUMBER, .member = "calls_total"},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *comm;
	size_t i, count = 0;

	json_array_foreach (json_object_get(top->graph, "communicators"), i, comm) {
		if (lien_get_number(comm, "pid") != pid)
			continue;
		lien_table_row(table, comm, counted_of(top, comm));
		count++;
	}
	lien_page_add_table(page, table);
	if (!count)
		lien_page_say(page, LIEN_MARK_NONE, "none");
}

/* Returns the address at which the process maps it, or NULL. */
static const char *address_in(const json_t *allocation, uint64_t pid)
{
	const json_t *mapping;
	size_t i;

	json_array_foreach (json_object_get(allocation, "mappings"), i, mapping)
		if (lien_get_number(mapping, "pid") == pid)
			return lien_get_text(mapping, "address");
	return NULL;
}

/* Finds the largest allocations that the process maps, largest first. Returns their number. */
static unsigned find_largest(const json_t *graph, uint64_t pid, const json_t **largest)
{
	const json_t *allocation, *other;
	unsigned count = 0, at;
	size_t i;

	json_array_foreach (json_object_get(graph, "allocations"), i, allocation) {
		if (!address_in(allocation, pid))
			continue;
		for (at = 0; at < count; at++)
			if (lien_get_number(allocation, "bytes") >
				lien_get_number(largest[at], "bytes"))
				break;
		for (; at < LARGEST && allocation; at++) {
			other = at < count ? largest[at] : NULL;
			largest[at] = allocation;
			allocation = other;
		}
		count = at > count ? at : count;
	}
	return count;
}

/* "imported by 813 814 and more": the other holders; or nothing. */
static char *importers_text(const json_t *holders, uint64_t owner)
{
	uint64_t pids[IMPORTERS], pid;
	unsigned count = 0, j;
	const json_t *holder;
	char *text = NULL;
	size_t i;

	json_array_foreach (holders, i, holder) {
		pid = lien_get_number(holder, "pid");
		for (j = 0; j < count && pids[j] != pid; j++)
			;
		if (pid == owner || j < count)
			continue;
		if (count == IMPORTERS)
			return lien_append(text, " ", "and more");
		pids[count++] = pid;
		text = lien_append(text, " ", "%s%" PRIu64, text ? "" : "imported by ", pid);
	}
	return text;
}

/* "imported by 813; 1 handle, 2 mappings, 1 export, 1 import" */
static char *holders_text(const json_t *reply, uint64_t pid)
{
	static const char *const kinds[] = {"handle", "mapping", "offloaded mapping", "export",
		"import", "registration", "network card"};
	const json_t *holders = json_object_get(reply, "holders"), *holder;
	uint64_t owner = lien_get_number(json_object_get(reply, "allocation"), "pid");
	char *text, *counts = NULL;
	size_t i, k;

	text = owner == pid ? importers_text(holders, owner)
	       : owner	    ? lien_format("memory of %" PRIu64, owner)
			    : lien_format("memory of an unknown owner");
	for (k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		unsigned n = 0;

		json_array_foreach (holders, i, holder)
			n += !strcmp(lien_get_text(holder, "kind"), kinds[k]);
		if (n)
			counts = lien_append(
				counts, ", ", "%u %s%s", n, kinds[k], n == 1 ? "" : "s");
	}
	text = lien_append(text, "; ", "%s", counts ? counts : "nobody holds it");
	free(counts);
	return text;
}

/* Returns false: the agent is gone. Omits memory that was freed meanwhile. */
static bool add_allocation(
	struct lien_top *top, struct lien_table *table, const json_t *allocation, uint64_t pid)
{
	const char *address = address_in(allocation, pid);
	json_t *reply, *seen;
	char *holders;

	reply = lien_top_ask(top, json_pack("{s:s, s:I, s:s}", "op", "holders", "pid",
					  (json_int_t)pid, "address", address));
	if (!reply)
		return !lien_client_connect(top->client);
	holders = holders_text(reply, pid);
	seen = json_pack("{s:s, s:s}", "at", address, "holders", holders);
	lien_table_row(table, allocation, seen);
	json_decref(seen);
	free(holders);
	json_decref(reply);
	return true;
}

static bool add_largest(struct lien_page *page, struct lien_top *top, uint64_t pid)
{
	static const struct lien_column columns[] = {
		{"LARGEST AT", LIEN_TEXT, .member = "at"},
		{"SIZE", LIEN_BYTES, .member = "bytes"},
		{"OWNER", LIEN_TEXT, .text = lien_owner_text},
		{"HOLDERS", LIEN_TEXT, .member = "holders"},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *largest[LARGEST];
	unsigned count = find_largest(top->graph, pid, largest), i;
	bool ok = true;

	for (i = 0; i < count && ok; i++)
		ok = add_allocation(top, table, largest[i], pid);
	lien_page_add_table(page, table);
	return ok;
}

bool lien_page_make_process(struct lien_page *page, struct lien_top *top, uint64_t pid)
{
	const struct lien_top_process *process = lien_top_find(top, pid);
	char *devices, *ranks;
	bool ok;

	if (!process) {
		lien_page_say(page, LIEN_MARK_TITLE,
			"process %" PRIu64 " has ended, or has no GPU memory now", pid);
		page->head = page->count;
		return true;
	}
	devices = lien_devices_text(process->entry);
	ranks = lien_ranks_text(process->entry, 4);
	lien_page_say(page, LIEN_MARK_TITLE, "process %" PRIu64 " %s", pid,
		lien_get_text(process->entry, "command"));
	lien_page_say(page, LIEN_MARK_NONE, "%s%s, control library %s, devices %s, ranks %s",
		lien_get_text(process->entry, "state"),
		json_is_false(json_object_get(process->entry, "complete")) ? " (incomplete)" : "",
		lien_get_text(process->entry, "control"), devices, ranks);
	free(devices);
	free(ranks);
	lien_page_say(page, LIEN_MARK_NONE, "%s", "");
	page->head = page->count;
	add_memory(page, top, pid);
	lien_page_say(page, LIEN_MARK_NONE, "%s", "");
	add_communicators(page, top, pid);
	lien_page_say(page, LIEN_MARK_NONE, "%s", "");
	ok = add_largest(page, top, pid);
	return ok;
}
