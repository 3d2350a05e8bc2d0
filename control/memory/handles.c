// SPDX-License-Identifier: BSD-2-Clause
/* Used by the control thread alone. */

#include <lien/grow.h>
#include "control/driver/thread.h"
#include "control/memory/handles.h"

/* A reference, or a place that is ours. */
struct owed {
	CUmemGenericAllocationHandle handle; /* 0: a place */
	struct lien_scratch place;
};
static struct owed *owed LIEN_ZERO_IN_CHILD;
static unsigned owed_count LIEN_ZERO_IN_CHILD, owed_room LIEN_ZERO_IN_CHILD;

CUresult lien_handle_retain(
	const struct lien_driver *driver, CUmemGenericAllocationHandle *handle, uint64_t va)
{
	CUresult result = driver->cuMemRetainAllocationHandle(handle, (void *)va);

	return result ? driver->cuMemRetainAllocationHandle(handle, (void *)va) : result;
}

/* Without memory it is forgotten: one reference too many is better than a crash. */
static void owe(struct owed more)
{
	if (!lien_array_grow(&owed, owed_count, &owed_room, sizeof(*owed)))
		owed[owed_count++] = more;
}

CUresult lien_handle_release(const struct lien_driver *driver, CUmemGenericAllocationHandle handle)
{
	CUresult result = driver->cuMemRelease(handle);

	if (result)
		result = driver->cuMemRelease(handle);
	if (result)
		owe((struct owed){.handle = handle});
	return result;
}

/* Returns 0, or why the place is still there, perhaps without the mapping. */
static CUresult place_free(const struct lien_driver *driver, struct lien_scratch *place)
{
	CUresult result;

	if (place->mapped && (result = driver->cuMemUnmap(place->va, place->bytes)))
		return result;
	place->mapped = 0;
	return driver->cuMemAddressFree(place->va, place->bytes);
}

void lien_scratch_free(const struct lien_driver *driver, struct lien_scratch place)
{
	if (place_free(driver, &place) && place_free(driver, &place))
		owe((struct owed){.place = place});
}

int lien_handles_owed(void)
{
	return owed_count != 0;
}

static CUresult release_one(const struct lien_driver *driver, struct owed *one)
{
	return one->handle ? driver->cuMemRelease(one->handle) : place_free(driver, &one->place);
}

void lien_handles_release_owed(const struct lien_driver *driver)
{
	while (owed_count && !release_one(driver, &owed[owed_count - 1]))
		owed_count--;
	if (!owed_count) {
		free(owed);
		owed = NULL;
		owed_room = 0;
	}
}
