// SPDX-License-Identifier: BSD-2-Clause
/*
 * Determines facts about memory older than the agent that the driver does not report. Threads that
 * could use the memory are held meanwhile.
 *
 * References: they are released until the driver refuses, and taken again as often. The mapping
 * keeps the memory, and the handle's value, when none is left (driver 580).
 *
 * Owner: it writes a mark at the memory's beginning, and an importer finds the mark there. Every
 * process that takes part knows all marks and the original bytes, so any surviving one restores
 * them.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/clock.h>
#include <lien/grow.h>

#include "control/orders/control.h"
#include "control/memory/handles.h"

/* From MARKS on, for MARK. Less than LIEN_GATE_LEASE_MS, and than the agent's limit for MARK: a
 * thread that was stopped meanwhile must not write a mark that nobody looks for any more. */
#define MARK_NS 3000000000ull

/* Without a channel the driver (580) refuses fabric handles: NOT_PERMITTED. */
#define CHANNELS "/dev/nvidia-caps-imex-channels"

/* Copies between a mapping's first bytes and `bytes`. */
static int transfer(struct lien_control *control, uint32_t ordinal, uint64_t va,
	uint8_t bytes[LIEN_WIRE_MARK_BYTES], int write)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	int result = lien_device_use(control, ordinal, &device);

	if (result)
		return result;
	result = write ? driver->cuMemcpyHtoDAsync_v2(
				 va, bytes, LIEN_WIRE_MARK_BYTES, device->stream)
		       : driver->cuMemcpyDtoHAsync_v2(
				 bytes, va, LIEN_WIRE_MARK_BYTES, device->stream);
	if (result)
		return result;
	return driver->cuStreamSynchronize(device->stream);
}

/* The application may have given access to devices that it does not use, and that have no context.
 * NCCL's ncclMemAlloc() does. */
static void find_device(struct lien_control *control, struct lien_wire_adopt *adopt)
{
	const unsigned wanted = adopt->flags & LIEN_WIRE_ADOPT_READ_ONLY
					? CU_MEM_ACCESS_FLAGS_PROT_READ
					: CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	struct lien_device *device;
	unsigned long long flags;

	if (!adopt->va || lien_device_use(control, adopt->device, &device) != -ENODEV)
		return;
	for (; place.id < LIEN_DEVICES_MAX; place.id++)
		if (!lien_device_use(control, place.id, &device) &&
			!control->driver->cuMemGetAccess(&flags, &place, adopt->va) &&
			(flags & wanted) == wanted) {
			adopt->device = place.id;
			return;
		}
}

/* Reserves an address range that fits any of them plus one step. 0: none available. */
static int reserve_scratch(struct lien_control *control, const struct lien_wire_adopt *adopt,
	unsigned count, CUdeviceptr *scratch, size_t *size)
{
	struct lien_device *device;
	CUdeviceptr base;
	size_t bytes;
	unsigned i;
	int result;

	*size = 0;
	for (i = 0; i < count; i++) {
		if (!(adopt[i].flags & LIEN_WIRE_ADOPT_COUNT) ||
			lien_device_use(control, adopt[i].device, &device) ||
			control->driver->cuMemGetAddressRange_v2(&base, &bytes, adopt[i].va))
			continue;
		if (bytes + LIEN_WIRE_STEP > *size)
			*size = bytes + LIEN_WIRE_STEP;
	}
	result = *size ? control->driver->cuMemAddressReserve(scratch, *size, 0, 0, 0) : 0;
	if (result)
		*size = 0;
	return result ? lien_control_fail(control, result, 0, "cuMemAddressReserve") : 0;
}

/*
 * Checks whether the allocation is larger than the mapping. The driver does not report an
 * allocation's size, but refuses to map more than that (580: NOT_SUPPORTED).
 */
static int look_for_more(struct lien_control *control, struct lien_wire_adopt *adopt,
	CUmemGenericAllocationHandle handle, CUdeviceptr scratch, size_t room)
{
	const struct lien_driver *driver = control->driver;
	struct lien_device *device;
	CUdeviceptr base;
	size_t bytes;
	int result = lien_device_use(control, adopt->device, &device);

	if (!result)
		result = driver->cuMemGetAddressRange_v2(&base, &bytes, adopt->va);
	if (result || bytes + LIEN_WIRE_STEP > room) {
		adopt->flags |= LIEN_WIRE_ADOPT_PART; /* not known to be complete */
		return 0;
	}
	result = driver->cuMemMap(scratch, bytes + LIEN_WIRE_STEP, 0, handle, 0);
	if (result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED)
		return 0;
	adopt->flags |= LIEN_WIRE_ADOPT_PART;
	if (!result && driver->cuMemUnmap(scratch, bytes + LIEN_WIRE_STEP) &&
		(result = driver->cuMemUnmap(scratch, bytes + LIEN_WIRE_STEP)))
		return lien_control_fail(control, result, adopt->va, "cuMemUnmap");
	return 0;
}

/* The released references include the control thread's own, from asking for the handle. */
static int count_references(struct lien_control *control, struct lien_wire_adopt *adopt,
	CUdeviceptr scratch, size_t room)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle handle, again;
	unsigned n = 0, i;
	int result;

	result = driver->cuMemRetainAllocationHandle(&handle, (void *)adopt->va);
	if (result)
		return lien_control_fail(control, result, adopt->va, "not mapped here any more");
	result = look_for_more(control, adopt, handle, scratch, room);
	if (result) {
		lien_handle_release(driver, handle);
		return result;
	}
	/* Require two refusals: a single one may be a failure for another reason. */
	while (n <= LIEN_WIRE_REFERENCES_MAX &&
		(!driver->cuMemRelease(handle) || !driver->cuMemRelease(handle)))
		n++;
	for (i = 1; i < n && !result; i++) {
		result = lien_handle_retain(driver, &again, adopt->va);
		if (!result && again != handle)
			result = -ESTALE;
	}
	if (result)
		return lien_control_fail(
			control, result, adopt->va, "its references could not be taken again");
	if (!n)
		lien_handle_release(driver, handle); /* the one from asking */
	if (!n || n > LIEN_WIRE_REFERENCES_MAX)
		return lien_control_fail(
			control, -E2BIG, adopt->va, "its references cannot be counted");
	adopt->handle = handle;
	adopt->references = n - 1;
	return 0;
}

int lien_order_count(struct lien_control *control)
{
	struct lien_wire_adopt *adopt;
	CUdeviceptr scratch = 0;
	unsigned count, i;
	size_t room;
	int result;
	const int fabric = !syscall(SYS_access, CHANNELS, F_OK);

	adopt = lien_control_body(control, sizeof(*adopt), &count);
	for (i = 0; i < count; i++)
		find_device(control, &adopt[i]);
	result = reserve_scratch(control, adopt, count, &scratch, &room);
	for (i = 0; i < count && !result; i++) {
		if (adopt[i].flags & LIEN_WIRE_ADOPT_COUNT)
			result = count_references(control, &adopt[i], scratch, room);
		if (fabric)
			adopt[i].flags |= LIEN_WIRE_ADOPT_FABRIC;
		if (!result && adopt[i].flags & LIEN_WIRE_ADOPT_OWN &&
			(result = transfer(
				 control, adopt[i].device, adopt[i].va, adopt[i].bytes, 0)))
			lien_control_fail(
				control, result, adopt[i].va, "its first bytes cannot be read");
	}
	if (room)
		control->driver->cuMemAddressFree(scratch, room);
	lien_devices_close(control);
	if (!result && count)
		result = lien_control_reply(control, adopt, count * sizeof(*adopt), NULL, 0);
	return result;
}

static int by_mark(const void *a, const void *b)
{
	const struct lien_wire_adopt *x = a, *y = b;

	return memcmp(x->mark, y->mark, sizeof(x->mark));
}

int lien_order_marks(struct lien_control *control)
{
	struct lien_marks *marks = &control->marks;
	const struct lien_wire_adopt *adopt;
	unsigned count, i;

	adopt = lien_control_body(control, sizeof(*adopt), &count);
	if (marks->written)
		return lien_control_fail(control, -EBUSY, 0, "earlier marks are not put back yet");
	if (control->flags & LIEN_WIRE_FIRST)
		marks->count = 0;
	if (count > LIEN_WIRE_ITEMS_MAX - marks->count)
		return lien_control_fail(control, -E2BIG, 0, "too many marks");
	for (i = 0; i < count; i++) {
		if (lien_array_grow(&marks->mark, marks->count, &marks->room, sizeof(*adopt)))
			return lien_control_fail(control, -ENOMEM, 0, "out of memory");
		marks->mark[marks->count] = adopt[i];
		find_device(control, &marks->mark[marks->count++]);
	}
	if (control->flags & LIEN_WIRE_LAST && marks->count) {
		qsort(marks->mark, marks->count, sizeof(marks->mark[0]), by_mark);
		marks->written = 1; /* others may write theirs from now on */
		marks->until_ns = lien_clock_ns() + MARK_NS;
	}
	return 0;
}

/* Returns true if it gets its mark in the order that is carried out. */
static int is_due(const struct lien_control *control, const struct lien_wire_adopt *mark)
{
	const int unknown = (mark->flags & LIEN_WIRE_ADOPT_LOOK) != 0;

	return mark->va && mark->flags & LIEN_WIRE_ADOPT_OWN &&
	       unknown == ((control->flags & LIEN_WIRE_LAST) != 0);
}

int lien_order_mark(struct lien_control *control)
{
	struct lien_marks *marks = &control->marks;
	uint8_t now[LIEN_WIRE_MARK_BYTES];
	struct lien_wire_adopt *mark;
	unsigned i;
	int result = 0;

	for (i = 0; marks->written && i < marks->count && !result; i++) {
		mark = &marks->mark[i];
		if (!is_due(control, mark))
			continue;
		result = transfer(control, mark->device, mark->va, now, 0);
		if (!result && memcmp(now, mark->bytes, sizeof(now))) {
			if (mark->flags & LIEN_WIRE_ADOPT_LOOK)
				continue; /* somebody else's mark, which LOOK finds */
			result = -ESTALE;
		}
		if (!result && lien_clock_ns() > marks->until_ns)
			result = -ETIMEDOUT;
		if (!result)
			result = transfer(control, mark->device, mark->va, mark->mark, 1);
		if (result)
			lien_control_fail(control, result, mark->va,
				result == -ESTALE      ? "it changed while the job was at rest"
				: result == -ETIMEDOUT ? "it is too late to write marks"
						       : "a mark cannot be written");
	}
	lien_devices_close(control);
	return result;
}

/*
 * --- descriptors of exports, older than the agent, that are open in this process -----------------
 *
 * Asks the driver to import each candidate, and maps it at an address of ours just long enough to
 * read its first bytes. The driver refuses anything else (NVIDIA's, 580, in 3 us).
 */

#define SIZES	 256 /* different ones */
#define OPEN_MAX (LIEN_WIRE_MESSAGE_MAX / 4 / sizeof(struct lien_wire_adopt))

/* NVIDIA's exports are files of /dev/nvidiactl; the software driver's are files without a name. */
static int may_be_export(int folder, const char *name)
{
	static const char device[] = "/dev/nvidiactl", gone[] = " (deleted)";
	struct stat file;
	char link[256];
	ssize_t n = readlinkat(folder, name, link, sizeof(link) - 1);

	if (n < (ssize_t)sizeof(gone))
		return 0;
	link[n] = '\0';
	if (!strncmp(link, device, sizeof(device) - 1))
		return 1;
	return !strcmp(link + n - sizeof(gone) + 1, gone) && link[0] == '/' &&
	       !syscall(SYS_fstat, atoi(name), &file) && S_ISREG(file.st_mode) && file.st_size &&
	       !(file.st_size % LIEN_WIRE_STEP);
}

/* Returns a device whose context may access it: the memory's own if that has one. */
static int reach(struct lien_control *control, CUmemGenericAllocationHandle handle)
{
	CUmemAllocationProp prop;

	memset(&prop, 0, sizeof(prop));
	if (control->driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle) ||
		prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return -1;
	return lien_device_near(control, prop.location.id);
}

/* Returns 0: it has another size, or cannot be read. */
static int read_mapped(struct lien_control *control, CUmemGenericAllocationHandle handle,
	int ordinal, uint64_t size, uint8_t bytes[LIEN_WIRE_MARK_BYTES])
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
	const struct lien_driver *driver = control->driver;
	struct lien_scratch place = {.bytes = size};
	CUdeviceptr va;
	int read;

	if (driver->cuMemAddressReserve(&va, size, 0, 0, 0))
		return 0;
	place.va = va;
	place.mapped = !driver->cuMemMap(va, size, 0, handle, 0);
	read = place.mapped && !driver->cuMemSetAccess(va, size, &access, 1) &&
	       !transfer(control, ordinal, va, bytes, 0);
	lien_scratch_free(driver, place);
	return read;
}

/*
 * Lists the sizes of marked memory. The driver (580) maps all of an import or nothing, and does not
 * report its size. Memory of another size has no mark.
 */
static unsigned sizes_of(const struct lien_marks *marks, uint32_t steps[SIZES])
{
	unsigned i, j, n = 0;

	for (i = 0; i < marks->count && n < SIZES; i++) {
		for (j = 0; j < n && steps[j] != marks->mark[i].steps; j++)
			;
		if (j == n && marks->mark[i].flags & LIEN_WIRE_ADOPT_OWN && marks->mark[i].steps)
			steps[n++] = marks->mark[i].steps;
	}
	return n;
}

static int look(struct lien_control *control, int fd, const uint32_t *steps, unsigned sizes)
{
	const struct lien_driver *driver = control->driver;
	struct lien_wire_adopt seen = {.flags = LIEN_WIRE_ADOPT_OPEN};
	CUmemGenericAllocationHandle handle;
	int ordinal, read = 0;
	unsigned i;

	if (driver->cuMemImportFromShareableHandle(
		    &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return 0;
	ordinal = reach(control, handle);
	for (i = 0; ordinal >= 0 && i < sizes && !read; i++)
		read = read_mapped(control, handle, ordinal, steps[i] * LIEN_WIRE_STEP, seen.bytes);
	lien_handle_release(driver, handle);
	if (read)
		lien_control_add(control, &seen, sizeof(seen));
	return read;
}

/* Reads the first bytes of the allocations that the process's own descriptors export; at most
 * OPEN_MAX, which the agent takes. */
static void look_at_descriptors(struct lien_control *control)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	uint32_t steps[SIZES];
	const unsigned sizes = sizes_of(&control->marks, steps);
	unsigned n = 0;

	while (folder && n < OPEN_MAX && (entry = readdir(folder)))
		if (entry->d_name[0] != '.' && may_be_export(dirfd(folder), entry->d_name))
			n += look(control, atoi(entry->d_name), steps, sizes);
	if (folder)
		closedir(folder);
}

/* --- LOOK and UNMARK -------------------------------------------------------------------------- */

int lien_order_look(struct lien_control *control)
{
	const struct lien_marks *marks = &control->marks;
	struct lien_wire_adopt seen;
	int result = 0;
	unsigned i;

	for (i = 0; i < marks->count && !result; i++) {
		seen = marks->mark[i];
		if (!seen.va)
			continue;
		result = transfer(control, seen.device, seen.va, seen.bytes, 0);
		if (result)
			lien_control_fail(
				control, result, seen.va, "its first bytes cannot be read");
		else
			result = lien_control_add(control, &seen, sizeof(seen));
	}
	if (!result)
		look_at_descriptors(control);
	if (!result)
		result = lien_control_flush(control);
	lien_devices_close(control);
	return result;
}

/* Restores the original bytes wherever a mark is found, no matter who wrote it. */
static int put_back(struct lien_control *control, const struct lien_wire_adopt *at)
{
	const struct lien_marks *marks = &control->marks;
	static const uint8_t none[LIEN_WIRE_MARK_BYTES]; /* read where there is no mark */
	struct lien_wire_adopt key, *mark;
	int result = transfer(control, at->device, at->va, key.mark, 0);

	if (result || !memcmp(key.mark, none, sizeof(none)))
		return result;
	if (at->flags & LIEN_WIRE_ADOPT_READ_ONLY)
		return 0; /* its writer restores it */
	mark = bsearch(&key, marks->mark, marks->count, sizeof(key), by_mark);
	return mark ? transfer(control, at->device, at->va, mark->bytes, 1) : 0;
}

int lien_order_unmark(struct lien_control *control)
{
	struct lien_marks *marks = &control->marks;
	int result, first = 0;
	unsigned i;

	for (i = 0; marks->written && i < marks->count; i++) {
		if (!marks->mark[i].va)
			continue;
		result = put_back(control, &marks->mark[i]);
		if (result)
			result = put_back(control, &marks->mark[i]);
		if (result && !first)
			first = lien_control_fail(
				control, result, marks->mark[i].va, "a mark was not put back");
	}
	lien_devices_close(control);
	if (first)
		return first;
	marks->written = 0;
	marks->count = 0;
	free(marks->mark);
	marks->mark = NULL;
	marks->room = 0;
	return 0;
}
