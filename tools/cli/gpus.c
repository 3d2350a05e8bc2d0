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

static void add_bytes(struct lien_table *table, const json_t *entry, const char *key)
{
	json_t *value = json_object_get(entry, key);
	json_int_t bytes = json_integer_value(value);

	if (!json_is_integer(value))
		lien_table_add(table, "?");
	else
		lien_table_add(table, "%s%s", bytes < 0 ? "-" : "",
			lien_size(bytes < 0 ? -(uint64_t)bytes : (uint64_t)bytes).text);
}

static void add_total(struct lien_table *table, const json_t *gpus)
{
	static const char *const keys[] = {"used_bytes", "free_bytes", "total_bytes"};
	const json_t *gpu;
	uint64_t sum;
	size_t i;

	lien_table_add(table, "total");
	lien_table_paint(table, LIEN_COLOR_BOLD);
	for (unsigned key = 0; key < 3; key++) {
		sum = 0;
		json_array_foreach (gpus, i, gpu)
			sum += lien_get_number(gpu, keys[key]);
		lien_table_add(table, "%s", lien_size(sum).text);
		lien_table_paint(table, LIEN_COLOR_BOLD);
	}
	lien_table_add(table, "%s", "");
	lien_table_add(table, "%s", "");
}

/* Without figures (no NVML), only what the processes' numbers stand for. */
static void add_gpu(struct lien_table *table, const json_t *gpu, const char *users, bool figures)
{
	const json_t *index = json_object_get(gpu, "index");

	if (json_is_integer(index))
		lien_table_add(table, "%" JSON_INTEGER_FORMAT, json_integer_value(index));
	else
		lien_table_add(table, "?");
	if (figures) {
		add_bytes(table, gpu, "used_bytes");
		add_bytes(table, gpu, "free_bytes");
		add_bytes(table, gpu, "total_bytes");
	}
	lien_table_add(table, "%s", users ? users : "-");
	lien_table_add(table, "%s", lien_get_text(gpu, "uuid"));
}

void lien_print_gpus(const json_t *result)
{
	static const struct lien_column with[] = {{"GPU", LIEN_RIGHT, 0}, {"USED", LIEN_RIGHT, 0},
		{"FREE", LIEN_RIGHT, 0}, {"TOTAL", LIEN_RIGHT, 0}, {"PROCESSES", LIEN_LEFT, 0},
		{"UUID", LIEN_LEFT, 1}};
	static const struct lien_column without[] = {
		{"GPU", LIEN_RIGHT, 0}, {"PROCESSES", LIEN_LEFT, 0}, {"UUID", LIEN_LEFT, 1}};
	const json_t *gpus = json_object_get(result, "gpus"), *gpu;
	const json_t *processes = json_object_get(result, "processes");
	bool figures = lien_filter_gpus_have(gpus, "total_bytes"), any = false;
	struct lien_table *table = figures ? lien_table_new(with, 6) : lien_table_new(without, 3);
	char *users;
	size_t i;

	json_array_foreach (gpus, i, gpu) {
		users = users_of(gpu, processes);
		if (*lien_get_text(gpu, "uuid") && (users || figures)) {
			add_gpu(table, gpu, users, figures);
			any = true;
		}
		free(users);
	}
	if (any && figures && json_array_size(gpus) > 1)
		add_total(table, gpus);
	if (any)
		printf("\n");
	if (any)
		lien_table_end(table, stdout);
	else
		lien_table_free(table);
}

static void add_process(struct lien_table *table, const json_t *gpu, const json_t *process)
{
	json_t *ordinal = json_object_get(process, "ordinal");
	char *name = name_of(gpu);

	lien_table_add(table, "%" PRIu64, lien_get_number(process, "pid"));
	if (json_is_integer(ordinal))
		lien_table_add(table, "%" JSON_INTEGER_FORMAT, json_integer_value(ordinal));
	else
		lien_table_add(table, "?");
	lien_table_add(table, "%s", name);
	add_bytes(table, process, "traced_bytes");
	add_bytes(table, process, "unexplained_bytes");
	add_bytes(table, process, "total_bytes");
	free(name);
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
			lien_size(bytes).text, count == 1 ? "process" : "processes", pids);
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
	static const struct lien_column columns[] = {{"PID", LIEN_RIGHT, 0},
		{"DEVICE", LIEN_RIGHT, 1}, {"GPU", LIEN_LEFT, 0}, {"TRACED", LIEN_RIGHT, 0},
		{"+ UNEXPLAINED", LIEN_RIGHT, 0}, {"= NVIDIA-SMI", LIEN_RIGHT, 0}};
	struct lien_table *table = lien_table_new(columns, 6);
	const json_t *gpu, *process;
	bool any = false;
	size_t i, j;

	json_array_foreach (json_object_get(result, "gpus"), i, gpu)
		json_array_foreach (json_object_get(gpu, "processes"), j, process)
			if ((!pid || lien_get_number(process, "pid") == (uint64_t)pid) &&
				!idle(process)) {
				add_process(table, gpu, process);
				any = true;
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
