// SPDX-License-Identifier: BSD-2-Clause
/*
 * Finds descriptors of exports, older than the agent, that are open in this process. Asks the
 * driver to import each candidate, and maps it at an address of ours just long enough to read its
 * first bytes. The driver refuses anything else (NVIDIA's, 580, in 3 us).
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "control/orders/control.h"
#include "control/memory/handles.h"

#define SIZES 256 /* different ones */

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
	struct lien_device *device;
	CUmemAllocationProp prop;
	int i;

	memset(&prop, 0, sizeof(prop));
	if (control->driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle) ||
		prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return -1;
	if (prop.location.id >= 0 && !lien_device_use(control, prop.location.id, &device))
		return prop.location.id;
	for (i = 0; i < LIEN_DEVICES_MAX; i++)
		if (!lien_device_use(control, i, &device))
			return i;
	return -1;
}

/* Returns 0: it has another size, or cannot be read. */
static int read_mapped(struct lien_control *control, CUmemGenericAllocationHandle handle,
	int ordinal, uint64_t size, uint8_t bytes[LIEN_WIRE_MARK_BYTES])
{
	const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READ};
	const struct lien_driver *driver = control->driver;
	CUdeviceptr va;
	int read = 0;

	if (driver->cuMemAddressReserve(&va, size, 0, 0, 0))
		return 0;
	if (!driver->cuMemMap(va, size, 0, handle, 0)) {
		read = !driver->cuMemSetAccess(va, size, &access, 1) &&
		       !lien_device_transfer(control, ordinal, va, bytes, 0);
		if (driver->cuMemUnmap(va, size) && driver->cuMemUnmap(va, size))
			return 0; /* the address cannot be freed either */
	}
	driver->cuMemAddressFree(va, size);
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

static int look(struct lien_control *control, int fd, const uint32_t *steps, unsigned sizes,
	struct lien_wire_adopt *seen)
{
	const struct lien_driver *driver = control->driver;
	CUmemGenericAllocationHandle handle;
	int ordinal, read = 0;
	unsigned i;

	if (driver->cuMemImportFromShareableHandle(
		    &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return 0;
	memset(seen, 0, sizeof(*seen));
	seen->flags = LIEN_WIRE_ADOPT_OPEN;
	ordinal = reach(control, handle);
	for (i = 0; ordinal >= 0 && i < sizes && !read; i++)
		read = read_mapped(
			control, handle, ordinal, steps[i] * LIEN_WIRE_STEP, seen->bytes);
	lien_handle_release(driver, handle);
	return read;
}

unsigned lien_descriptors_look(
	struct lien_control *control, struct lien_wire_adopt *seen, unsigned room)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	uint32_t steps[SIZES];
	unsigned sizes = sizes_of(&control->marks, steps), n = 0;

	while (folder && n < room && (entry = readdir(folder)))
		if (entry->d_name[0] != '.' && may_be_export(dirfd(folder), entry->d_name))
			n += look(control, atoi(entry->d_name), steps, sizes, &seen[n]);
	if (folder)
		closedir(folder);
	return n;
}
