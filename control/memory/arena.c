// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/wire.h>
#include "control/memory/arena.h"

/* Limit of one chunk: between two, the control thread can serve another order. */
#define CHUNK_MAX (128ull << 20)

#ifndef MADV_POPULATE_WRITE /* glibc 2.35 */
#define MADV_POPULATE_WRITE 23
#endif

#define NODES_MAX 1024 /* upper limit of any kernel */
#define BITS	  (8 * sizeof(unsigned long))

/* In a container there may be no sysfs, and a driver may lack this attribute. */
static int node_of_pci(int domain, int bus, int slot)
{
	char path[96], text[16];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", domain, bus,
		slot);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return -1;
	text[n] = '\0';
	return atoi(text);
}

/* Returns the NUMA node of the host nearest to a device, or -1: unknown. */
static int node_of(const struct lien_driver *driver, CUdevice device)
{
	int node = -1, domain, bus, slot;

	if (!driver->cuDeviceGetAttribute)
		return -1;
	if (!driver->cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) &&
		node >= 0)
		return node;
	if (driver->cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device) ||
		driver->cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device) ||
		driver->cuDeviceGetAttribute(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device))
		return -1;
	return node_of_pci(domain, bus, slot);
}

/* Makes untouched memory come from that node as far as it has some; -1: any. */
static void prefer(void *memory, size_t bytes, int node)
{
	unsigned long mask[NODES_MAX / BITS] = {0};

	if (node < 0 || node >= NODES_MAX)
		return;
	mask[node / BITS] = 1ul << node % BITS;
	/* Only a hint: seccomp filters of containers forbid it. */
	syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, NODES_MAX + 1, 0);
}

int lien_arena_grow(
	struct lien_arena *arena, const struct lien_driver *driver, CUdevice device, uint64_t bytes)
{
	struct lien_arena_chunk *chunks;
	CUresult result;
	void *memory;

	bytes = bytes < CHUNK_MAX ? LIEN_WIRE_ARENA_ROUND(bytes) : CHUNK_MAX;
	chunks = realloc(arena->chunks, (arena->count + 1) * sizeof(*chunks));
	if (!chunks)
		return -ENOMEM;
	arena->chunks = chunks;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	madvise(memory, bytes, MADV_HUGEPAGE);
	madvise(memory, bytes, MADV_DONTFORK);
	prefer(memory, bytes, node_of(driver, device));
	/* Touch the pages here, not in the driver's call, which blocks the application's. Kernels
	 * before 5.14 cannot. */
	madvise(memory, bytes, MADV_POPULATE_WRITE);
	result = driver->cuMemHostRegister_v2(memory, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	if (result) {
		munmap(memory, bytes);
		return result;
	}
	chunks[arena->count].memory = memory;
	chunks[arena->count++].bytes = bytes;
	arena->bytes += bytes;
	return 0;
}

static int drop_last(struct lien_arena *arena, const struct lien_driver *driver)
{
	struct lien_arena_chunk *last = &arena->chunks[arena->count - 1];
	CUresult result = driver->cuMemHostUnregister(last->memory);

	/* The registration ends with the context in which it was made. */
	if (result && result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
		return result;
	munmap(last->memory, last->bytes);
	arena->bytes -= last->bytes;
	arena->count--;
	return 0;
}

int lien_arena_reserve(
	struct lien_arena *arena, const struct lien_driver *driver, CUdevice device, uint64_t bytes)
{
	unsigned before = arena->count;
	int result = 0;

	if (bytes > LIEN_WIRE_BYTES_MAX) /* no sum overflows */
		return -ENOMEM;
	while (!result && arena->used + bytes > arena->bytes)
		result = lien_arena_grow(arena, driver, device, arena->used + bytes - arena->bytes);
	while (result && arena->count > before && !drop_last(arena, driver))
		;
	return result;
}

int lien_arena_release(struct lien_arena *arena, const struct lien_driver *driver)
{
	int result = 0;

	while (!result && arena->count &&
		arena->bytes - arena->chunks[arena->count - 1].bytes >= arena->used)
		result = drop_last(arena, driver);
	return result;
}

void *lien_arena_at(const struct lien_arena *arena, uint64_t offset, uint64_t *length)
{
	unsigned i;

	for (i = 0; i < arena->count; i++) {
		if (offset < arena->chunks[i].bytes) {
			if (*length > arena->chunks[i].bytes - offset)
				*length = arena->chunks[i].bytes - offset;
			return arena->chunks[i].memory + offset;
		}
		offset -= arena->chunks[i].bytes;
	}
	return NULL;
}
