// SPDX-License-Identifier: BSD-2-Clause
/* EXPORT and IMPORT: memory that processes share. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/orders/order.h"

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
