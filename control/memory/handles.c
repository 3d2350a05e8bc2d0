// SPDX-License-Identifier: BSD-2-Clause
/* Used by the control thread alone. */
#include <stdlib.h>

#include "control/memory/handles.h"

static CUmemGenericAllocationHandle *owed;
static unsigned owed_count, owed_room;

CUresult lien_handle_retain(
	const struct lien_driver *driver, CUmemGenericAllocationHandle *handle, uint64_t va)
{
	CUresult result = driver->cuMemRetainAllocationHandle(handle, (void *)va);

	return result ? driver->cuMemRetainAllocationHandle(handle, (void *)va) : result;
}

/* Without memory the reference is forgotten: one too many is better than a crash. */
static void owe(CUmemGenericAllocationHandle handle)
{
	unsigned room = owed_room ? 2 * owed_room : 64;
	CUmemGenericAllocationHandle *grown;

	if (owed_count == owed_room) {
		grown = realloc(owed, room * sizeof(*grown));
		if (!grown)
			return;
		owed = grown;
		owed_room = room;
	}
	owed[owed_count++] = handle;
}

CUresult lien_handle_release(const struct lien_driver *driver, CUmemGenericAllocationHandle handle)
{
	CUresult result = driver->cuMemRelease(handle);

	if (result)
		result = driver->cuMemRelease(handle);
	if (result)
		owe(handle);
	return result;
}

int lien_handles_owed(void)
{
	return owed_count != 0;
}

void lien_handles_forked(void)
{
	owed = NULL; /* the parent may have been changing it */
	owed_count = owed_room = 0;
}

void lien_handles_release_owed(const struct lien_driver *driver)
{
	while (owed_count && !driver->cuMemRelease(owed[owed_count - 1]))
		owed_count--;
	if (!owed_count) {
		free(owed);
		owed = NULL;
		owed_room = 0;
	}
}
