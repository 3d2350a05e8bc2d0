// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/residents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "tools/picture/several.h"
#include "tools/text/output.h"

#define DEVICES_MAX 1024

static int compare_keys(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int compare_residents(const void *a, const void *b)
{
	const struct lien_resident *x = a, *y = b;
	int order = compare_keys(x->pid, y->pid);

	if (!order)
		order = x->dead - y->dead;
	return order ? order : x->device - y->device;
}

static int compare_process_pids(const void *a, const void *b)
{
	return compare_keys(lien_get_number(*(const json_t *const *)a, "pid"),
		lien_get_number(*(const json_t *const *)b, "pid"));
}

static int device_of(const json_t *number)
{
	json_int_t device = json_is_integer(number) ? json_integer_value(number) : -1;

	if (device < 0 || device >= LIEN_DEVICE_NONE ||
		(device & ((1 << LIEN_SEVERAL_DEVICE_BITS) - 1)) >= DEVICES_MAX)
		return LIEN_DEVICE_UNKNOWN;
	return (int)device;
}

static int allocation_device(const json_t *allocation)
{
	return device_of(json_object_get(allocation, "device"));
}

static const char *library_of(const json_t *allocation)
{
	const char *name = lien_get_text(allocation, "owner");

	return *name ? name : "unknown";
}

/* It is unknown whether an unknown owner is alive. */
static bool is_dead(const json_t *allocation)
{
	return lien_get_number(allocation, "pid") &&
	       json_is_false(json_object_get(allocation, "alive"));
}

/* Returns the index of the resident that is this process on this device; if there is none, of the
 * process on the first of its devices, or -1. */
static int find_resident(
	const struct lien_residents *residents, uint64_t pid, bool dead, int device)
{
	const struct lien_resident key = {.pid = pid, .dead = dead, .device = -1};
	const unsigned low = lien_array_at_least(
		residents->residents, residents->count, sizeof(key), &key, compare_residents);
	const struct lien_resident *first = &residents->residents[low];

	if (low == residents->count || first->pid != pid || first->dead != dead)
		return -1;
	for (unsigned i = low; i < residents->count; i++) {
		const struct lien_resident *resident = &residents->residents[i];

		if (resident->pid != pid || resident->dead != dead)
			break;
		if (resident->device == device)
			return i;
	}
	return low;
}

static bool is_same_process(const struct lien_resident *a, const struct lien_resident *b)
{
	return a->pid == b->pid && a->dead == b->dead;
}

bool lien_residents_has_several(
	const struct lien_residents *residents, const struct lien_resident *one)
{
	unsigned number = one - residents->residents;

	return (number && is_same_process(one - 1, one)) ||
	       (number + 1 < residents->count && is_same_process(one + 1, one));
}

/* Collects one entry for each pair of process and device that the reply names, with repetitions. */
static size_t collect(const json_t *reply, struct lien_resident *out)
{
	const json_t *processes = json_object_get(reply, "processes"), *process, *device;
	const json_t *allocations = json_object_get(reply, "allocations"), *allocation;
	size_t count = 0, i, j;

	json_array_foreach (processes, i, process) {
		const json_t *devices = json_object_get(process, "devices");
		uint64_t pid = lien_get_number(process, "pid");

		out[count++] = (struct lien_resident){.pid = pid, .device = LIEN_DEVICE_NONE};
		json_array_foreach (devices, j, device)
			out[count++] =
				(struct lien_resident){.pid = pid, .device = device_of(device)};
	}
	json_array_foreach (allocations, i, allocation)
		out[count++] = (struct lien_resident){
			.pid = lien_get_number(allocation, "pid"),
			.dead = is_dead(allocation),
			.device = allocation_device(allocation),
		};
	return count;
}

static size_t count_candidates(const json_t *reply)
{
	const json_t *processes = json_object_get(reply, "processes"), *process;
	size_t i, count = json_array_size(json_object_get(reply, "allocations"));

	json_array_foreach (processes, i, process)
		count += 1 + json_array_size(json_object_get(process, "devices"));
	return count;
}

/* Memory without a known device is shown with the process on one of its devices, if it has any. */
static unsigned drop_repeated(struct lien_resident *residents, size_t count)
{
	unsigned kept = 0;

	for (size_t i = 0; i < count; i++) {
		const struct lien_resident *last = kept ? &residents[kept - 1] : NULL;

		if (last && is_same_process(last, &residents[i]) &&
			(last->device == residents[i].device ||
				residents[i].device >= LIEN_DEVICE_NONE))
			continue;
		residents[kept++] = residents[i];
	}
	return kept;
}

/* The reply may name a million allocations of only two residents. */
static void shrink(struct lien_residents *residents)
{
	struct lien_resident *smaller = reallocarray(
		residents->residents, residents->count + 1, sizeof(*residents->residents));

	if (smaller)
		residents->residents = smaller;
}

static void find_processes(struct lien_residents *residents, const json_t **sorted, size_t count)
{
	size_t next = 0;

	for (unsigned i = 0; i < residents->count; i++) {
		struct lien_resident *resident = &residents->residents[i];

		while (next < count && lien_get_number(sorted[next], "pid") < resident->pid)
			next++;
		if (!resident->pid || resident->dead)
			continue;
		if (next < count && lien_get_number(sorted[next], "pid") == resident->pid)
			resident->process = sorted[next];
	}
}

static int add_processes(struct lien_residents *residents, const json_t *reply)
{
	const json_t *processes = json_object_get(reply, "processes"), *process;
	size_t i, count = json_array_size(processes);
	const json_t **sorted = calloc(count + 1, sizeof(*sorted));

	if (!sorted)
		return -ENOMEM;
	json_array_foreach (processes, i, process)
		sorted[i] = process;
	qsort(sorted, count, sizeof(*sorted), compare_process_pids);
	find_processes(residents, sorted, count);
	free(sorted);
	return 0;
}

static bool is_shared(const json_t *allocation)
{
	static const char *const lists[] = {"handles", "mappings"};
	const json_t *holder;
	size_t i;

	if (lien_get_number(allocation, "exports"))
		return true;
	for (unsigned l = 0; l < 2; l++) {
		json_array_foreach (json_object_get(allocation, lists[l]), i, holder)
			if (lien_get_number(holder, "pid") != lien_get_number(allocation, "pid"))
				return true;
	}
	return false;
}

static enum lien_part_kind kind_of(const json_t *allocation)
{
	const char *state = lien_get_text(allocation, "state");

	if (!strcmp(state, "offloaded"))
		return LIEN_PART_OFFLOADED;
	if (strcmp(state, "on the device"))
		return LIEN_PART_OTHER;
	return is_shared(allocation) ? LIEN_PART_EXPORTED : LIEN_PART_LOCAL;
}

static struct lien_part *find_part(struct lien_resident *resident, const struct lien_part *key)
{
	struct lien_part *grown;

	for (unsigned i = 0; i < resident->part_count; i++) {
		struct lien_part *part = &resident->parts[i];

		if (part->kind == key->kind && !strcmp(part->library, key->library) &&
			!strcmp(part->tag, key->tag) &&
			(part->kind != LIEN_PART_OTHER || !strcmp(part->state, key->state)))
			return part;
	}
	grown = reallocarray(resident->parts, resident->part_count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	resident->parts = grown;
	grown[resident->part_count] = *key;
	return &grown[resident->part_count++];
}

static struct lien_library *find_library(struct lien_residents *residents, const char *name)
{
	struct lien_library *grown;

	for (unsigned i = 0; i < residents->library_count; i++) {
		if (!strcmp(residents->libraries[i].name, name))
			return &residents->libraries[i];
	}
	grown = reallocarray(
		residents->libraries, residents->library_count + 1, sizeof(*residents->libraries));
	if (!grown)
		return NULL;
	residents->libraries = grown;
	grown[residents->library_count] = (struct lien_library){.name = name};
	return &grown[residents->library_count++];
}

static int add_allocation(struct lien_residents *residents, const json_t *allocation)
{
	uint64_t bytes = lien_get_number(allocation, "bytes");
	struct lien_part key = {.library = library_of(allocation),
		.tag = lien_get_text(allocation, "tag"),
		.kind = kind_of(allocation),
		.state = lien_get_text(allocation, "state")};
	struct lien_resident *resident =
		&residents->residents[find_resident(residents, lien_get_number(allocation, "pid"),
			is_dead(allocation), allocation_device(allocation))];
	struct lien_library *library = find_library(residents, key.library);
	struct lien_part *part = find_part(resident, &key);

	if (!library || !part)
		return -ENOMEM;
	library->bytes += bytes;
	part->allocations++;
	part->bytes += bytes;
	resident->all += bytes;
	if (key.kind == LIEN_PART_LOCAL || key.kind == LIEN_PART_EXPORTED)
		resident->bytes += bytes;
	return 0;
}

static int compare_libraries(const void *a, const void *b)
{
	const struct lien_library *x = a, *y = b;
	int order = compare_keys(y->bytes, x->bytes);

	return order ? order : strcmp(x->name, y->name);
}

static unsigned library_place(const struct lien_residents *residents, const char *name)
{
	unsigned i = 0;

	while (strcmp(residents->libraries[i].name, name))
		i++;
	return i;
}

static int compare_parts(const void *a, const void *b, void *arg)
{
	const struct lien_part *x = a, *y = b;
	int order = compare_keys(library_place(arg, x->library), library_place(arg, y->library));

	if (!order)
		order = (int)x->kind - (int)y->kind;
	if (!order)
		order = strcmp(x->tag, y->tag);
	return order ? order : strcmp(x->state, y->state);
}

/* Returns the process's lowest rank in any communicator; processes without one sort last. */
static uint64_t rank_of(const struct lien_resident *resident)
{
	const json_t *ranks = json_object_get(resident->process, "ranks"), *one;
	uint64_t rank = UINT64_MAX;
	size_t i;

	json_array_foreach (ranks, i, one)
		if (lien_get_number(one, "rank") < rank)
			rank = lien_get_number(one, "rank");
	return rank;
}

static int compare_order(const void *a, const void *b, void *arg)
{
	const struct lien_residents *residents = arg;
	const struct lien_resident *x = &residents->residents[*(const unsigned *)a];
	const struct lien_resident *y = &residents->residents[*(const unsigned *)b];
	int order = x->device - y->device;

	if (!order)
		order = x->dead - y->dead;
	if (!order)
		order = compare_keys(rank_of(x), rank_of(y));
	return order ? order : compare_residents(x, y);
}

static int fill(struct lien_residents *residents, const json_t *reply)
{
	const json_t *allocations = json_object_get(reply, "allocations"), *allocation;
	int err = add_processes(residents, reply);
	size_t i;

	json_array_foreach (allocations, i, allocation) {
		if (!err)
			err = add_allocation(residents, allocation);
	}
	if (err)
		return err;
	if (residents->library_count)
		qsort(residents->libraries, residents->library_count, sizeof(*residents->libraries),
			compare_libraries);
	for (i = 0; i < residents->count; i++) {
		struct lien_resident *resident = &residents->residents[i];

		if (resident->parts)
			qsort_r(resident->parts, resident->part_count, sizeof(*resident->parts),
				compare_parts, residents);
		residents->order[i] = i;
	}
	qsort_r(residents->order, residents->count, sizeof(*residents->order), compare_order,
		residents);
	return 0;
}

void lien_residents_free(struct lien_residents *residents)
{
	for (unsigned i = 0; i < residents->count; i++)
		free(residents->residents[i].parts);
	free(residents->residents);
	free(residents->order);
	free(residents->bundles);
	free(residents->libraries);
	memset(residents, 0, sizeof(*residents));
}

/* --- the imports between each two residents --------------------------------------------------- */

struct bundles {
	struct lien_residents *residents;
	struct lien_rows rows;
};

static bool is_bundle(const void *row, const void *key)
{
	const struct lien_bundle *bundle = row, *wanted = key;

	return bundle->owner == wanted->owner && bundle->importer == wanted->importer;
}

static struct lien_bundle *find_bundle(struct bundles *bundles, unsigned owner, unsigned importer)
{
	const struct lien_bundle key = {.owner = owner, .importer = importer};
	struct lien_bundle *bundle = lien_rows_find(&bundles->rows,
		lien_rows_mix(lien_rows_mix(0, owner), importer), is_bundle, &key,
		&bundles->residents->bundles, &bundles->residents->bundle_count, sizeof(*bundle));

	if (bundle) {
		bundle->owner = owner;
		bundle->importer = importer;
	}
	return bundle;
}

/* Returns the one device that has access through a mapping, or LIEN_DEVICE_UNKNOWN if there are
 * several: then any will do. */
static int accessing_device(const json_t *mapping)
{
	const json_t *list = json_object_get(mapping, "access"), *device;

	if (json_array_size(list) != 1)
		return LIEN_DEVICE_UNKNOWN;
	device = json_object_get(json_array_get(list, 0), "device");
	return json_is_integer(device) ? (int)json_integer_value(device) : LIEN_DEVICE_UNKNOWN;
}

static const json_t *find_mapping(const json_t *mappings, uint64_t pid)
{
	const json_t *mapping;
	size_t i;

	json_array_foreach (mappings, i, mapping)
		if (lien_get_number(mapping, "pid") == pid)
			return mapping;
	return NULL;
}

/* A handle does not name a device: use the one where the process has the memory mapped. */
static int find_importer(
	const struct lien_residents *residents, const json_t *holder, const json_t *mappings)
{
	uint64_t pid = lien_get_number(holder, "pid");
	int first = find_resident(residents, pid, false, -1);

	if (first < 0 || !lien_residents_has_several(residents, &residents->residents[first]))
		return first;
	if (!json_object_get(holder, "access"))
		holder = find_mapping(mappings, pid);
	return find_resident(residents, pid, false, accessing_device(holder));
}

/* Counts a resident that holds an allocation in several ways only once. */
static void count_lien(struct lien_bundle *bundle, const json_t *allocation, size_t number)
{
	uint64_t bytes = lien_get_number(allocation, "bytes");
	const char *library = library_of(allocation);

	bundle->liens++;
	if (bundle->last == number)
		return;
	if (!bundle->last)
		bundle->library = library;
	else if (strcmp(bundle->library, library))
		bundle->library = "";
	bundle->last = number;
	bundle->allocations++;
	bundle->bytes += bytes;
	if (kind_of(allocation) == LIEN_PART_OFFLOADED)
		bundle->offloaded += bytes;
}

static int add_holders(struct bundles *bundles, unsigned owner, const json_t *allocation,
	size_t number, const char *list)
{
	const json_t *mappings = json_object_get(allocation, "mappings"), *holder;
	size_t i;

	json_array_foreach (json_object_get(allocation, list), i, holder) {
		const struct lien_resident *resident = &bundles->residents->residents[owner];
		struct lien_bundle *bundle;
		int importer;

		if (lien_get_number(holder, "pid") == resident->pid && !resident->dead)
			continue;
		importer = find_importer(bundles->residents, holder, mappings);
		if (importer < 0)
			continue;
		bundle = find_bundle(bundles, owner, importer);
		if (!bundle)
			return -ENOMEM;
		count_lien(bundle, allocation, number);
	}
	return 0;
}

static int add_to_bundles(struct bundles *bundles, const json_t *allocation, size_t number)
{
	int owner = find_resident(bundles->residents, lien_get_number(allocation, "pid"),
		is_dead(allocation), allocation_device(allocation));
	int err = add_holders(bundles, owner, allocation, number, "mappings");

	return err ? err : add_holders(bundles, owner, allocation, number, "handles");
}

static int compare_bundles(const void *a, const void *b)
{
	const struct lien_bundle *x = a, *y = b;

	if (x->owner != y->owner)
		return x->owner < y->owner ? -1 : 1;
	return x->importer < y->importer ? -1 : x->importer > y->importer;
}

static void sum_imports(struct lien_residents *residents)
{
	for (unsigned i = 0; i < residents->bundle_count; i++) {
		const struct lien_bundle *bundle = &residents->bundles[i];

		residents->residents[bundle->importer].imported +=
			bundle->bytes - bundle->offloaded;
		residents->residents[bundle->importer].away += bundle->offloaded;
		residents->residents[bundle->importer].owners++;
	}
}

static int fill_bundles(struct lien_residents *residents, const json_t *reply)
{
	const json_t *allocations = json_object_get(reply, "allocations"), *allocation;
	struct bundles bundles = {.residents = residents};
	int err = 0;
	size_t i;

	json_array_foreach (allocations, i, allocation) {
		err = add_to_bundles(&bundles, allocation, i + 1);
		if (err)
			break;
	}
	if (residents->bundle_count)
		qsort(residents->bundles, residents->bundle_count, sizeof(*residents->bundles),
			compare_bundles);
	sum_imports(residents);
	free(bundles.rows.place);
	return err;
}

int lien_residents_make(const json_t *reply, struct lien_residents *out)
{
	size_t count = count_candidates(reply);
	int err = -ENOMEM;

	memset(out, 0, sizeof(*out));
	out->residents = calloc(count + 1, sizeof(*out->residents));
	if (out->residents) {
		count = collect(reply, out->residents);
		qsort(out->residents, count, sizeof(*out->residents), compare_residents);
		out->count = drop_repeated(out->residents, count);
		shrink(out);
		out->order = calloc(out->count + 1, sizeof(*out->order));
	}
	if (out->order)
		err = fill(out, reply);
	if (!err)
		err = fill_bundles(out, reply);
	if (err)
		lien_residents_free(out);
	return err;
}
