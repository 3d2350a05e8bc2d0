// SPDX-License-Identifier: BSD-2-Clause
/* Saves, drops and restores memory in this process. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "control/driver/cached.h"
#include "control/orders/control.h"
#include "control/memory/handles.h"
#include "control/driver/names.h"
#include "control/memory/numa.h"

/* The arena has bytes of these that are still needed. */
#define IN_ARENA (1u << LIEN_ITEM_SAVED | LIEN_ITEMS_MISSING | 1u << LIEN_ITEM_FILLING)
/* Grace period, granted once, for another job to give memory back. */
#define CREATE_AGAIN_US 50000

static void context_release(const struct lien_driver *driver, struct lien_device *device)
{
	if (driver->cuDevicePrimaryCtxRelease_v2(device->device))
		driver->cuDevicePrimaryCtxRelease_v2(device->device);
	device->held = 0;
}

static CUresult context_hold(
	const struct lien_driver *driver, struct lien_device *device, int ordinal)
{
	unsigned int flags;
	CUresult result;
	int active;

	if ((result = driver->cuDeviceGet(&device->device, ordinal)) ||
		(result = driver->cuDevicePrimaryCtxGetState(device->device, &flags, &active)))
		return result;
	if (!active)
		return -ENODEV;
	result = driver->cuDevicePrimaryCtxRetain(&device->context, device->device);
	device->held = !result;
	return result;
}

int lien_device_use(struct lien_control *control, int ordinal, struct lien_device **out)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	CUresult result;

	if (ordinal < 0 || ordinal >= LIEN_DEVICES_MAX)
		return -ENODEV;
	device = &control->devices[ordinal];
	*out = device;
	if (device->open)
		return driver->cuCtxSetCurrent(device->context);
	if (!device->held && (result = context_hold(driver, device, ordinal)))
		return result;
	if ((result = driver->cuCtxSetCurrent(device->context)) ||
		(result = driver->cuStreamCreate(&device->stream, CU_STREAM_NON_BLOCKING))) {
		if (!lien_items_any(&control->items, LIEN_ITEMS_MISSING))
			context_release(driver, device);
		return result;
	}
	device->open = 1;
	return 0;
}

void lien_devices_close(struct lien_control *control)
{
	const int away = lien_items_any(&control->items, LIEN_ITEMS_MISSING);
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;

	if (lien_items_any(&control->items, 1 << LIEN_ITEM_FILLING))
		return; /* copies are in progress: an agent ended before FINISH */
	for (device = control->devices; device < control->devices + LIEN_DEVICES_MAX; device++) {
		if (device->open) {
			driver->cuCtxSetCurrent(device->context);
			if (driver->cuStreamDestroy_v2(device->stream))
				driver->cuStreamDestroy_v2(device->stream);
			driver->cuCtxSetCurrent(NULL);
			device->open = 0;
		}
		if (device->held && !away)
			context_release(driver, device);
	}
}

static int devices_synchronize(struct lien_control *control)
{
	CUresult result, first = CUDA_SUCCESS;
	unsigned i;

	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (control->devices[i].open) {
			control->driver->cuCtxSetCurrent(control->devices[i].context);
			result = control->driver->cuStreamSynchronize(control->devices[i].stream);
			if (!first)
				first = result;
		}
	return first;
}

/* Returns the free memory of the devices in use, according to the driver. */
static uint64_t devices_free(struct lien_control *control)
{
	size_t free_bytes, total;
	uint64_t sum = 0;
	unsigned i;

	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (control->devices[i].open) {
			control->driver->cuCtxSetCurrent(control->devices[i].context);
			if (!control->driver->cuMemGetInfo_v2(&free_bytes, &total))
				sum += free_bytes;
		}
	return sum;
}

int lien_item_device(const struct lien_wire_item *wire)
{
	int device = -1;
	unsigned i;

	for (i = 0; i < wire->places; i++) {
		if (wire->place[i].location_type != CU_MEM_LOCATION_TYPE_DEVICE ||
			wire->place[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			continue;
		if (device < 0 || wire->place[i].location_id == wire->location_id)
			device = wire->place[i].location_id;
	}
	return device;
}

/* Returns a device whose context can do the work on the item: copy it or, for an import, query
 * it. */
static int context_device(const struct lien_wire_item *wire)
{
	unsigned i;

	if (wire->flags & LIEN_WIRE_OWNED)
		return lien_item_device(wire);
	for (i = 0; i < wire->places; i++)
		if (wire->place[i].location_type == CU_MEM_LOCATION_TYPE_DEVICE)
			return wire->place[i].location_id;
	return -1;
}

static int check_access(struct lien_control *control, const struct lien_wire_item *wire)
{
	unsigned long long flags;
	CUmemLocation location;
	CUresult result;
	unsigned i;

	for (i = 0; i < wire->places; i++) {
		location.type = wire->place[i].location_type;
		location.id = wire->place[i].location_id;
		result = control->driver->cuMemGetAccess(&flags, &location, wire->va);
		if (result)
			return lien_control_fail(control, result, wire->va, "cuMemGetAccess");
		if (flags != wire->place[i].flags)
			return lien_control_fail(
				control, -ESTALE, wire->va, "access is not as the agent knows it");
	}
	return 0;
}

static int check_properties(struct lien_control *control, const struct lien_wire_item *wire,
	CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop;
	CUresult result;

	memset(&prop, 0, sizeof(prop));
	result = control->driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
	if (result)
		return lien_control_fail(
			control, result, wire->va, "cuMemGetAllocationPropertiesFromHandle");
	if (prop.location.type != wire->location_type || prop.location.id != wire->location_id ||
		prop.requestedHandleTypes != wire->handle_types)
		return lien_control_fail(
			control, -ESTALE, wire->va, "properties are not as the agent knows them");
	return 0;
}

/* The caller must own a reference: the application may have none. */
static int check_named(struct lien_control *control, const struct lien_wire_item *wire,
	struct lien_item *first, CUmemGenericAllocationHandle handle)
{
	if (wire->index == 0 && !first->held)
		first->handle = handle;
	if (handle != first->handle)
		return lien_control_fail(control, -ESTALE, wire->va,
			"not an alias of the allocation it was known for");
	return wire->index == 0 && wire->flags & LIEN_WIRE_OWNED
		       ? check_properties(control, wire, handle)
		       : 0;
}

static int check_mapping(
	struct lien_control *control, const struct lien_wire_item *wire, struct lien_item *first)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle handle;
	int result, released = 0;
	CUdeviceptr base;
	size_t size;

	result = driver->cuMemRetainAllocationHandle(&handle, (void *)wire->va);
	if (result)
		return lien_control_fail(control, result, wire->va, "not mapped here any more");
	result = check_named(control, wire, first, handle);
	if (!result && lien_item_shared(first) && !first->held)
		first->held = 1;
	else
		released = lien_handle_release(driver, handle);
	if (result)
		return result;
	if (released)
		return lien_control_fail(control, released, wire->va, "cuMemRelease");
	result = driver->cuMemGetAddressRange_v2(&base, &size, wire->va);
	if (result)
		return lien_control_fail(control, result, wire->va, "cuMemGetAddressRange");
	if (base != wire->va || size != wire->bytes)
		return lien_control_fail(control, -ESTALE, wire->va,
			"the mapping is not as large as the agent knows it");
	return check_access(control, wire);
}

int lien_order_check(struct lien_control *control)
{
	struct lien_item *item = NULL;
	struct lien_device *device;
	unsigned i;
	int result = 0;

	while ((item = lien_items_next(&control->items, item))) {
		if (item->state != LIEN_ITEM_STAGED || !lien_order_means(control, item))
			continue;
		result = lien_device_use(control, context_device(&item->wire), &device);
		if (result)
			lien_control_fail(control, result, item->wire.va,
				"no device that may reach it has a primary context");
		for (i = 0; i < item->wire.mappings && !result; i++)
			result = check_mapping(control, &item[i].wire, item);
		if (result)
			break;
	}
	lien_devices_close(control);
	return result;
}

/* Starts copying one allocation between the device and the arena. */
static int copy(struct lien_control *control, struct lien_item *item, int to_host)
{
	const struct lien_driver *driver = control->driver;
	uint64_t done = 0, length;
	struct lien_device *device;
	void *host;
	int result;

	result = lien_device_use(control, lien_item_device(&item->wire), &device);
	while (!result && done < item->wire.allocation_bytes) {
		length = item->wire.allocation_bytes - done;
		host = lien_arena_at(&control->arena, item->arena + done, &length);
		result = to_host ? driver->cuMemcpyDtoHAsync_v2(
					   host, item->wire.va + done, length, device->stream)
				 : driver->cuMemcpyHtoDAsync_v2(
					   item->wire.va + done, host, length, device->stream);
		done += length;
	}
	return result;
}

/* Returns true if its bytes go to the arena. */
static int to_be_saved(const struct lien_control *control, const struct lien_item *item)
{
	return item->state == LIEN_ITEM_STAGED && lien_order_means(control, item) &&
	       item->wire.flags & LIEN_WIRE_OWNED && !(item->wire.flags & LIEN_WIRE_WORTHLESS);
}

int lien_order_save(struct lien_control *control)
{
	uint64_t bytes = 0, bounce = control->flags & LIEN_WIRE_VERIFY ? LIEN_WIRE_ARENA_BOUNCE : 0;
	struct lien_item *item = NULL;
	struct lien_device *device = NULL;
	char why[sizeof(control->reply.text)];
	int result = 0, unseen, ended;

	while ((item = lien_items_next(&control->items, item)))
		if (to_be_saved(control, item)) {
			if (bytes <= LIEN_WIRE_BYTES_MAX) /* more is invalid, and would overflow */
				bytes += item->wire.allocation_bytes;
			result = result ? result
					: lien_device_use(
						  control, lien_item_device(&item->wire), &device);
		}
	if (result)
		lien_control_fail(control, result, 0, "no primary context to copy with");
	if (!result && bytes &&
		(result = lien_arena_reserve(&control->arena, control->driver,
			 lien_numa_node(control->driver, device->device), bytes + bounce)))
		lien_control_fail(control, result, 0, "no pinned host memory for the arena");
	if (result)
		goto out;
	while ((item = lien_items_next(&control->items, item))) {
		if (!to_be_saved(control, item))
			continue;
		item->arena = lien_arena_take(&control->arena, item->wire.allocation_bytes);
		result = copy(control, item, 1);
		if (result) {
			lien_control_fail(control, result, item->wire.va, "copy to the host");
			break;
		}
	}
	/* The driver will soon reuse handle values that the application still knows. */
	unseen = lien_cached_none_new(why, sizeof(why)); /* while the copies run */
	ended = devices_synchronize(control);
	if (ended && !result)
		result = lien_control_fail(control, ended, 0, "copy to the host");
	if (unseen && !result)
		result = lien_control_fail(control, unseen, 0, why);
	while (!result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_STAGED && lien_order_means(control, item))
			item->state = LIEN_ITEM_SAVED;
	if (!result) {
		if (bounce)
			lien_verify_keep(control);
		control->reply.arg = bytes;
		control->reply.arg2 = devices_free(control);
	}
out:
	lien_devices_close(control);
	return result;
}

/* Unmaps one place. Remembers a place that the driver fails to unmap. */
static CUresult unmap_place(struct lien_control *control, struct lien_item *item)
{
	const struct lien_driver *driver = control->driver;
	CUresult result = driver->cuMemUnmap(item->wire.va, item->wire.bytes);

	if (result)
		result = driver->cuMemUnmap(item->wire.va, item->wire.bytes);
	item->stuck = result != CUDA_SUCCESS;
	return result;
}

/* Maps places [from, to) of an allocation with their former access. On failure none of them is
 * mapped. */
static int map_places(struct lien_control *control, struct lien_item *item, unsigned from,
	unsigned to, CUmemGenericAllocationHandle handle)
{
	const struct lien_driver *driver = control->driver;
	CUmemAccessDesc places[LIEN_WIRE_PLACES];
	CUresult result = CUDA_SUCCESS;
	unsigned i, j;

	for (i = from; i < to; i++) {
		const struct lien_wire_item *wire = &item[i].wire;

		result = driver->cuMemMap(wire->va, wire->bytes, 0, handle, 0);
		if (result) {
			lien_control_fail(control, result, wire->va, "cuMemMap");
			break;
		}
		for (j = 0; j < wire->places; j++) {
			places[j].location.type = wire->place[j].location_type;
			places[j].location.id = wire->place[j].location_id;
			places[j].flags = wire->place[j].flags;
		}
		if (wire->places)
			result =
				driver->cuMemSetAccess(wire->va, wire->bytes, places, wire->places);
		if (result) {
			unmap_place(control, &item[i]);
			lien_control_fail(control, result, wire->va, "cuMemSetAccess");
			break;
		}
	}
	while (result && i-- > from)
		unmap_place(control, &item[i]);
	return result;
}

/* Unmaps all places of an allocation. On failure it maps them again; -EUCLEAN: that failed as well,
 * and none is usable. */
static int unmap_places(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle)
{
	unsigned i, failed;
	int result = 0;

	for (i = 0; i < item->wire.mappings && !result; i++)
		result = unmap_place(control, &item[i]);
	if (!result)
		return 0;
	failed = i - 1;
	lien_control_fail(control, result, item[failed].wire.va, "cuMemUnmap");
	if (!map_places(control, item, 0, failed, handle)) {
		item[failed].stuck = 0; /* it is in its place */
		return result;
	}
	for (i = failed + 1; i < item->wire.mappings; i++)
		unmap_place(control, &item[i]);
	return -EUCLEAN;
}

/* Unmaps one allocation and gives back every reference to it, ours and the application's. On
 * failure it is unchanged or, if its state says so, away. */
static int detach(struct lien_control *control, struct lien_item *item)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle handle = item->handle;
	unsigned i, references = item->wire.references + item->held;
	int result, released, borrowed = !references;

	/* Without any reference the handle would end with the last mapping. */
	if (borrowed) {
		result = lien_handle_retain(driver, &handle, item->wire.va);
		if (result)
			return lien_control_fail(
				control, result, item->wire.va, "not mapped here any more");
		references = 1;
	}
	result = lien_names_park(handle, item->wire.token, item->wire.references);
	if (result)
		lien_control_fail(control, result, item->wire.va,
			result == -EEXIST
				? "the application has it by a handle that means other memory"
				: "out of memory");
	else
		result = unmap_places(control, item, handle);
	if (result && result != -EUCLEAN) {
		lien_names_revive(item->wire.token, handle);
		if (borrowed)
			lien_handle_release(driver, handle);
		return result;
	}
	item->state = LIEN_ITEM_AWAY;
	item->held = 0;
	for (i = 0; i < references; i++) {
		released = lien_handle_release(driver, handle);
		if (released && !result)
			result =
				lien_control_fail(control, released, item->wire.va, "cuMemRelease");
	}
	return result;
}

int lien_order_detach(struct lien_control *control, uint32_t kind)
{
	struct lien_item *item = NULL;
	struct lien_device *device;
	int result = 0;

	while (!result && (item = lien_items_next(&control->items, item))) {
		if (!(item->wire.flags & kind) || item->state == LIEN_ITEM_AWAY ||
			!lien_order_means(control, item))
			continue;
		if (item->state != LIEN_ITEM_SAVED) {
			result = lien_control_fail(
				control, -EPROTO, item->wire.va, "not saved, so not dropped");
			break;
		}
		result = detach(control, item);
		if (result)
			continue;
		lien_device_use(control,
			kind == LIEN_WIRE_OWNED ? item->wire.location_id
						: context_device(&item->wire),
			&device);
		if (kind == LIEN_WIRE_OWNED)
			control->reply.arg += item->wire.allocation_bytes;
	}
	if (kind == LIEN_WIRE_OWNED)
		control->reply.arg2 = devices_free(control);
	lien_devices_close(control);
	return result;
}

/* Unmaps the places that the driver failed to unmap before. All of them must go: as long as one is
 * left, the old handle names the memory, and the agent would see two allocations. */
static CUresult unstick(struct lien_control *control, struct lien_item *item)
{
	CUresult result;
	unsigned i;

	for (i = 0; i < item->wire.mappings; i++)
		if (item[i].stuck && (result = unmap_place(control, &item[i])))
			return lien_control_fail(control, result, item[i].wire.va, "cuMemUnmap");
	return CUDA_SUCCESS;
}

/* Maps memory at the allocation's addresses again, and leaves the handle with the application's
 * number of references, plus ours if others import it; the caller passes one. On failure it is away
 * as before. */
static int attach(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle again;
	unsigned i, references = 1, wanted = item->wire.references + lien_item_shared(item);
	CUresult result;

	result = unstick(control, item);
	if (!result)
		result = map_places(control, item, 0, item->wire.mappings, handle);
	while (!result && references < wanted) {
		result = lien_handle_retain(driver, &again, item->wire.va);
		if (!result) {
			references++;
			continue;
		}
		lien_control_fail(control, result, item->wire.va, "cuMemRetainAllocationHandle");
		for (i = 0; i < item->wire.mappings; i++)
			unmap_place(control, &item[i]);
	}
	if (!result && !wanted)
		lien_handle_release(driver, handle);
	while (result && references--)
		lien_handle_release(driver, handle);
	if (result)
		return result;
	lien_names_revive(item->wire.token, handle);
	item->handle = handle;
	item->held = lien_item_shared(item);
	item->state = LIEN_ITEM_BACK;
	return 0;
}

static int clear(struct lien_control *control, struct lien_item *item)
{
	struct lien_device *device;
	int result = lien_device_use(control, lien_item_device(&item->wire), &device);

	if (result || !control->driver->cuMemsetD8Async)
		return result;
	return control->driver->cuMemsetD8Async(
		item->wire.va, 0, item->wire.allocation_bytes, device->stream);
}

static int fill(struct lien_control *control, struct lien_item *item)
{
	return item->wire.flags & LIEN_WIRE_WORTHLESS ? clear(control, item)
						      : copy(control, item, 0);
}

static int create_memory(struct lien_control *control, struct lien_item *item)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;
	int result;

	memset(&prop, 0, sizeof(prop));
	prop.type = item->wire.prop_type;
	prop.requestedHandleTypes = item->wire.handle_types;
	prop.location.type = item->wire.location_type;
	prop.location.id = item->wire.location_id;
	prop.allocFlags.compressionType = item->wire.compression;
	prop.allocFlags.gpuDirectRDMACapable = item->wire.rdma;
	prop.allocFlags.usage = item->wire.usage;
	result = control->driver->cuMemCreate(&handle, item->wire.allocation_bytes, &prop, 0);
	if (result)
		return lien_control_fail(control, result, item->wire.va, "cuMemCreate");
	result = attach(control, item, handle);
	if (!result)
		item->state = LIEN_ITEM_EMPTY;
	return result;
}

/* Waits for the copies. If one of them failed, none counts. */
static int fill_end(struct lien_control *control)
{
	int result = devices_synchronize(control);
	struct lien_item *item = NULL;

	while (result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_FILLING)
			item->state = LIEN_ITEM_EMPTY;
	return result;
}

/* An allocation that is mapped without its bytes needs only these. */
static int create(struct lien_control *control, struct lien_item *item)
{
	int result = lien_verify_host(control, item);

	if (!result && item->state == LIEN_ITEM_AWAY)
		result = create_memory(control, item);
	if (result)
		return result;
	result = fill(control, item);
	if (!result) {
		item->state = LIEN_ITEM_FILLING;
		return 0;
	}
	lien_control_fail(control, result, item->wire.va, "copy to the device");
	fill_end(control);
	detach(control, item); /* otherwise it stays empty */
	return result;
}

/* Retries, because the failure may be temporary: another job has just given memory back. */
static int create_again(struct lien_control *control, struct lien_item *item, int *waited)
{
	int reported = control->reply.text[0], result = create(control, item);

	if (!result || result == -EBADMSG) /* a retry would not help */
		return result;
	if (result == CUDA_ERROR_OUT_OF_MEMORY && !*waited) {
		usleep(CREATE_AGAIN_US);
		*waited = 1;
	}
	result = create(control, item);
	if (!result && !reported)
		lien_control_forgive(control);
	return result;
}

int lien_order_means(const struct lien_control *control, const struct lien_item *item)
{
	return lien_item_of(item, control->generation);
}

static int room_of(struct lien_control *control, int ordinal, struct lien_wire_room *room)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	size_t free_bytes, total;
	CUuuid uuid;

	memset(room, 0, sizeof(*room));
	if (lien_device_use(control, ordinal, &device) ||
		driver->cuMemGetInfo_v2(&free_bytes, &total))
		return -ENODEV;
	room->device = ordinal;
	room->free_bytes = free_bytes;
	if (driver->cuDeviceGetUuid_v2 && !driver->cuDeviceGetUuid_v2(&uuid, device->device))
		memcpy(room->uuid, uuid.bytes, sizeof(room->uuid));
	return 0;
}

unsigned lien_order_room(struct lien_control *control, struct lien_wire_room *rooms)
{
	uint64_t needed[LIEN_DEVICES_MAX] = {0};
	struct lien_item *item = NULL;
	unsigned i, n = 0;

	while ((item = lien_items_next(&control->items, item)))
		if (item->wire.flags & LIEN_WIRE_OWNED && item->state == LIEN_ITEM_AWAY &&
			lien_order_means(control, item) && item->wire.location_id >= 0 &&
			item->wire.location_id < LIEN_DEVICES_MAX)
			needed[item->wire.location_id] += item->wire.allocation_bytes;
	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (needed[i] && !room_of(control, i, &rooms[n]))
			rooms[n++].needed = needed[i];
	return n;
}

int lien_order_create(struct lien_control *control)
{
	struct lien_item *item = NULL;
	int result, first = 0, waited = 0;
	uint64_t bytes = 0;

	while ((item = lien_items_next(&control->items, item)))
		if (item->wire.flags & LIEN_WIRE_OWNED && lien_item_in(item, LIEN_ITEMS_MISSING) &&
			lien_order_means(control, item)) {
			result = create_again(control, item, &waited);
			/* A failed one does not stop the others. */
			first = first ? first : result;
			bytes += result ? 0 : item->wire.allocation_bytes;
		}
	if (!first)
		control->reply.arg = bytes; /* otherwise it says where */
	return first;
}

/* Exports by our handle: the application may have other memory at the address by now. */
static int export_once(struct lien_control *control, struct lien_item *item, int *fd)
{
	CUresult result;

	if (!item->held)
		return lien_control_fail(
			control, -ENOENT, item->wire.va, "not there to be exported");
	result = control->driver->cuMemExportToShareableHandle(
		fd, item->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result)
		return lien_control_fail(
			control, result, item->wire.va, "cuMemExportToShareableHandle");
	return 0;
}

int lien_order_export(struct lien_control *control, struct lien_item *item, int *fd)
{
	int reported = control->reply.text[0], result = export_once(control, item, fd);

	if (!result)
		return 0;
	result = export_once(control, item, fd);
	if (!result && !reported)
		lien_control_forgive(control);
	return result;
}

static int import_once(struct lien_control *control, struct lien_item *item, int fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult result;

	result = control->driver->cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result)
		return lien_control_fail(
			control, result, item->wire.va, "cuMemImportFromShareableHandle");
	return attach(control, item, handle);
}

int lien_order_import(struct lien_control *control, uint64_t token, int fd)
{
	struct lien_item *item = lien_items_find(&control->items, token);
	int reported = control->reply.text[0], result;

	if (item && !(item->wire.flags & LIEN_WIRE_IMPORTED))
		return lien_control_fail(control, -ENOENT, token, "not an import here");
	if (!item || item->state != LIEN_ITEM_AWAY)
		return 0; /* it was released before it was unmapped */
	result = import_once(control, item, fd);
	if (!result)
		return 0;
	result = import_once(control, item, fd);
	if (!result && !reported)
		lien_control_forgive(control);
	return result;
}

void lien_order_forget(struct lien_control *control, unsigned states, uint64_t generation)
{
	struct lien_item *item = NULL;
	uint64_t end;

	while ((item = lien_items_next(&control->items, item)))
		if (item->held && lien_item_in(item, states) && lien_item_of(item, generation)) {
			lien_handle_release(control->driver, item->handle);
			item->held = 0;
		}
	lien_items_forget(&control->items, states, generation);
	control->arena.used = 0;
	while ((item = lien_items_next(&control->items, item))) {
		end = item->arena + item->wire.allocation_bytes;
		if (item->wire.flags & LIEN_WIRE_OWNED && lien_item_in(item, IN_ARENA) &&
			!(item->wire.flags & LIEN_WIRE_WORTHLESS) && end > control->arena.used)
			control->arena.used = end;
	}
}

void lien_order_lend(struct lien_control *control, unsigned states, uint64_t generation)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(&control->items, item)))
		if (item->held && lien_item_in(item, states) && lien_item_of(item, generation))
			item->state = LIEN_ITEM_LENT;
}

void lien_order_give_up(
	struct lien_control *control, const struct lien_wire_share *shares, unsigned count)
{
	struct lien_item *item;
	unsigned i;

	for (i = 0; i < count; i++) {
		item = lien_items_find(&control->items, shares[i].token);
		if (!item || !(item->wire.flags & LIEN_WIRE_IMPORTED) ||
			item->state != LIEN_ITEM_AWAY)
			continue;
		item->state = LIEN_ITEM_LOST;
		control->reply.arg2 += item->wire.mappings;
	}
	lien_order_forget(control, 1 << LIEN_ITEM_LOST, 0);
}

/* Repeats the copies that failed. */
static int fill_again(struct lien_control *control)
{
	struct lien_item *item = NULL;
	int result = 0, ended;

	while (!result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_EMPTY && lien_order_means(control, item) &&
			!(result = fill(control, item)))
			item->state = LIEN_ITEM_FILLING;
	ended = fill_end(control);
	return result ? result : ended;
}

/* Returns 0, or why the copies did not complete; *differs: the data differs from the saved one. */
static int wait_for_copies(struct lien_control *control, int *differs)
{
	int result = fill_end(control);

	if (result)
		result = fill_again(control);
	if (result)
		lien_control_fail(control, result, 0, "copies to the device did not complete");
	*differs = lien_verify_device(control); /* marks filled items as back */
	return result;
}

int lien_order_filled(struct lien_control *control)
{
	int differs, result = wait_for_copies(control, &differs);

	lien_devices_close(control);
	return result ? result : differs;
}

int lien_order_finish(struct lien_control *control, uint32_t flags)
{
	unsigned kept = LIEN_ITEMS_MISSING;
	struct lien_item *item = NULL;
	int differs, result = wait_for_copies(control, &differs);

	lien_devices_close(control);
	if (result)
		return result;
	if (flags & LIEN_WIRE_KEEP) {
		lien_order_lend(
			control, 1 << LIEN_ITEM_SAVED | 1 << LIEN_ITEM_BACK, control->generation);
		kept |= 1 << LIEN_ITEM_LENT;
	}
	lien_order_forget(control, ~kept, control->generation);
	if (differs)
		return differs;
	while ((item = lien_items_next(&control->items, item)))
		if (lien_item_in(item, LIEN_ITEMS_MISSING) && lien_order_means(control, item))
			return lien_control_fail(
				control, -EBUSY, item->wire.va, "not all memory is back");
	return 0;
}
