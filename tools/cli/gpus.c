// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/gpus.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/filter.h"
#include "tools/text/output.h"

/* "GPU 3 (GPU-5f0a...)", as far as known. */
static char *name_of(const json_t *gpu)
{
	const json_t *index = json_object_get(gpu, "index");
	const char *uuid = lien_get_text(gpu, "uuid");

	if (!*uuid)
		return lien_format("unknown");
	if (!json_is_integer(index))
		return lien_format("%s", uuid);
	return lien_format("GPU %" JSON_INTEGER_FORMAT " (%s)", json_integer_value(index), uuid);
}

static bool uses(const json_t *processes, uint64_t pid, json_int_t ordinal)
{
	const json_t *process, *device;
	size_t i, j;

	json_array_foreach (processes, i, process) {
		if (lien_get_number(process, "pid") != pid)
			continue;
		json_array_foreach (json_object_get(process, "devices"), j, device)
			if (json_integer_value(device) == ordinal)
				return true;
	}
	return false;
}

/* "812, 813 as 1": the processes that have memory there, and their own number for it where that
 * differs. NULL: none. */
static char *users_of(const json_t *gpu, const json_t *processes)
{
	const json_t *index = json_object_get(gpu, "index"), *user;
	char *text = NULL;
	size_t i;

	json_array_foreach (json_object_get(gpu, "processes"), i, user) {
		json_t *number = json_object_get(user, "ordinal");
		json_int_t ordinal = json_integer_value(number);
		uint64_t pid = lien_get_number(user, "pid");

		if (!json_is_integer(number) || !uses(processes, pid, ordinal))
			continue;
		text = lien_append(text, ", ", "%" PRIu64, pid);
		if (!json_is_integer(index) || json_integer_value(index) != ordinal)
			text = lien_append(text, "", " as %" JSON_INTEGER_FORMAT, ordinal);
	}
	return text;
}

void lien_print_gpus(const json_t *result)
{
	const json_t *gpus = json_object_get(result, "gpus");
	const json_t *processes = json_object_get(result, "processes");
	/* Without figures (no NVML), only what the processes' numbers stand for. */
	const bool figures = lien_filter_gpus_have(gpus, "total_bytes");
	const struct lien_column columns[] = {
		{"GPU", LIEN_NUMBER, .member = "index", .unknown = "?", .total = LIEN_TOTAL_LABEL},
		{"USED", LIEN_BYTES, .member = "used_bytes", .unknown = "?",
			.total = LIEN_TOTAL_SUM, .hidden = !figures},
		{"FREE", LIEN_BYTES, .member = "free_bytes", .unknown = "?",
			.total = LIEN_TOTAL_SUM, .hidden = !figures},
		{"TOTAL", LIEN_BYTES, .member = "total_bytes", .unknown = "?",
			.total = LIEN_TOTAL_SUM, .hidden = !figures},
		{"PROCESSES", LIEN_TEXT, .member = "users"},
		{"UUID", LIEN_TEXT, .member = "uuid", .drop = 1},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	bool any = false;
	json_t *gpu;
	char *users;
	size_t i;

	json_array_foreach (gpus, i, gpu) {
		users = users_of(gpu, processes);
		if (*lien_get_text(gpu, "uuid") && (users || figures)) {
			json_object_set_new(gpu, "users", json_string(users ? users : "-"));
			lien_table_row(table, gpu, NULL);
			any = true;
		}
		free(users);
	}
	if (any && figures && json_array_size(gpus) > 1)
		lien_table_total(table, gpus);
	if (any)
		printf("\n");
	if (any)
		lien_table_end(table, stdout);
	else
		lien_table_free(table);
}

#define PIDS_SHOWN 8

json_t *lien_unexplained_of(const json_t *result, const json_t *mem)
{
	const json_t *gpu, *process, *bytes;
	json_t *list = json_array();
	size_t i, j;

	json_array_foreach (json_object_get(mem, "gpus"), i, gpu)
		json_array_foreach (json_object_get(gpu, "processes"), j, process) {
			bytes = json_object_get(process, "unexplained_bytes");
			if (json_is_integer(bytes) && json_integer_value(bytes) > 0 &&
				lien_filter_has(result, lien_get_number(process, "pid")))
				json_array_append_new(list,
					json_pack("{s:I, s:O?, s:O}", "pid",
						(json_int_t)lien_get_number(process, "pid"), "gpu",
						json_object_get(gpu, "uuid"), "bytes", bytes));
		}
	if (json_array_size(list))
		return list;
	json_decref(list);
	return json_null();
}

void lien_print_unexplained(const char *title, const json_t *unexplained)
{
	const json_t *entry;
	uint64_t bytes = 0;
	char *pids = NULL;
	size_t i, count = json_array_size(unexplained);

	json_array_foreach (unexplained, i, entry) {
		bytes += lien_get_number(entry, "bytes");
		if (i < PIDS_SHOWN)
			pids = lien_append(pids, ", ", "%" PRIu64, lien_get_number(entry, "pid"));
	}
	if (count > PIDS_SHOWN)
		pids = lien_append(pids, " ", "and %zu more", count - PIDS_SHOWN);
	if (title)
		printf("\n%s\n", title);
	if (count)
		lien_print_wrapped(stdout, 4,
			"  %s in %s %s: the driver's own (contexts, kernels), and what was not "
			"seen",
			lien_bytes(bytes).text, count == 1 ? "process" : "processes", pids);
	else
		printf("  the driver's own (contexts, kernels): not known: NVML gives no figure\n");
	free(pids);
}

/* A process may use a device and does not: nothing to explain. */
static bool idle(const json_t *process)
{
	return !lien_get_number(process, "traced_bytes") &&
	       !lien_get_number(process, "total_bytes");
}

void lien_print_explained(const json_t *result, pid_t pid)
{
	static const struct lien_column columns[] = {
		{"PID", LIEN_NUMBER, .member = "pid"},
		{"DEVICE", LIEN_NUMBER, .member = "ordinal", .unknown = "?", .drop = 1},
		{"GPU", LIEN_TEXT, .member = "name"},
		{"TRACED", LIEN_BYTES, .member = "traced_bytes", .unknown = "?"},
		{"+ UNEXPLAINED", LIEN_BYTES, .member = "unexplained_bytes", .unknown = "?"},
		{"= NVIDIA-SMI", LIEN_BYTES, .member = "total_bytes", .unknown = "?"},
	};
	struct lien_table *table = lien_table_new(LIEN_COLUMNS(columns));
	const json_t *process;
	json_t *gpu;
	char *name;
	bool any = false;
	size_t i, j;

	json_array_foreach (json_object_get(result, "gpus"), i, gpu) {
		name = name_of(gpu);
		json_object_set_new(gpu, "name", json_string(name));
		free(name);
		json_array_foreach (json_object_get(gpu, "processes"), j, process)
			if ((!pid || lien_get_number(process, "pid") == (uint64_t)pid) &&
				!idle(process)) {
				lien_table_row(table, process, gpu);
				any = true;
			}
	}
	printf("\n");
	if (any) {
		lien_table_end(table, stdout);
		printf("\n");
	} else {
		lien_table_free(table);
	}
	if (json_is_null(json_object_get(result, "offload_frees")))
		lien_print_wrapped(stdout, 2,
			"A recording does not have what the driver says a process uses.");
	else if (json_is_null(json_object_get(result, "nvml")))
		lien_print_wrapped(stdout, 2,
			"What the driver says a process uses is not known: NVML "
			"(libnvidia-ml.so.1, a part of the driver) is missing or does not work.");
	else
		lien_print_wrapped(stdout, 2,
			"Traced is what the process owns. The driver's own memory for a process "
			"(its context: code, stacks, printf and heap buffers) and what pools keep "
			"in reserve cannot be told apart from memory that was not seen: together "
			"they are the difference to what NVML, and so nvidia-smi, shows.");
}
