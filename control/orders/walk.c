// SPDX-License-Identifier: BSD-2-Clause
/*
 * Lists what is mapped in this process, according to the driver. Most of the address space is holes
 * (NCCL and PyTorch reserve hundreds of gigabytes that they never map), so two untraced calls
 * detect a hole; the handle of a mapping takes two traced ones. The application continues
 * meanwhile: memory that vanishes between two calls is omitted, and the agent asks again about
 * anything inconsistent.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <lien/clock.h>

#include "control/orders/control.h"
#include "control/memory/handles.h"
#include "control/plain/plain.h"

#define CLOCK_EVERY 64	/* steps */
#define PLAIN_STEP  512 /* cuMemAlloc's smallest alignment */

struct walk {
	struct lien_control *control;
	const struct lien_driver *driver;
	int devices;
	struct {
		CUdevice device;
		CUcontext context;
	} context[LIEN_DEVICES_MAX]; /* the primary contexts that the application has made */
	unsigned contexts, current;
	int empty; /* the driver is not initialised: there is no memory */
	uint64_t until_ns;
	unsigned steps;
};

static void contexts_close(struct walk *walk)
{
	walk->driver->cuCtxSetCurrent(NULL);
	while (walk->contexts)
		lien_plain_primary_release(walk->driver, walk->context[--walk->contexts].device);
}

static int contexts_open(struct walk *walk)
{
	const struct lien_driver *driver = walk->driver;
	unsigned n;
	int i, result = driver->cuDeviceGetCount(&walk->devices);

	if (result == CUDA_ERROR_NOT_INITIALIZED) {
		walk->empty = 1; /* libcuda is loaded but unused */
		return 0;
	}
	if (result)
		return lien_control_fail(walk->control, result, 0, "cuDeviceGetCount");
	for (i = 0; i < walk->devices && i < LIEN_DEVICES_MAX; i++) {
		n = walk->contexts;
		walk->contexts += !lien_context_retain(
			driver, i, &walk->context[n].device, &walk->context[n].context);
	}
	if (!walk->contexts)
		return 0;
	result = driver->cuCtxSetCurrent(walk->context[0].context);
	if (result)
		contexts_close(walk);
	return result ? lien_control_fail(walk->control, result, 0, "cuCtxSetCurrent") : 0;
}

/* Tries the current context, then all others. */
static int range_of(struct walk *walk, uint64_t va, int certain, CUdeviceptr *base, size_t *bytes)
{
	unsigned tries;

	for (tries = 0; tries < walk->contexts; tries++) {
		if (!walk->driver->cuMemGetAddressRange_v2(base, bytes, va))
			return 1;
		if (!certain)
			return 0;
		walk->current = (walk->current + 1) % walk->contexts;
		walk->driver->cuCtxSetCurrent(walk->context[walk->current].context);
	}
	return 0;
}

static void take_properties(struct lien_wire_found *found, const CUmemAllocationProp *prop)
{
	found->prop_type = prop->type;
	found->handle_types = prop->requestedHandleTypes;
	found->location_type = prop->location.type;
	found->location_id = prop->location.id;
	found->compression = prop->allocFlags.compressionType;
	found->rdma = prop->allocFlags.gpuDirectRDMACapable;
	found->usage = prop->allocFlags.usage;
}

/* Returns 0 if it vanished. */
static int take_access(struct walk *walk, struct lien_wire_found *found)
{
	CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	unsigned long long flags;

	for (; location.id < walk->devices; location.id++) {
		if (walk->driver->cuMemGetAccess(&flags, &location, found->va))
			return 0;
		if (!flags || found->places == LIEN_WIRE_PLACES)
			continue;
		found->place[found->places].location_type = location.type;
		found->place[found->places].location_id = location.id;
		found->place[found->places++].flags = flags;
	}
	return 1;
}

/* Returns the type of handle that it can be exported by. The driver (580) reports that for memory
 * alone; an object that nobody else can have is told apart by refusing. */
static uint32_t exportable(const struct lien_driver *driver, CUmemGenericAllocationHandle handle)
{
	int fd;

	if (driver->cuMemExportToShareableHandle(
		    &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		return 0;
	close(fd);
	return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/* Gives back at once, in every case, the reference that comes with asking for the handle. */
static int take_mapping(struct walk *walk, const struct lien_wire_range *range, uint64_t va,
	uint64_t bytes, int *plain)
{
	const struct lien_driver *driver = walk->driver;
	struct lien_wire_found found = {.kind = range->kind, .va = va, .bytes = bytes};
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;
	CUresult result;

	memset(&prop, 0, sizeof(prop));
	if (driver->cuMemRetainAllocationHandle(&handle, (void *)va)) {
		*plain = 1; /* it vanished, or has no handle: memory of cuMemAlloc, or the host's */
		return 0;
	}
	result = driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
	if (result)
		found.handle_types = exportable(driver, handle);
	lien_handle_release(driver, handle);
	found.handle = handle;
	if (!result) { /* else a multicast object, or a kind from a later driver */
		take_properties(&found, &prop);
		if (!take_access(walk, &found))
			return 0;
	}
	return lien_control_add(walk->control, &found, sizeof(found));
}

/* Without a context the driver does not report a mapping's size, only whether there is one. */
static int step_blindly(struct walk *walk, uint64_t *va)
{
	CUmemGenericAllocationHandle handle;
	int result = walk->driver->cuMemRetainAllocationHandle(&handle, (void *)*va);

	if (!result)
		lien_handle_release(walk->driver, handle);
	if (result != CUDA_ERROR_INVALID_VALUE)
		return lien_control_fail(
			walk->control, -ENODEV, *va, "no device has a primary context");
	*va += LIEN_WIRE_STEP;
	return 0;
}

/* Takes memory without a handle if cuMemAlloc made it here: IPC imports, pools and managed memory
 * cannot be exported by legacy IPC. */
static int take_plain(struct walk *walk, uint64_t va, uint64_t bytes)
{
	struct lien_wire_found found = {.kind = LIEN_WIRE_PLAIN,
		.va = va,
		.bytes = bytes,
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE};
	int ours = 0, device;

	if (lien_plain_wait_keeps(va) ||
		walk->driver->cuPointerGetAttribute(
			&ours, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, va) ||
		!ours ||
		walk->driver->cuPointerGetAttribute(
			&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, va))
		return 0;
	found.location_id = device;
	return lien_control_add(walk->control, &found, sizeof(found));
}

/* Small allocations share the driver's mappings. */
static uint64_t next_step(const struct walk *walk, uint64_t va)
{
	return walk->control->flags & LIEN_WIRE_ALL && va % LIEN_WIRE_STEP ? va + PLAIN_STEP
									   : va + LIEN_WIRE_STEP;
}

/* Takes one step in an area and advances *va. */
static int step(struct walk *walk, const struct lien_wire_range *range, uint64_t *va)
{
	const CUmemLocation any = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	unsigned long long flags;
	uint64_t end;
	CUdeviceptr base;
	size_t bytes;
	int mapped, result, plain = 0;

	mapped = !walk->driver->cuMemGetAccess(&flags, &any, *va);
	if (!range_of(walk, *va, mapped, &base, &bytes)) {
		*va = next_step(walk, *va);
		return 0;
	}
	end = base + bytes;
	if (end <= *va) { /* its reported end cannot be trusted */
		*va = next_step(walk, *va);
		return 0;
	}
	result = take_mapping(walk, range, base, bytes, &plain);
	if (!result && plain && walk->control->flags & LIEN_WIRE_ALL) {
		result = take_plain(walk, base, bytes);
		*va = (end + PLAIN_STEP - 1) & ~(uint64_t)(PLAIN_STEP - 1);
		return result;
	}
	*va = (end + LIEN_WIRE_STEP - 1) & ~(LIEN_WIRE_STEP - 1);
	return result;
}

/* Returns 1: time is up, at *va. */
static int walk_area(struct walk *walk, const struct lien_wire_range *range, uint64_t *va)
{
	uint64_t end = range->va + range->bytes;
	int result;

	*va = (range->va + LIEN_WIRE_STEP - 1) & ~(LIEN_WIRE_STEP - 1);
	if (walk->empty)
		*va = end;
	while (*va < end) {
		result = walk->contexts ? step(walk, range, va) : step_blindly(walk, va);
		if (result)
			return result;
		if (++walk->steps % CLOCK_EVERY == 0 && *va < end &&
			lien_clock_ns() > walk->until_ns)
			return 1;
	}
	return 0;
}

static int look_at_plain(struct walk *walk, const struct lien_wire_range *range)
{
	struct lien_wire_found found = {.kind = range->kind, .va = range->va};
	CUdeviceptr base;
	size_t bytes;
	int device;

	if (range_of(walk, range->va, 1, &base, &bytes) && base == range->va &&
		!walk->driver->cuPointerGetAttribute(
			&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range->va)) {
		found.bytes = bytes;
		found.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
		found.location_id = device;
	}
	return lien_control_add(walk->control, &found, sizeof(found));
}

static int walk_ranges(
	struct walk *walk, const struct lien_wire_range *ranges, unsigned count, unsigned *done)
{
	struct lien_wire_header *reply = &walk->control->reply;
	uint64_t va;
	int result = 0;

	for (; *done < count && !result; (*done)++) {
		if (ranges[*done].va > LIEN_WIRE_BYTES_MAX ||
			ranges[*done].bytes > LIEN_WIRE_BYTES_MAX) {
			result = -EPROTO; /* its end would overflow */
		} else if (ranges[*done].kind == LIEN_WIRE_AREA) {
			result = walk_area(walk, &ranges[*done], &va);
			if (result == 1) {
				reply->arg = va;
				return 0;
			}
		} else if (ranges[*done].kind == LIEN_WIRE_PLAIN) {
			result = look_at_plain(walk, &ranges[*done]);
			walk->steps++;
		} else {
			result = -EPROTO;
		}
		if (!result && lien_clock_ns() > walk->until_ns) {
			reply->arg = *done + 1 < count ? ranges[*done + 1].va : 0;
			++*done;
			return 0;
		}
	}
	return result;
}

int lien_order_walk(struct lien_control *control)
{
	struct walk walk = {.control = control, .driver = control->driver};
	uint64_t limit_us = control->order->header.arg;
	const struct lien_wire_range *ranges;
	unsigned count, done = 0;
	int result;

	ranges = lien_control_body(control, sizeof(*ranges), &count);
	if (limit_us > LIEN_WIRE_WALK_US_MAX)
		limit_us = LIEN_WIRE_WALK_US_MAX;
	walk.until_ns = lien_clock_ns() + limit_us * 1000;
	result = contexts_open(&walk);
	if (result)
		return result;
	result = walk_ranges(&walk, ranges, count, &done);
	contexts_close(&walk);
	control->reply.arg2 = done;
	if (!result)
		result = lien_control_flush(control);
	return result ? lien_control_fail(control, result, 0, "the walk was not possible") : 0;
}
