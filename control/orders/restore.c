// SPDX-License-Identifier: BSD-2-Clause
/* The way back: CREATE, EXPORT and IMPORT, FINISH; and the room that the devices have for it. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/driver/gate.h"
#include "control/memory/handles.h"
#include "control/orders/control.h"

/* --- copies, which run until copies_end() ----------------------------------------------------- */

/* Begins to give mapped memory its bytes. */
static int copy_fill(struct lien_control *control, struct lien_item *item)
{
	struct lien_device *device;
	int result;

	if (!(item->wire.flags & LIEN_WIRE_WORTHLESS))
		return lien_copy_begin(control, item, 0);
	result = lien_device_use(control, lien_item_device(&item->wire), &device);
	if (result || !control->driver->cuMemsetD8Async)
		return result;
	return control->driver->cuMemsetD8Async(
		item->wire.va, 0, item->wire.allocation_bytes, device->stream);
}

/* Waits for the copies. If one of them failed, none counts. */
static int copies_end(struct lien_control *control)
{
	int result = lien_devices_synchronize(control);
	struct lien_item *item = NULL;

	while (result && (item = lien_items_next(&control->items, item)))
		if (item->state == LIEN_ITEM_FILLING)
			item->state = LIEN_ITEM_EMPTY;
	return result;
}

/* --- the room that restored memory needs ------------------------------------------------------ */

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

/* Fills in the memory that the devices need for offloaded items, and have. Returns their number. */
static unsigned rooms_of(
	struct lien_control *control, struct lien_wire_room rooms[LIEN_DEVICES_MAX])
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

void lien_order_room(struct lien_control *control)
{
	struct lien_wire_room rooms[LIEN_DEVICES_MAX];
	const unsigned n = rooms_of(control, rooms);

	control->reply.flags = LIEN_WIRE_ROOM;
	if (n)
		lien_control_reply(control, rooms, n * sizeof(rooms[0]), NULL, 0);
	control->reply.flags = 0;
}

/* What a retry returned, after the first attempt has recorded a failure; `reported`: there was one
 * before. */
static int forgive(struct lien_control *control, int reported, int result)
{
	if (!result && !reported) {
		control->reply.text[0] = '\0';
		control->reply.arg = 0;
	}
	return result;
}

/* --- CREATE: makes memory again, and begins to copy it back ----------------------------------- */

/* Grace period, granted once, for another job to give memory back. */
#define CREATE_AGAIN_US 50000

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
	result = lien_item_map(control, item, handle);
	if (!result)
		item->state = LIEN_ITEM_EMPTY;
	return result;
}

/* An allocation that is mapped without its bytes needs only these. */
static int create_item(struct lien_control *control, struct lien_item *item)
{
	int result = lien_verify_host(control, item);

	if (!result && item->state == LIEN_ITEM_AWAY)
		result = create_memory(control, item);
	if (result)
		return result;
	result = copy_fill(control, item);
	if (!result) {
		item->state = LIEN_ITEM_FILLING;
		return 0;
	}
	lien_control_fail(control, result, item->wire.va, "copy to the device");
	copies_end(control);
	lien_item_unmap(control, item); /* otherwise it stays empty */
	return result;
}

/* Retries, because the failure may be temporary: another job has just given memory back. */
static int create_again(struct lien_control *control, struct lien_item *item, int *waited)
{
	int reported = control->reply.text[0], result = create_item(control, item);

	if (!result || result == -EBADMSG) /* a retry would not help */
		return result;
	if (result == CUDA_ERROR_OUT_OF_MEMORY && !*waited) {
		usleep(CREATE_AGAIN_US);
		*waited = 1;
	}
	return forgive(control, reported, create_item(control, item));
}

int lien_order_create(struct lien_control *control)
{
	struct lien_item *item = NULL;
	int result, first = 0, waited = 0;
	uint64_t bytes = 0;

	lien_order_hold(control, 1);
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
	if (first == CUDA_ERROR_OUT_OF_MEMORY && control->flags & LIEN_WIRE_ROOM)
		lien_order_room(control);
	return first;
}

/* --- EXPORT, IMPORT: memory that processes share ---------------------------------------------- */

/* Memory that has only fabric handles is exported by a descriptor of a file with such a handle. */
static int by_fabric(const struct lien_item *item)
{
	return item->wire.handle_types & CU_MEM_HANDLE_TYPE_FABRIC &&
	       !(item->wire.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static int key_to_file(const CUmemFabricHandle *key, int *fd)
{
	*fd = memfd_create("lien-fabric", MFD_CLOEXEC);
	if (*fd < 0)
		return -errno;
	if (pwrite(*fd, key, sizeof(*key), 0) == sizeof(*key))
		return 0;
	close(*fd);
	return -EIO;
}

static int export_key(struct lien_control *control, struct lien_item *item, int *fd)
{
	CUmemFabricHandle key;
	int result = control->driver->cuMemExportToShareableHandle(
		&key, item->handle, CU_MEM_HANDLE_TYPE_FABRIC, 0);

	return result ? result : key_to_file(&key, fd);
}

static int import_key(struct lien_control *control, CUmemGenericAllocationHandle *handle, int fd)
{
	CUmemFabricHandle key;

	if (pread(fd, &key, sizeof(key), 0) != sizeof(key))
		return -EIO;
	return control->driver->cuMemImportFromShareableHandle(
		handle, &key, CU_MEM_HANDLE_TYPE_FABRIC);
}

/* Exports by our handle: the application may have other memory at the address by now. */
static int export_once(struct lien_control *control, struct lien_item *item, int *fd)
{
	int result;

	if (!item->held)
		return lien_control_fail(
			control, -ENOENT, item->wire.va, "not there to be exported");
	result = by_fabric(item)
			 ? export_key(control, item, fd)
			 : (int)control->driver->cuMemExportToShareableHandle(
				   fd, item->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result)
		return lien_control_fail(
			control, result, item->wire.va, "cuMemExportToShareableHandle");
	return 0;
}

/* Retries once; then a failure is recorded. */
static int export_item(struct lien_control *control, struct lien_item *item, int *fd)
{
	int reported = control->reply.text[0], result = export_once(control, item, fd);

	return result ? forgive(control, reported, export_once(control, item, fd)) : 0;
}

/* One that cannot be exported does not stop the others. */
int lien_order_export(struct lien_control *control)
{
	struct lien_wire_share shares[LIEN_WIRE_FDS_MAX];
	int fds[LIEN_WIRE_FDS_MAX], result = 0, failed, first = 0;
	struct lien_item *item = NULL;
	unsigned n = 0;

	do {
		item = lien_items_next(&control->items, item);
		if (item && lien_item_shared(item) && !lien_item_in(item, LIEN_ITEMS_MISSING) &&
			lien_order_means(control, item)) {
			failed = export_item(control, item, &fds[n]);
			if (!failed)
				shares[n++].token = item->wire.token;
			first = first ? first : failed;
		}
		if (n == LIEN_WIRE_FDS_MAX || (!item && n)) {
			result = lien_control_reply(control, shares, n * sizeof(shares[0]), fds, n);
			if (result)
				lien_control_fail(control, result, 0,
					"exports could not be sent to the agent");
			while (n)
				close(fds[--n]);
		}
	} while (item && !result);
	while (n)
		close(fds[--n]);
	return first ? first : result;
}

static int import_once(struct lien_control *control, struct lien_item *item, int fd)
{
	CUmemGenericAllocationHandle handle;
	int result;

	result = by_fabric(item)
			 ? import_key(control, &handle, fd)
			 : (int)control->driver->cuMemImportFromShareableHandle(&handle,
				   (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result)
		return lien_control_fail(
			control, result, item->wire.va, "cuMemImportFromShareableHandle");
	return lien_item_map(control, item, handle);
}

/* Maps an import again, if it is away. */
static int import_item(struct lien_control *control, uint64_t token, int fd)
{
	struct lien_item *item = lien_items_find(&control->items, token);
	int reported = control->reply.text[0], result;

	if (item && !(item->wire.flags & LIEN_WIRE_IMPORTED))
		return lien_control_fail(control, -ENOENT, token, "not an import here");
	if (!item || item->state != LIEN_ITEM_AWAY)
		return 0; /* it was released before it was unmapped */
	result = import_once(control, item, fd);
	return result ? forgive(control, reported, import_once(control, item, fd)) : 0;
}

int lien_order_import(struct lien_control *control)
{
	const struct lien_order *order = control->order;
	const struct lien_wire_share *shares;
	int result, first = 0;
	unsigned count, i;

	shares = lien_control_body(control, sizeof(*shares), &count);
	if (order->cut)
		return lien_control_fail(control, -EMFILE, 0,
			"it has too few free file descriptors: raise their number (prlimit "
			"--nofile)");
	if (count != order->fds_count)
		return lien_control_fail(
			control, -EPROTO, 0, "shares and descriptors do not match");
	for (i = 0; i < count; i++) {
		result = import_item(control, shares[i].token, order->fds[i]);
		first = first ? first : result;
	}
	return first;
}

/* --- FINISH ----------------------------------------------------------------------------------- */

/* Marks imports that will never come back: those of them that are away are forgotten. */
static void give_up(struct lien_control *control)
{
	const struct lien_wire_share *shares;
	struct lien_item *item;
	unsigned count, i;

	shares = lien_control_body(control, sizeof(*shares), &count);
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
			!(result = copy_fill(control, item)))
			item->state = LIEN_ITEM_FILLING;
	ended = copies_end(control);
	return result ? result : ended;
}

/* Returns 0, or why the copies did not complete; *differs: the data differs from the saved one. */
static int wait_for_copies(struct lien_control *control, int *differs)
{
	int result = copies_end(control);

	if (result)
		result = fill_again(control);
	if (result)
		lien_control_fail(control, result, 0, "copies to the device did not complete");
	*differs = lien_verify_device(control); /* marks filled items as back */
	return result;
}

/* What was not chosen stays as it is. */
static void spare(struct lien_control *control, int on)
{
	struct lien_item *item = NULL;

	while ((item = lien_items_next(&control->items, item)))
		item->spared = on && !lien_order_chooses(control, item);
}

/* With all copies done, ends what was kept for the restore. */
static int finish(struct lien_control *control)
{
	unsigned kept = LIEN_ITEMS_MISSING;
	struct lien_item *item = NULL;

	spare(control, 1);
	if (control->flags & LIEN_WIRE_KEEP) {
		lien_order_lend(
			control, 1 << LIEN_ITEM_SAVED | 1 << LIEN_ITEM_BACK, control->generation);
		kept |= 1 << LIEN_ITEM_LENT;
	}
	lien_order_forget(control, ~kept, control->generation);
	spare(control, 0);
	while ((item = lien_items_next(&control->items, item)))
		if (lien_item_in(item, LIEN_ITEMS_MISSING) && lien_order_means(control, item))
			return lien_control_fail(
				control, -EBUSY, item->wire.va, "not all memory is back");
	return 0;
}

int lien_order_finish(struct lien_control *control)
{
	const int filled = control->flags & LIEN_WIRE_FILLED;
	int differs, result, left;

	if (!filled)
		give_up(control);
	if (!filled && !(control->flags & LIEN_WIRE_LAST))
		return 0;
	result = wait_for_copies(control, &differs);
	lien_devices_close(control);
	if (filled)
		return result ? result : differs;
	if (!result) {
		left = finish(control);
		result = differs ? differs : left;
	}
	lien_order_hold(control, 0);
	if (!result)
		lien_watchdog_back();
	return result;
}
