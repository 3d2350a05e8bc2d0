/* SPDX-License-Identifier: BSD-2-Clause */
/* The virtual memory calls within one process: handles, ranges, mappings, access, copies. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "test_softcuda.h"

#define NONE CU_MEM_HANDLE_TYPE_NONE
#define RW   CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define FD   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static void test_create(void **state)
{
	CUmemAllocationProp prop = device_prop(0, NONE), read;
	CUmemGenericAllocationHandle handle, next;
	size_t before = free_bytes(), size;

	(void)state;
	OK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	assert_int_equal(size, PIECE);
	OK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	assert_int_equal(size, PIECE);
	FAILS(INVALID_VALUE, cuMemCreate(&handle, 0, &prop, 0));
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE / 2, &prop, 0));
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 1));
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, NULL, 0));
	FAILS(INVALID_VALUE, cuMemCreate(NULL, PIECE, &prop, 0));
	FAILS(OUT_OF_MEMORY, cuMemCreate(&handle, DEVICE_MEMORY + PIECE, &prop, 0));
	assert_int_equal(free_bytes(), before);
	prop.location.id = 2;
	FAILS(INVALID_DEVICE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0};
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop = device_prop(0, NONE);
	prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop = device_prop(0, CU_MEM_HANDLE_TYPE_FABRIC);
	FAILS(NOT_SUPPORTED, cuMemCreate(&handle, PIECE, &prop, 0));
	prop = device_prop(0, 2);
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));

	prop = device_prop(1, FD);
	prop.allocFlags.gpuDirectRDMACapable = 1;
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	assert_true(handle > UINT32_MAX);
	OK(cuMemGetAllocationPropertiesFromHandle(&read, handle));
	assert_memory_equal(&read, &prop, sizeof(prop));
	assert_int_equal(free_bytes(), before); /* device 1's */
	OK(cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&read, handle));
	next = make(3 * PIECE, NONE);
	assert_true(next != handle);
	assert_int_equal(free_bytes(), before - 3 * PIECE);
	OK(cuMemRelease(next));
	assert_int_equal(free_bytes(), before);
	FAILS(INVALID_VALUE, cuMemRelease(0));
}

static void test_full_device(void **state)
{
	CUmemGenericAllocationHandle handles[DEVICE_MEMORY / PIECE];
	CUmemAllocationProp prop = device_prop(0, NONE);
	size_t count = free_bytes() / PIECE;
	CUmemGenericAllocationHandle more;

	(void)state;
	for (size_t i = 0; i < count; i++)
		OK(cuMemCreate(&handles[i], PIECE, &prop, 0));
	assert_int_equal(free_bytes(), 0);
	FAILS(OUT_OF_MEMORY, cuMemCreate(&more, PIECE, &prop, 0));
	OK(cuMemRelease(handles[0]));
	OK(cuMemCreate(&handles[0], PIECE, &prop, 0));
	for (size_t i = 0; i < count; i++)
		OK(cuMemRelease(handles[i]));
	assert_int_equal(free_bytes(), count * PIECE);
}

static void test_host_location(void **state)
{
	CUmemAllocationProp prop = device_prop(0, NONE), read;
	CUmemAccessDesc access[2] = {
		device_access(0, RW), {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, RW}};
	CUmemGenericAllocationHandle handle, copy;
	size_t before = free_bytes();
	unsigned long long flags;
	CUdeviceptr ptr;
	int fd;

	(void)state;
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	OK(cuMemRelease(handle));
	prop.requestedHandleTypes = FD; /* "HOST allocations are not IPC capable" */
	FAILS(INVALID_VALUE, cuMemCreate(&handle, PIECE, &prop, 0));
	prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	assert_int_equal(free_bytes(), before);
	ptr = map_somewhere(handle, PIECE);
	OK(cuMemSetAccess(ptr, PIECE, access, 2));
	OK(cuMemGetAccess(&flags, &access[1].location, ptr));
	assert_int_equal(flags, RW);
	OK(cuMemsetD8_v2(ptr, 7, PIECE));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(uintptr_t)fd, FD));
	close(fd);
	OK(cuMemGetAllocationPropertiesFromHandle(&read, copy));
	assert_memory_equal(&read, &prop, sizeof(prop));
	OK(cuMemRelease(copy));
	OK(cuMemRelease(handle));
	unmap_and_free(ptr, PIECE);
}

static void test_reserve(void **state)
{
	CUdeviceptr first, second, aligned;

	(void)state;
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, 0, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, PIECE + 4096, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, PIECE, 3 * PIECE, 0, 0));
	FAILS(INVALID_VALUE, cuMemAddressReserve(&first, PIECE, 0, 0, 1));
	FAILS(INVALID_VALUE, cuMemAddressReserve(NULL, PIECE, 0, 0, 0));
	OK(cuMemAddressReserve(&first, 4 * PIECE, 0, 0, 0));
	assert_int_equal(first % PIECE, 0);
	OK(cuMemAddressReserve(&aligned, PIECE, 1ul << 30, 0, 0));
	assert_int_equal(aligned % (1ul << 30), 0);
	OK(cuMemAddressReserve(&second, PIECE, 0, first + PIECE, 0)); /* taken: elsewhere */
	assert_true(second < first || second >= first + 4 * PIECE);
	FAILS(INVALID_VALUE, cuMemAddressFree(first, 3 * PIECE));
	FAILS(INVALID_VALUE, cuMemAddressFree(first + PIECE, 3 * PIECE));
	OK(cuMemAddressFree(first, 4 * PIECE));
	FAILS(INVALID_VALUE, cuMemAddressFree(first, 4 * PIECE));
	OK(cuMemAddressReserve(&aligned, 4 * PIECE, 0, first, 0)); /* free: there */
	assert_int_equal(aligned, first);
	OK(cuMemAddressFree(first, 4 * PIECE));
	OK(cuMemAddressFree(second, PIECE));
	OK(cuMemAddressReserve(&first, 64ul << 30, 0, 0, 0)); /* NCCL's windows take as much */
	OK(cuMemAddressFree(first, 64ul << 30));
}

static void test_map(void **state)
{
	CUmemGenericAllocationHandle handle = make(2 * PIECE, NONE), other = make(PIECE, NONE), got;
	CUdeviceptr ptr, base;
	size_t size;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 8 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE, PIECE, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE, 0, handle, 1));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE / 2, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 4096, PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, 3 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 7 * PIECE, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 8 * PIECE, PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, PIECE, 0, handle + 1, 0));
	OK(cuMemMap(ptr + PIECE, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemMap(ptr + 2 * PIECE, PIECE, 0, other, 0));
	OK(cuMemMap(ptr + 3 * PIECE, PIECE, 0, other, 0));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0)); /* an alias, of a part */
	OK(cuMemGetAddressRange_v2(&base, &size, ptr + 3 * PIECE - 1));
	assert_int_equal(base, ptr + PIECE);
	assert_int_equal(size, 2 * PIECE);
	OK(cuMemGetAddressRange_v2(&base, &size, ptr));
	assert_int_equal(size, PIECE);
	FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, ptr + 4 * PIECE));

	OK(cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + 3 * PIECE - 1)));
	assert_true(got == handle);
	OK(cuMemRelease(handle));
	FAILS(INVALID_VALUE,
		cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(ptr + 4 * PIECE)));
	FAILS(INVALID_VALUE, cuMemRetainAllocationHandle(&got, &size));

	FAILS(INVALID_VALUE, cuMemAddressFree(ptr, 8 * PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr + 4 * PIECE, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr + PIECE, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr + 2 * PIECE, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr, 5 * PIECE));
	OK(cuMemUnmap(ptr + PIECE, 3 * PIECE)); /* two mappings, side by side */
	OK(cuMemUnmap(ptr, PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr, PIECE));
	OK(cuMemAddressFree(ptr, 8 * PIECE));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(other));
}

/* A map goes into one reservation, also where two lie side by side. */
static void test_map_across_ranges(void **state)
{
	CUmemGenericAllocationHandle handle = make(2 * PIECE, NONE);
	CUdeviceptr ptr, first, second;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 2 * PIECE, 0, 0, 0));
	OK(cuMemAddressFree(ptr, 2 * PIECE));
	OK(cuMemAddressReserve(&first, PIECE, 0, ptr, 0));
	OK(cuMemAddressReserve(&second, PIECE, 0, ptr + PIECE, 0));
	assert_int_equal(first, ptr);
	assert_int_equal(second, ptr + PIECE);
	FAILS(INVALID_VALUE, cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	FAILS(INVALID_VALUE, cuMemAddressFree(ptr, 2 * PIECE));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0));
	unmap_and_free(first, PIECE);
	OK(cuMemAddressFree(second, PIECE));
	OK(cuMemRelease(handle));
}

/* Memory lives while anything holds it; a handle is usable while it is referenced. */
static void test_lifetime(void **state)
{
	size_t before = free_bytes();
	CUmemGenericAllocationHandle handle = make(PIECE, FD), again;
	CUmemAllocationProp prop;
	CUdeviceptr ptr = map_somewhere(handle, PIECE), alias;
	char byte = 0;
	int fd;

	(void)state;
	OK(cuMemsetD8_v2(ptr, 42, PIECE));
	OK(cuMemRelease(handle));
	assert_int_equal(free_bytes(), before - PIECE);
	FAILS(INVALID_VALUE, cuMemRelease(handle));
	FAILS(INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemAddressReserve(&alias, PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemMap(alias, PIECE, 0, handle, 0));
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)ptr));
	assert_true(again == handle);
	OK(cuMemMap(alias, PIECE, 0, handle, 0));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemRelease(handle));
	unmap_and_free(ptr, PIECE);
	OK(cuMemSetAccess(
		alias, PIECE, &(CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 0}, RW}, 1));
	OK(cuMemcpyDtoH_v2(&byte, alias + PIECE - 1, 1));
	assert_int_equal(byte, 42);
	unmap_and_free(alias, PIECE);
	assert_int_equal(free_bytes(), before - PIECE); /* the exported fd */
	close(fd);
	assert_int_equal(free_bytes(), before);
}

static void test_access(void **state)
{
	CUmemGenericAllocationHandle handle = make(2 * PIECE, NONE);
	CUmemAccessDesc both[2] = {
		device_access(0, CU_MEM_ACCESS_FLAGS_PROT_READ), device_access(1, RW)};
	CUmemAccessDesc bad = device_access(2, RW);
	unsigned long long flags;
	CUdeviceptr ptr;
	char byte = 0;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, PIECE, both, 2));
	FAILS(INVALID_VALUE, cuMemGetAccess(&flags, &both[0].location, ptr));
	OK(cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	OK(cuMemMap(ptr + 2 * PIECE, PIECE, 0, handle, 0));
	OK(cuMemGetAccess(&flags, &both[0].location, ptr));
	assert_int_equal(flags, 0);
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(&byte, ptr, 1));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, 1));

	FAILS(INVALID_DEVICE, cuMemSetAccess(ptr, 2 * PIECE, &bad, 1));
	FAILS(INVALID_DEVICE, cuMemGetAccess(&flags, &bad.location, ptr));
	bad = device_access(0, 2);
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, &bad, 1));
	bad = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, RW};
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, &bad, 1));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, PIECE, both, 2));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 4 * PIECE, both, 2));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, NULL, 1));
	FAILS(INVALID_VALUE, cuMemSetAccess(ptr, 2 * PIECE, both, 0));
	OK(cuMemGetAccess(&flags, &both[1].location, ptr));
	assert_int_equal(flags, 0); /* what failed changed nothing */

	OK(cuMemSetAccess(ptr, 3 * PIECE, both, 2));
	for (int piece = 0; piece < 3; piece++) {
		OK(cuMemGetAccess(&flags, &both[0].location, ptr + piece * PIECE));
		assert_int_equal(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
		OK(cuMemGetAccess(&flags, &both[1].location, ptr + piece * PIECE));
		assert_int_equal(flags, RW);
	}
	/* The current device may read, the other one may write. */
	OK(cuMemcpyDtoH_v2(&byte, ptr, 1));
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr, &byte, 1));
	use_device(1);
	OK(cuMemsetD8_v2(ptr, 9, 3 * PIECE));
	use_device(0);
	OK(cuMemcpyDtoH_v2(&byte, ptr, 1));
	assert_int_equal(byte, 9);
	/* A new mapping starts without access. */
	OK(cuMemUnmap(ptr, 2 * PIECE));
	OK(cuMemMap(ptr, 2 * PIECE, 0, handle, 0));
	OK(cuMemGetAccess(&flags, &both[1].location, ptr));
	assert_int_equal(flags, 0);
	OK(cuMemUnmap(ptr, 3 * PIECE));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	OK(cuMemRelease(handle));
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void test_copies(void **state)
{
	CUmemGenericAllocationHandle handle = make(PIECE, NONE), other = make(PIECE, NONE);
	CUmemAccessDesc access = device_access(0, RW);
	uint32_t words[4] = {0};
	CUdeviceptr ptr;

	(void)state;
	OK(cuMemAddressReserve(&ptr, 3 * PIECE, 0, 0, 0));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0));
	OK(cuMemMap(ptr + PIECE, PIECE, 0, other, 0));
	OK(cuMemSetAccess(ptr, PIECE, &access, 1));
	OK(cuMemcpyHtoD_v2(ptr + PIECE - 8, "abcdefgh", 8));
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr + PIECE - 7, "abcdefgh", 8)); /* no access */
	OK(cuMemSetAccess(ptr + PIECE, PIECE, &access, 1));
	OK(cuMemcpyHtoD_v2(ptr + PIECE - 7, "abcdefgh", 8)); /* across two mappings */
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr + 2 * PIECE - 7, "abcdefgh", 8)); /* the end */
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(ptr - 1, "abcdefgh", 8));
	FAILS(INVALID_VALUE, cuMemcpyHtoD_v2(16, "abcdefgh", 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(NULL, ptr, 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2((void *)(uintptr_t)(ptr + 2 * PIECE), ptr, 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoD_v2(ptr, ptr + 2 * PIECE - 4, 8));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(words, UINT64_MAX - 3, 8));
	FAILS(INVALID_VALUE, cuMemsetD8_v2(ptr, 1, SIZE_MAX));
	FAILS(INVALID_VALUE, cuMemsetD32_v2(ptr, 1, SIZE_MAX / 2));
	FAILS(INVALID_VALUE, cuMemsetD32_v2(ptr + 2, 1, 1));
	OK(cuMemsetD32_v2(ptr + PIECE - 8, 0x01020304, 4));
	OK(cuMemcpyDtoDAsync_v2(ptr, ptr + PIECE - 8, 16, NULL));
	OK(cuMemcpyDtoHAsync_v2(words, ptr, 16, NULL));
	for (int i = 0; i < 4; i++)
		assert_int_equal(words[i], 0x01020304);
	OK(cuMemcpyHtoDAsync_v2(ptr, &(uint32_t){5}, 4, NULL));
	OK(cuMemcpy((uintptr_t)words, ptr, 4));
	assert_int_equal(words[0], 5);
	OK(cuMemcpyDtoH_v2(words, 16, 0));
	OK(cuMemUnmap(ptr, 2 * PIECE));
	OK(cuMemAddressFree(ptr, 3 * PIECE));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(other));
}

/* Handle values do not come back, though everything else about the allocation does. */
static void test_handles_unique(void **state)
{
	CUmemGenericAllocationHandle last = 0, handle;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		handle = make(PIECE, NONE);
		assert_true(handle > last);
		last = handle;
		OK(cuMemRelease(handle));
	}
}

static void role_stale(int sock)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;

	CHECK(!cuInit(0));
	handle = make(PIECE, FD);
	ptr = map_somewhere(handle, PIECE);
	CHECK(!cuMemRelease(handle));
	switch (receive_number(sock, NULL)) {
	case 0:
		cuMemRelease(handle);
		break;
	case 1:
		cuMemExportToShareableHandle(&(int){0}, handle, FD, 0);
		break;
	case 2:
		cuMemMap(ptr, PIECE, 0, 77, 0);
		break;
	default: /* no fault: must not abort */
		CHECK(!cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr));
		CHECK(!cuMemRelease(handle));
	}
}

static void test_strict(void **state)
{
	static const char *const strict[] = {"LIEN_SOFTCUDA_STRICT=1", NULL};
	static const char *const says[] = {
		"cuMemRelease: handle", "cuMemExportToShareableHandle: handle", "unknown", NULL};
	struct actor actor;
	char output[512];
	int status;

	(void)state;
	for (int i = 0; i < 4; i++) {
		actor_start_captured(&actor, "stale", strict);
		send_number(actor.sock, i, -1);
		status = actor_wait(&actor, output, sizeof(output));
		if (says[i]) {
			assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
			assert_non_null(strstr(output, says[i]));
		} else {
			assert_int_equal(status, 0);
		}
	}
	actor_start(&actor, "stale", NULL); /* not strict: only an error */
	send_number(actor.sock, 0, -1);
	actor_ok(&actor);
}

static size_t available_memory(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	size_t kilobytes = 0;
	char line[128];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1)
			break;
	}
	if (file)
		fclose(file);
	return kilobytes << 10;
}

/* As many allocations as a large job's rank has, each mapped, and each exported and imported. */
static void role_many(int sock)
{
	size_t count = receive_number(sock, NULL);
	CUmemGenericAllocationHandle *handle = calloc(count, sizeof(*handle)), import;
	CUmemAccessDesc access = device_access(0, RW);
	struct rlimit limit;
	CUdeviceptr ptr;
	int fd, low;

	CHECK(!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur == 1024);
	CHECK(!cuInit(0));
	use_device(0);
	CHECK(!cuMemAddressReserve(&ptr, count * PIECE, 0, 0, 0));
	for (size_t i = 0; i < count; i++) {
		handle[i] = make(PIECE, FD);
		CHECK(!cuMemMap(ptr + i * PIECE, PIECE, 0, handle[i], 0));
	}
	CHECK(!cuMemSetAccess(ptr, count * PIECE, &access, 1));
	for (size_t i = 0; i < count; i += 16) /* a virtual machine's first touch is slow */
		CHECK(!cuMemcpyHtoD_v2(ptr + i * PIECE, &i, sizeof(i)));
	for (size_t i = 0; i < count; i++) {
		size_t got = i;

		if (!(i % 16))
			CHECK(!cuMemcpyDtoH_v2(&got, ptr + i * PIECE, sizeof(got)));
		CHECK(got == i);
		CHECK(!cuMemExportToShareableHandle(&fd, handle[i], FD, 0));
		CHECK(!cuMemImportFromShareableHandle(&import, (void *)(uintptr_t)fd, FD));
		CHECK(!cuMemRelease(import) && !close(fd));
	}
	low = dup(0); /* the program's own fds still have small numbers, as select() needs */
	CHECK(low >= 0 && low < 64);
	CHECK(!cuMemUnmap(ptr, count * PIECE));
	for (size_t i = 0; i < count; i++)
		CHECK(!cuMemRelease(handle[i]));
	free(handle);
}

static void test_many(void **state)
{
	size_t count = available_memory() > 10ul << 30 ? 3000 : 1200;
	char variable[128], memory[64], dir[96];
	const char *env[] = {variable, memory, "LIEN_SOFTCUDA_DEVICES=1", NULL};
	struct rlimit limit, low;
	struct actor actor;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/many", test_dir);
	snprintf(variable, sizeof(variable), "LIEN_SOFTCUDA_DIR=%s", dir);
	snprintf(memory, sizeof(memory), "LIEN_SOFTCUDA_MEMORY=%zuM", count * 2);
	getrlimit(RLIMIT_NOFILE, &limit);
	low = limit;
	if (limit.rlim_max < count + 64)
		skip();
	low.rlim_cur = 1024;
	setrlimit(RLIMIT_NOFILE, &low);
	actor_start(&actor, "many", env);
	setrlimit(RLIMIT_NOFILE, &limit);
	send_number(actor.sock, count, -1);
	actor_ok(&actor);
	unmount_devices(dir);
}

static void *stress(void *arg)
{
	CUmemAccessDesc access = device_access(0, RW);
	uint64_t id = (uintptr_t)arg, read;
	CUmemGenericAllocationHandle handle, again, import;
	CUdeviceptr ptr;
	int fd;

	use_device(0);
	for (uint64_t i = 0; i < 300; i++) {
		uint64_t mark = id << 32 | i;

		handle = make(PIECE, FD);
		CHECK(!cuMemAddressReserve(&ptr, 2 * PIECE, 0, 0, 0));
		CHECK(!cuMemMap(ptr, PIECE, 0, handle, 0));
		CHECK(!cuMemExportToShareableHandle(&fd, handle, FD, 0));
		CHECK(!cuMemImportFromShareableHandle(&import, (void *)(uintptr_t)fd, FD));
		CHECK(!close(fd));
		CHECK(!cuMemMap(ptr + PIECE, PIECE, 0, import, 0));
		CHECK(!cuMemRelease(import));
		CHECK(!cuMemSetAccess(ptr, 2 * PIECE, &access, 1));
		CHECK(!cuMemcpyHtoD_v2(ptr, &mark, sizeof(mark)));
		CHECK(!cuMemcpyDtoH_v2(&read, ptr + PIECE, sizeof(read)));
		CHECK(read == mark);
		CHECK(!cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)ptr));
		CHECK(again == handle);
		CHECK(!cuMemRelease(handle));
		CHECK(!cuMemUnmap(ptr, 2 * PIECE));
		CHECK(!cuMemAddressFree(ptr, 2 * PIECE));
		CHECK(!cuMemRelease(handle));
	}
	return NULL;
}

static void test_threads(void **state)
{
	size_t before = free_bytes();
	pthread_t thread[4];

	(void)state;
	for (uintptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, stress, (void *)i), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(free_bytes(), before);
}

const struct role vmm_roles[] = {
	{"stale", role_stale},
	{"many", role_many},
	{NULL, NULL},
};

int vmm_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),
		cmocka_unit_test(test_full_device),
		cmocka_unit_test(test_host_location),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_map),
		cmocka_unit_test(test_map_across_ranges),
		cmocka_unit_test(test_lifetime),
		cmocka_unit_test(test_access),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_handles_unique),
		cmocka_unit_test(test_strict),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests_name("softcuda vmm", tests, NULL, NULL);
}
