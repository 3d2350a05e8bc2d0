// SPDX-License-Identifier: BSD-2-Clause
/* Grows the host arena ahead of its use, and gives it back when it is no longer needed. */
#include <errno.h>

#include "control/orders/control.h"

int lien_order_prepare(struct lien_control *control, uint64_t bytes, uint64_t ordinal)
{
	struct lien_device *device;
	int result;

	if (bytes > LIEN_WIRE_BYTES_MAX || ordinal >= LIEN_DEVICES_MAX)
		return lien_control_fail(control, -EINVAL, 0, "no such size or device");
	if (bytes <= control->arena.bytes)
		return 0;
	result = lien_device_use(control, ordinal, &device);
	if (result)
		lien_control_fail(control, result, 0, "no primary context to pin memory in");
	else if ((result = lien_arena_grow(&control->arena, control->driver, device->device,
			  bytes - control->arena.bytes)))
		lien_control_fail(control, result, 0, "no pinned host memory for the arena");
	lien_devices_close(control);
	return result;
}

int lien_order_release(struct lien_control *control)
{
	uint64_t before = control->arena.bytes;
	int result = before ? -ENODEV : 0, i;
	struct lien_device *device;

	/* Any context will do: the memory is registered for all of them. */
	for (i = 0; result && i < LIEN_DEVICES_MAX; i++)
		result = lien_device_use(control, i, &device);
	if (result)
		return lien_control_fail(
			control, result, 0, "no device has a primary context to unpin it in");
	result = lien_arena_release(&control->arena, control->driver);
	lien_devices_close(control);
	if (result)
		return lien_control_fail(control, result, 0, "cuMemHostUnregister");
	control->reply.arg = before - control->arena.bytes;
	return 0;
}
