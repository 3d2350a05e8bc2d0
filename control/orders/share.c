// SPDX-License-Identifier: BSD-2-Clause
/* EXPORT and IMPORT: memory that processes share. */
#include <errno.h>

#include "control/orders/order.h"

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
