// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/filter.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

#define ORDINALS 64 /* looked for to list them */

bool lien_filter_read(const struct lien_usage *usage, struct lien_filter *filter)
{
	const struct passwd *user;
	unsigned long uid;

	if (!filter->user)
		return true;
	user = getpwnam(filter->user);
	if (user)
		filter->uid = user->pw_uid;
	else if (lien_parse_number(filter->user, UINT32_MAX, &uid))
		filter->uid = uid;
	else
		lien_usage_error(usage, "--user '%s' is not a user here", filter->user);
	return user || strspn(filter->user, "0123456789") == strlen(filter->user);
}

char *lien_user_name(uint32_t uid, bool number)
{
	const struct passwd *user = number ? NULL : getpwuid(uid);

	return user ? lien_format("%s", user->pw_name) : lien_format("%u", uid);
}

bool lien_filter_gpus_have(const json_t *gpus, const char *number)
{
	const json_t *gpu;
	size_t i;

	json_array_foreach (gpus, i, gpu)
		if (json_is_integer(json_object_get(gpu, number)))
			return true;
	return false;
}

static bool is_gpu(const json_t *gpu, const char *name)
{
	const json_t *index = json_object_get(gpu, "index");
	unsigned long number;

	if (lien_parse_number(name, INT32_MAX, &number))
		return json_is_integer(index) && json_integer_value(index) == (json_int_t)number;
	return !strncmp(lien_get_text(gpu, "uuid"), name, strlen(name));
}

static bool has_ordinal(const json_t *process, json_int_t ordinal)
{
	const json_t *device;
	size_t i;

	json_array_foreach (json_object_get(process, "devices"), i, device)
		if (json_integer_value(device) == ordinal)
			return true;
	return false;
}

/* Has the process memory on that GPU? */
static bool is_on(const json_t *process, const json_t *gpu)
{
	const json_t *user, *ordinal;
	size_t i;

	json_array_foreach (json_object_get(gpu, "processes"), i, user) {
		ordinal = json_object_get(user, "ordinal");
		if (lien_get_number(user, "pid") == lien_get_number(process, "pid") &&
			json_is_integer(ordinal) &&
			has_ordinal(process, json_integer_value(ordinal)))
			return true;
	}
	return false;
}

/* Is it a process's own number of some GPU? */
static bool is_ordinal(const json_t *result, json_int_t number)
{
	const json_t *gpu, *process, *ordinal;
	size_t i, j;

	json_array_foreach (json_object_get(result, "gpus"), i, gpu)
		json_array_foreach (json_object_get(gpu, "processes"), j, process) {
			ordinal = json_object_get(process, "ordinal");
			if (json_is_integer(ordinal) && json_integer_value(ordinal) == number)
				return true;
		}
	json_array_foreach (json_object_get(result, "processes"), i, process)
		if (has_ordinal(process, number))
			return true;
	return false;
}

static void complain_of_gpu(const struct lien_usage *usage, const char *name, const json_t *result)
{
	const json_t *gpus = json_object_get(result, "gpus"), *gpu, *index;
	char *list = NULL;
	size_t i;

	for (i = 0; i < ORDINALS && !lien_filter_gpus_have(gpus, "index"); i++)
		if (is_ordinal(result, i))
			list = lien_append(list, ", ", "%zu", i);
	json_array_foreach (gpus, i, gpu) {
		index = json_object_get(gpu, "index");
		if (json_is_integer(index))
			list = lien_append(list, ", ", "%" JSON_INTEGER_FORMAT " (%s)",
				json_integer_value(index), lien_get_text(gpu, "uuid"));
		else if (*lien_get_text(gpu, "uuid"))
			list = lien_append(list, ", ", "%s", lien_get_text(gpu, "uuid"));
	}
	lien_usage_error(usage, "--gpu '%s' is not one of the GPUs known here: %s", name,
		list ? list : "none");
	free(list);
}

/* Keeps the GPUs of that name. Returns false: none is. */
static bool keep_gpus(json_t *result, const char *name)
{
	json_t *kept = json_array(), *gpu;
	size_t i;

	json_array_foreach (json_object_get(result, "gpus"), i, gpu)
		if (is_gpu(gpu, name))
			json_array_append(kept, gpu);
	if (!json_array_size(kept)) {
		json_decref(kept);
		return false;
	}
	return !json_object_set_new(result, "gpus", kept);
}

static bool is_selected(const struct lien_filter *filter, const json_t *process, const json_t *gpus,
	bool by_ordinal)
{
	const json_t *gpu;
	size_t i;

	if (filter->user && lien_get_number(process, "uid") != filter->uid)
		return false;
	if (!filter->gpu)
		return true;
	if (by_ordinal)
		return has_ordinal(process, strtol(filter->gpu, NULL, 10));
	json_array_foreach (gpus, i, gpu)
		if (is_on(process, gpu))
			return true;
	return false;
}

bool lien_filter_ps(
	const struct lien_usage *usage, const struct lien_filter *filter, json_t *result)
{
	json_t *gpus = json_object_get(result, "gpus"), *kept, *process;
	bool by_ordinal = false;
	unsigned long number;
	size_t i;

	if (filter->gpu) {
		/* Where no GPU has an index (no NVML, a recording), a number is the processes' own.
		 */
		by_ordinal = lien_parse_number(filter->gpu, INT32_MAX, &number) &&
			     !lien_filter_gpus_have(gpus, "index");
		if (by_ordinal ? !is_ordinal(result, number) : !keep_gpus(result, filter->gpu)) {
			complain_of_gpu(usage, filter->gpu, result);
			return false;
		}
	}
	if (!filter->gpu && !filter->user)
		return true;
	gpus = json_object_get(result, "gpus");
	kept = json_array();
	json_array_foreach (json_object_get(result, "processes"), i, process)
		if (is_selected(filter, process, gpus, by_ordinal))
			json_array_append(kept, process);
	json_object_set_new(result, "processes", kept);
	/* Whose they were, and where, is not known. */
	json_object_set_new(result, "dead", json_array());
	return true;
}

bool lien_filter_has(const json_t *result, uint64_t pid)
{
	const json_t *process;
	size_t i;

	json_array_foreach (json_object_get(result, "processes"), i, process)
		if (lien_get_number(process, "pid") == pid)
			return true;
	return false;
}

struct row {
	json_t *entry;
	size_t place; /* rows that are alike keep their order */
};

static int compare(const void *x, const void *y, void *context)
{
	const struct row *a = x, *b = y;
	const struct lien_sort *way = context;
	double of_a = lien_get_real(a->entry, way->key), of_b = lien_get_real(b->entry, way->key);
	int order = strcmp(lien_get_text(a->entry, way->key), lien_get_text(b->entry, way->key));

	if (!order)
		order = (of_a > of_b) - (of_a < of_b);
	if (!order)
		return a->place < b->place ? -1 : 1;
	return way->ascending ? order : -order;
}

void lien_sort(json_t *rows, const struct lien_sort *ways, const char *name)
{
	size_t count = json_array_size(rows), i;
	struct row *list;

	while (name && ways->name && strcmp(ways->name, name) != 0)
		ways++;
	if (!name || !ways->name || !count)
		return;
	list = calloc(count, sizeof(*list));
	if (!list)
		return;
	for (i = 0; i < count; i++)
		list[i] = (struct row){json_incref(json_array_get(rows, i)), i};
	qsort_r(list, count, sizeof(*list), compare, (void *)ways);
	json_array_clear(rows);
	for (i = 0; i < count; i++)
		json_array_append_new(rows, list[i].entry);
	free(list);
}
