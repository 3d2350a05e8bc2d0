// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/gpus.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

/* "device 0 of process 812, device 1 of process 813"; NULL: none. */
static char *users_of(const json_t *gpu, const json_t *processes)
{
	const json_t *user;
	char *text = NULL;
	size_t i;

	json_array_foreach (json_object_get(gpu, "processes"), i, user) {
		json_t *number = json_object_get(user, "ordinal");
		json_int_t ordinal = json_integer_value(number);
		uint64_t pid = lien_get_number(user, "pid");

		if (json_is_integer(number) && uses(processes, pid, ordinal))
			text = lien_append(text, ", ",
				"device %" JSON_INTEGER_FORMAT " of process %" PRIu64, ordinal,
				pid);
	}
	return text;
}

void lien_print_gpus(const json_t *result)
{
	const json_t *processes = json_object_get(result, "processes"), *gpu;
	bool first = true;
	size_t i;

	json_array_foreach (json_object_get(result, "gpus"), i, gpu) {
		char *users = users_of(gpu, processes), *name = name_of(gpu);

		if (users) {
			if (first)
				printf("\n");
			first = false;
			lien_print_wrapped(stdout, 2, "%s: %s", name, users);
		}
		free(users);
		free(name);
	}
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

static bool takes_part(const json_t *result, uint64_t pid)
{
	const json_t *process;
	size_t i;

	json_array_foreach (json_object_get(result, "processes"), i, process)
		if (lien_get_number(process, "pid") == pid)
			return true;
	return false;
}

void lien_print_unexplained(const json_t *result, const json_t *gpus)
{
	uint64_t bytes = 0, known = 0;
	const json_t *gpu, *process;
	char *pids = NULL;
	json_t *rest;
	size_t i, j;

	json_array_foreach (json_object_get(gpus, "gpus"), i, gpu)
		json_array_foreach (json_object_get(gpu, "processes"), j, process) {
			rest = json_object_get(process, "unexplained_bytes");
			if (!json_is_integer(rest) || json_integer_value(rest) <= 0 ||
				!takes_part(result, lien_get_number(process, "pid")))
				continue;
			bytes += json_integer_value(rest);
			if (++known <= PIDS_SHOWN)
				pids = lien_append(
					pids, ", ", "%" PRIu64, lien_get_number(process, "pid"));
		}
	if (known > PIDS_SHOWN)
		pids = lien_append(pids, " ", "and %" PRIu64 " more", known - PIDS_SHOWN);
	if (known)
		lien_print_wrapped(stdout, 4,
			"  %s in %s %s: the driver's own (contexts, kernels), and what was not "
			"seen",
			lien_size(bytes).text, known == 1 ? "process" : "processes", pids);
	else
		printf("  the driver's own (contexts, kernels): not known, for NVML gives no "
		       "figure\n");
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
	static const struct lien_column columns[] = {{"PID", LIEN_RIGHT}, {"DEVICE", LIEN_RIGHT},
		{"IS", LIEN_LEFT}, {"TRACED", LIEN_RIGHT},
		{"+ CONTEXT AND UNEXPLAINED", LIEN_RIGHT}, {"= NVIDIA-SMI", LIEN_RIGHT}};
	struct lien_table *table = lien_table_new(columns, 6);
	const json_t *gpu, *process;
	size_t i, j;

	json_array_foreach (json_object_get(result, "gpus"), i, gpu)
		json_array_foreach (json_object_get(gpu, "processes"), j, process)
			if ((!pid || lien_get_number(process, "pid") == (uint64_t)pid) &&
				!idle(process))
				add_process(table, gpu, process);
	printf("\n");
	lien_table_end(table, stdout);
	printf("\n");
	if (json_is_null(json_object_get(result, "nvml")))
		lien_print_wrapped(stdout, 2,
			"What the driver says a process uses is not known: NVML "
			"(libnvidia-ml.so.1, a part of the driver) is not there or does not work.");
	else
		lien_print_wrapped(stdout, 2,
			"Traced is what the process owns. The driver's own memory for a process "
			"(its context: code, stacks, printf and heap buffers) and what pools keep "
			"in reserve cannot be told apart from memory that was not seen: together "
			"they are the difference to what NVML, and so nvidia-smi, shows.");
}
