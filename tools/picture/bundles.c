// SPDX-License-Identifier: BSD-2-Clause
/* Bundles the imports between each two residents. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/picture/residents.h"
#include "tools/text/output.h"

struct bundles {
	struct lien_residents *residents;
	unsigned *of_owner; /* beginning of each owner's list in next[], plus 1 */
	unsigned *next;	    /* the same owner's next bundle, plus 1 */
	size_t capacity;
};

static int grow(struct bundles *bundles)
{
	struct lien_residents *residents = bundles->residents;
	size_t capacity = bundles->capacity ? 2 * bundles->capacity : 64;
	struct lien_bundle *grown =
		reallocarray(residents->bundles, capacity, sizeof(*residents->bundles));
	unsigned *next;

	if (!grown)
		return -ENOMEM;
	residents->bundles = grown;
	next = reallocarray(bundles->next, capacity, sizeof(*next));
	if (!next)
		return -ENOMEM;
	bundles->next = next;
	bundles->capacity = capacity;
	return 0;
}

static struct lien_bundle *find_bundle(struct bundles *bundles, unsigned owner, unsigned importer)
{
	struct lien_residents *residents = bundles->residents;
	unsigned *link = &bundles->of_owner[owner], number = residents->bundle_count;

	for (unsigned i = *link; i; i = bundles->next[i - 1]) {
		if (residents->bundles[i - 1].importer == importer)
			return &residents->bundles[i - 1];
	}
	if (number == bundles->capacity && grow(bundles))
		return NULL;
	residents->bundles[number] = (struct lien_bundle){.owner = owner, .importer = importer};
	bundles->next[number] = *link;
	*link = ++residents->bundle_count;
	return &residents->bundles[number];
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
	int first = lien_residents_find(residents, pid, false, -1);

	if (first < 0 || !lien_residents_has_several(residents, &residents->residents[first]))
		return first;
	if (!json_object_get(holder, "access"))
		holder = find_mapping(mappings, pid);
	return lien_residents_find(residents, pid, false, accessing_device(holder));
}

/* Counts a resident that holds an allocation in several ways only once. */
static void count_lien(struct lien_bundle *bundle, const json_t *allocation, size_t number)
{
	uint64_t bytes = lien_get_number(allocation, "bytes");
	const char *library = lien_reply_library(allocation);

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
	if (lien_allocation_kind(allocation) == LIEN_PART_OFFLOADED)
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

static int add_allocation(struct bundles *bundles, const json_t *allocation, size_t number)
{
	int owner = lien_residents_find(bundles->residents, lien_get_number(allocation, "pid"),
		lien_allocation_dead(allocation), lien_allocation_device(allocation));
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

	bundles.of_owner = calloc(residents->count + 1, sizeof(*bundles.of_owner));
	if (!bundles.of_owner)
		return -ENOMEM;
	json_array_foreach (allocations, i, allocation) {
		err = add_allocation(&bundles, allocation, i + 1);
		if (err)
			break;
	}
	if (residents->bundle_count)
		qsort(residents->bundles, residents->bundle_count, sizeof(*residents->bundles),
			compare_bundles);
	sum_imports(residents);
	free(bundles.of_owner);
	free(bundles.next);
	return err;
}

int lien_residents_make(const json_t *reply, struct lien_residents *out)
{
	int err = lien_residents_list(reply, out);

	if (err)
		return err;
	err = fill_bundles(out, reply);
	if (err)
		lien_residents_free(out);
	return err;
}
