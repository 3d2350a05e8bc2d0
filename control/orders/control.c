// SPDX-License-Identifier: BSD-2-Clause
/* What orders have in common: their bodies and replies, which memory they mean, and the primary
 * contexts and streams of the devices that they work on. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include "control/orders/control.h"
#include "control/plain/plain.h"

/* An agent that does not read for this long is gone; its successor asks again. */
#define SEND_LIMIT_MS 30000

uint64_t lien_control_inode(int fd)
{
	struct stat st;

	return syscall(SYS_fstat, fd, &st) ? 0 : st.st_ino;
}

void *lien_control_body(struct lien_control *control, size_t size, unsigned *count)
{
	*count = control->order->body / size;
	return control->order->bytes + sizeof(control->order->header);
}

int lien_control_reply(struct lien_control *control, const void *body, size_t size, const int *fds,
	unsigned fds_count)
{
	struct lien_wire_header head = control->reply;
	struct iovec parts[2] = {{&head, sizeof(head)}, {(void *)body, size}};
	struct pollfd ready = {.fd = control->fd, .events = POLLOUT};
	int err, waited_ms = 0;

	head.length = sizeof(head) + size;
	while ((err = lien_pass_send(control->fd, parts, size ? 2 : 1, fds, fds_count))) {
		if (err == -ETOOMANYREFS && waited_ms < SEND_LIMIT_MS) {
			waited_ms += 10; /* the agent is reading them */
			usleep(10000);
		} else if (err != -EAGAIN || poll(&ready, 1, SEND_LIMIT_MS) <= 0) {
			break;
		}
	}
	return err;
}

int lien_control_flush(struct lien_control *control)
{
	const size_t size = control->rows.size;

	control->rows.size = 0;
	return size ? lien_control_reply(control, control->rows.bytes, size, NULL, 0) : 0;
}

int lien_control_add(struct lien_control *control, const void *row, size_t size)
{
	int err = control->rows.size + size > sizeof(control->rows.bytes)
			  ? lien_control_flush(control)
			  : 0;

	memcpy(control->rows.bytes + control->rows.size, row, size);
	control->rows.size += size;
	return err;
}

int lien_control_fail(struct lien_control *control, int result, uint64_t where, const char *what)
{
	struct lien_wire_header *reply = &control->reply;
	char error[64] = "";
	size_t length;

	if (reply->text[0])
		return result; /* report the first failure */
	if (result > 0)
		lien_driver_error(control->driver, result, error, sizeof(error));
	reply->arg = where;
	strncpy(reply->text, what, sizeof(reply->text) - 1);
	length = strlen(reply->text);
	if (error[0] && length + 2 + strlen(error) < sizeof(reply->text)) {
		strcpy(reply->text + length, ": ");
		strcpy(reply->text + length + 2, error);
	}
	return result;
}

int lien_control_expired(struct lien_control *control)
{
	return lien_control_fail(
		control, -ESTALE, 0, "the agent was silent for too long, and the job runs on");
}

static int is_one_of(uint64_t value, const uint64_t *list, unsigned count)
{
	unsigned i;

	for (i = 0; i < count; i++)
		if (value && value == list[i])
			return 1;
	return !count;
}

int lien_order_chooses(const struct lien_control *control, const struct lien_item *item)
{
	const uint64_t *groups = control->chosen, *tags = groups + control->groups_count;

	/* What objects join comes back together. */
	if (!(control->flags & LIEN_WIRE_CHOSEN) || item->wire.team)
		return 1;
	return is_one_of(item->wire.group, groups, control->groups_count) &&
	       is_one_of(item->wire.tag, tags, control->tags_count);
}

int lien_order_means(const struct lien_control *control, const struct lien_item *item)
{
	return lien_item_of(item, control->generation) && lien_order_chooses(control, item);
}

static void context_release(const struct lien_driver *driver, struct lien_device *device)
{
	lien_plain_primary_release(driver, device->device);
	device->held = 0;
}

CUresult lien_context_retain(
	const struct lien_driver *driver, int ordinal, CUdevice *device, CUcontext *context)
{
	unsigned int flags;
	CUresult result;
	int active;

	if ((result = driver->cuDeviceGet(device, ordinal)) ||
		(result = driver->cuDevicePrimaryCtxGetState(*device, &flags, &active)))
		return result;
	return active ? driver->cuDevicePrimaryCtxRetain(context, *device) : (CUresult)-ENODEV;
}

/* Most orders work on thousands of items of one device. NULL: none. */
static CUresult make_current(struct lien_control *control, CUcontext context)
{
	CUresult result;

	if (context && control->current == context)
		return CUDA_SUCCESS;
	result = control->driver->cuCtxSetCurrent(context);
	control->current = result ? NULL : context;
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
		return make_current(control, device->context);
	if (!device->held &&
		(result = lien_context_retain(driver, ordinal, &device->device, &device->context)))
		return result;
	device->held = 1;
	if ((result = make_current(control, device->context)) ||
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
			make_current(control, device->context);
			if (driver->cuStreamDestroy_v2(device->stream))
				driver->cuStreamDestroy_v2(device->stream);
			make_current(control, NULL);
			device->open = 0;
		}
		if (device->held && !away)
			context_release(driver, device);
	}
}

int lien_device_near(struct lien_control *control, int ordinal)
{
	struct lien_device *device;
	int i;

	if (!lien_device_use(control, ordinal, &device))
		return ordinal;
	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (!lien_device_use(control, i, &device))
			return i;
	return -1;
}

int lien_devices_synchronize(struct lien_control *control)
{
	CUresult result, first = CUDA_SUCCESS;
	unsigned i;

	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (control->devices[i].open) {
			make_current(control, control->devices[i].context);
			result = control->driver->cuStreamSynchronize(control->devices[i].stream);
			if (!first)
				first = result;
		}
	return first;
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
