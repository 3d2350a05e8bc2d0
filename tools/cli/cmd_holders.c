// SPDX-License-Identifier: BSD-2-Clause
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/commands.h"
#include "tools/cli/options.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

static const char *const examples[] = {"lien holders 812 0x7f2a4c000000",
	"who keeps this memory of process 812 alive", "lien holders --json 812 139819401117696",
	"the same, address in decimal, result as JSON", NULL};

static const struct lien_usage usage = {
	.command = "lien holders",
	.arguments = "PID ADDRESS",
	.summary = "Explains the GPU memory at an address of a process: who made it and with which "
		   "call, and every lien on it: handles, mappings, exports, imports of other "
		   "processes, registrations. It is free only when all of these are gone.",
	.min = 2,
	.max = 2,
	.tables = true,
	.examples = examples,
};

/* Says who made it and how. If that was not seen, the reply has null. */
static char *maker_of(const json_t *allocation)
{
	const char *owner = lien_get_text(allocation, "owner");
	uint64_t pid = lien_get_number(allocation, "pid");

	if (!strcmp(lien_get_text(allocation, "origin"), "import"))
		return lien_format("it was imported, and its owner is unknown");
	if (!pid)
		return lien_format("its owner is unknown");
	return lien_format("process %" PRIu64 "%s made it%s%s%s with %s", pid,
		json_is_false(json_object_get(allocation, "alive")) ? " (which has exited)" : "",
		*owner ? " for " : "", owner, lien_owner_doubt(allocation),
		lien_get_text(allocation, "origin"));
}

/* ", for rank 0 of communicator 5ac1d2e0b7f0a133", or nothing. */
static char *communicator_of(const json_t *allocation)
{
	const json_t *comm = json_object_get(allocation, "communicator");
	const char *how = lien_get_true(comm, "inferred") ? ", probably" : "";

	if (!json_is_object(comm))
		return lien_format("%s", "");
	if (!*lien_get_text(comm, "group"))
		return lien_format(" for a communicator that is being made or is gone%s", how);
	return lien_format(" for rank %" PRIu64 " of communicator %s%s",
		lien_get_number(comm, "rank"), lien_get_text(comm, "group"), how);
}

static void explain(const json_t *result, pid_t pid, unsigned long address)
{
	const json_t *a = json_object_get(result, "allocation");
	const json_t *device = json_object_get(a, "device");
	size_t liens = json_array_size(json_object_get(result, "holders"));
	const char *reason = lien_get_text(a, "reason");
	const char *tag = lien_get_text(a, "tag");
	char *made = maker_of(a), *comm = communicator_of(a), *fate, *place;

	if (!strcmp(lien_get_text(a, "state"), "offloaded"))
		fate = lien_format("`lien restore` puts it back.");
	else if (lien_get_true(a, "movable"))
		fate = lien_format("It can be offloaded.");
	else if (json_is_null(json_object_get(a, "movable")))
		fate = lien_format("Only a running agent can tell whether it can be offloaded.");
	else
		fate = lien_format(
			"It can't be offloaded: %s.", *reason ? reason : "no reason given");
	if (json_is_integer(device))
		place = lien_format(" of device %" JSON_INTEGER_FORMAT, json_integer_value(device));
	else
		place = lien_format("%s", "");
	lien_print_wrapped(stdout, 0,
		"Address 0x%lx of process %d lies in allocation %" PRIu64
		": %s%s, now %s; %s%s%s%s. %s %zu %s it%s",
		address, pid, lien_get_number(a, "id"),
		lien_bytes(lien_get_number(a, "bytes")).text, place, lien_get_text(a, "state"),
		made, comm, *tag ? ", with the tag " : "", tag, fate, liens,
		liens == 1 ? "lien holds" : "liens hold", liens ? ":" : ".");
	free(made);
	free(comm);
	free(fate);
	free(place);
}

/* "device 0 read-write, device 1 read" */
static char *access_of(const json_t *holder, const json_t *allocation)
{
	const char *origin = lien_get_text(allocation, "origin");
	const json_t *list = json_object_get(holder, "access"), *access;
	char *text = NULL;
	size_t i;

	json_array_foreach (list, i, access) {
		const char *where = json_object_get(access, "host") ? "host" : "device";

		text = lien_append(text, ", ", "%s %" PRIu64 " %s", where,
			lien_get_number(access, where), lien_get_text(access, "access"));
	}
	if (text)
		return text;
	/* Only virtual memory has access that a program sets. */
	return lien_format(!strcmp(origin, "cuMemCreate") || !strcmp(origin, "import")
				   ? "no access"
				   : "mapped by the driver");
}

static char *detail_of(const json_t *holder, const json_t *allocation)
{
	const char *kind = lien_get_text(holder, "kind");
	uint64_t n;

	if (!strcmp(kind, "mapping"))
		return access_of(holder, allocation);
	if (!strcmp(kind, "offloaded mapping"))
		return lien_format("its memory is with the host");
	if (!strcmp(kind, "network card"))
		return *lien_get_text(holder, "card") ? lien_format("registered with %s (RDMA)",
								lien_get_text(holder, "card"))
						      : lien_format("registered for RDMA");
	if (!strcmp(kind, "registration"))
		return lien_format("%s of rank %" PRIu64 " of communicator %s",
			lien_get_true(holder, "window") ? "window" : "buffer",
			lien_get_number(holder, "rank"), lien_get_text(holder, "group"));
	if (!strcmp(kind, "export")) {
		n = lien_get_number(holder, "exports");
		return lien_format("exported %" PRIu64 " %s%s%s", LIEN_PLURAL(n, "time", "times"),
			*lien_get_text(holder, "by") ? " by " : "", lien_get_text(holder, "by"));
	}
	if (!strcmp(kind, "open export"))
		return lien_format(
			"file descriptor %" PRIu64 " is open", lien_get_number(holder, "fd"));
	if (!strcmp(kind, "export on its way")) {
		n = lien_get_number(holder, "exports");
		return lien_format(
			"%" PRIu64 " %s in a socket", LIEN_PLURAL(n, "descriptor", "descriptors"));
	}
	if (!strcmp(kind, "process of another user"))
		return lien_format("only root can see what it does with it");
	if (!strcmp(kind, "dma-buf")) {
		n = lien_get_number(holder, "exports");
		return lien_format("handed out %" PRIu64 " %s", LIEN_PLURAL(n, "time", "times"));
	}
	if (!strcmp(kind, "multicast object"))
		return lien_format("bound to allocation %" PRIu64, lien_get_number(holder, "id"));
	n = lien_get_number(holder, "references");
	return lien_format("%" PRIu64 " %s", LIEN_PLURAL(n, "reference", "references"));
}

static void print_holders(const json_t *holders, const json_t *allocation)
{
	static const struct lien_column columns[] = {{"PID", LIEN_NUMBER, .drop = 0},
		{"LIEN", LIEN_TEXT, .drop = 0}, {"ADDRESS OR HANDLE", LIEN_TEXT, .drop = 0},
		{"SIZE", LIEN_NUMBER, .drop = 1}, {"DETAIL", LIEN_TEXT, .drop = 0}};
	struct lien_table *table;
	const json_t *holder;
	size_t i;

	if (!json_array_size(holders))
		return;
	table = lien_table_new(columns, 5);
	json_array_foreach (holders, i, holder) {
		const char *name = lien_get_text(holder, "address");
		uint64_t bytes = lien_get_number(holder, "bytes");
		char *detail = detail_of(holder, allocation);

		if (!*name)
			name = lien_get_text(holder, "handle");
		lien_table_add(table, "%" PRIu64, lien_get_number(holder, "pid"));
		lien_table_add(table, "%s", lien_get_text(holder, "kind"));
		lien_table_add(table, "%s", *name ? name : "-");
		lien_table_add(table, "%s", bytes ? lien_bytes(bytes).text : "-");
		lien_table_add(table, "%s", detail);
		free(detail);
	}
	printf("\n");
	lien_table_end(table, stdout);
}

int lien_cmd_holders(int argc, char **argv)
{
	bool json = false;
	int code;
	struct lien_query query = {
		.command = usage.command, .code = &code, .timeout_ms = LIEN_QUERY_MS};
	const struct lien_option options[] = {
		LIEN_CLIENT_OPTIONS(&json, &query.socket), LIEN_FROM_OPTION(&query.from), {}};
	unsigned long address;
	json_t *result;
	char hex[20];
	pid_t pid;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (!lien_parse_pid(argv[0], &pid))
		return lien_usage_error(&usage, "'%s' is not a process id", argv[0]);
	if (!lien_parse_address(argv[1], &address))
		return lien_usage_error(&usage, "'%s' is not an address", argv[1]);
	snprintf(hex, sizeof(hex), "0x%lx", address);
	result = lien_query(
		&query, json_pack("{s:s, s:i, s:s}", "op", "holders", "pid", pid, "address", hex));
	if (!result)
		return code;
	if (json) {
		lien_print_json(stdout, result);
	} else {
		explain(result, pid, address);
		print_holders(
			json_object_get(result, "holders"), json_object_get(result, "allocation"));
	}
	json_decref(result);
	return LIEN_EXIT_OK;
}
