/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory that other processes know by 64 bytes: legacy IPC, fabric handles, pool pointers. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "test_softcuda.h"

#define FD     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define LAZY   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

/* --- legacy IPC --- */

/* Opens what it is sent, in step with test_ipc. */
static void role_opener(int sock)
{
	CUipcMemHandle handle, bad;
	CUdeviceptr ptr, again, base;
	CUcontext own;
	size_t size;

	CHECK(!cuInit(0));
	receive_bytes(sock, &handle);
	CHECK(cuIpcOpenMemHandle_v2(&ptr, handle, LAZY) == CUDA_ERROR_INVALID_CONTEXT);
	use_device(0);
	CHECK(cuIpcOpenMemHandle_v2(&ptr, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuIpcOpenMemHandle_v2(NULL, handle, LAZY) == CUDA_ERROR_INVALID_VALUE);
	memset(&bad, 7, sizeof(bad));
	CHECK(cuIpcOpenMemHandle_v2(&ptr, bad, LAZY) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuIpcOpenMemHandle_v2(&ptr, handle, LAZY));
	CHECK(read_mark(ptr + PIECE) == 0x1234);
	CHECK(!cuMemGetAddressRange_v2(&base, &size, ptr + 5));
	CHECK(base == ptr && size == PIECE + 100);
	CHECK(cuMemsetD8_v2(ptr, 1, PIECE + 101) == CUDA_ERROR_INVALID_VALUE);
	write_mark(ptr, 0x5678);
	/* Once more in this context: counted. In another one of this device: not allowed. */
	CHECK(!cuIpcOpenMemHandle_v2(&again, handle, LAZY) && again == ptr);
	CHECK(!cuCtxCreate_v2(&own, 0, 0));
	CHECK(cuIpcOpenMemHandle_v2(&again, handle, LAZY) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(!cuCtxDestroy_v2(own));
	CHECK(cuMemFree_v2(ptr) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuIpcGetMemHandle(&bad, ptr) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuIpcCloseMemHandle(ptr + 1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuIpcCloseMemHandle(ptr));
	CHECK(read_mark(ptr) == 0x5678);
	send_number(sock, free_bytes(), -1);
	receive_number(sock, NULL); /* the owner has freed it */
	CHECK(read_mark(ptr) == 0x5678);
	CHECK(!cuIpcCloseMemHandle(ptr));
	CHECK(cuIpcCloseMemHandle(ptr) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuIpcOpenMemHandle_v2(&ptr, handle, LAZY) == CUDA_ERROR_INVALID_VALUE);
	send_number(sock, free_bytes(), -1);
}

static void test_ipc(void **state)
{
	CUmemGenericAllocationHandle vmm = make(PIECE, FD);
	CUdeviceptr mapped = map_somewhere(vmm, PIECE), ptr, other;
	size_t before = free_bytes();
	CUipcMemHandle handle, same, changed;
	struct actor actor;

	(void)state;
	OK(cuMemAlloc_v2(&ptr, PIECE + 100));
	FAILS(INVALID_VALUE, cuIpcGetMemHandle(&handle, mapped));
	FAILS(INVALID_VALUE, cuIpcGetMemHandle(NULL, ptr));
	OK(cuMemAllocAsync(&other, 1, NULL));
	FAILS(INVALID_VALUE, cuIpcGetMemHandle(&handle, other));
	OK(cuMemFreeAsync(other, NULL));
	OK(cuMemAllocManaged(&other, 1, CU_MEM_ATTACH_GLOBAL));
	FAILS(INVALID_VALUE, cuIpcGetMemHandle(&handle, other));
	OK(cuMemFree_v2(other));
	OK(cuCtxSynchronize());
	OK(cuIpcGetMemHandle(&handle, ptr));
	OK(cuIpcGetMemHandle(&same, ptr + 1)); /* that of the whole (seen, 580.159) */
	assert_memory_equal(&handle, &same, sizeof(handle));
	FAILS(INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&other, handle, LAZY)); /* our own */
	FAILS(INVALID_VALUE, cuIpcCloseMemHandle(ptr));
	write_mark(ptr + PIECE, 0x1234);

	actor_start(&actor, "opener", NULL);
	send_bytes(actor.sock, &handle);
	assert_int_equal(receive_number(actor.sock, NULL), before - 2 * PIECE);
	assert_int_equal(read_mark(ptr), 0x5678);
	OK(cuMemFree_v2(ptr));
	assert_int_equal(free_bytes(), before - 2 * PIECE); /* the other one has it open */
	OK(cuMemAlloc_v2(&ptr, PIECE + 100));
	OK(cuIpcGetMemHandle(&changed, ptr));
	assert_memory_not_equal(&handle, &changed, sizeof(handle)); /* "a unique handle" */
	/* The new memory is not what the old handle opens, though it may have the old fd. */
	send_number(actor.sock, 0, -1);
	assert_int_equal(receive_number(actor.sock, NULL), before - 2 * PIECE);
	actor_ok(&actor);
	OK(cuMemFree_v2(ptr));
	assert_int_equal(free_bytes(), before);
	unmap_and_free(mapped, PIECE);
	OK(cuMemRelease(vmm));
}

/* Owns memory that it exports in both ways, and waits for its end. */
static void role_owner(int sock)
{
	CUmemFabricHandle fabric;
	CUipcMemHandle handle;
	CUdeviceptr ptr;

	CHECK(!cuInit(0));
	use_device(0);
	CHECK(!cuMemAlloc_v2(&ptr, 3 * PIECE));
	write_mark(ptr, 0xabc);
	CHECK(!cuIpcGetMemHandle(&handle, ptr));
	send_bytes(sock, &handle);
	CHECK(!cuMemExportToShareableHandle(&fabric, make(PIECE, FABRIC), FABRIC, 0));
	send_bytes(sock, &fabric);
	pause();
}

static void test_ipc_killed_owner(void **state)
{
	CUmemGenericAllocationHandle imported;
	size_t before = free_bytes();
	CUmemFabricHandle fabric;
	CUipcMemHandle handle;
	struct actor actor;
	CUdeviceptr ptr, again;
	char output[8];

	(void)state;
	actor_start(&actor, "owner", NULL);
	receive_bytes(actor.sock, &handle);
	receive_bytes(actor.sock, &fabric);
	OK(cuIpcOpenMemHandle_v2(&ptr, handle, LAZY));
	OK(cuMemImportFromShareableHandle(&imported, &fabric, FABRIC));
	OK(cuMemRelease(imported));
	assert_int_equal(free_bytes(), before - 4 * PIECE);
	assert_int_equal(kill(actor.pid, SIGKILL), 0);
	assert_true(WIFSIGNALED(actor_wait(&actor, output, sizeof(output))));
	assert_int_equal(free_bytes(), before - 3 * PIECE);
	assert_int_equal(read_mark(ptr), 0xabc);
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&imported, &fabric, FABRIC));
	OK(cuIpcCloseMemHandle(ptr));
	assert_int_equal(free_bytes(), before);
	FAILS(INVALID_HANDLE, cuIpcOpenMemHandle_v2(&again, handle, LAZY));
}

/* A context that ends takes what it opened along; so does a killed process. */
static void role_holder(int sock)
{
	CUipcMemHandle handle;
	CUdeviceptr ptr;
	CUcontext own;

	CHECK(!cuInit(0));
	CHECK(!cuCtxCreate_v2(&own, 0, 1)); /* on another device than the memory */
	receive_bytes(sock, &handle);
	CHECK(!cuIpcOpenMemHandle_v2(&ptr, handle, LAZY));
	CHECK(read_mark(ptr) == 0x77);
	send_number(sock, 0, -1);
	receive_number(sock, NULL);
	CHECK(!cuCtxDestroy_v2(own));
	CHECK(!cuCtxCreate_v2(&own, 0, 1));
	CHECK(cuIpcCloseMemHandle(ptr) == CUDA_ERROR_INVALID_VALUE);
	send_number(sock, 0, -1);
	receive_bytes(sock, &handle);
	CHECK(!cuIpcOpenMemHandle_v2(&ptr, handle, LAZY));
	send_number(sock, 0, -1);
	pause();
}

static void test_ipc_holders(void **state)
{
	size_t before = free_bytes();
	CUipcMemHandle handle;
	struct actor actor;
	CUdeviceptr ptr;
	char output[8];

	(void)state;
	actor_start(&actor, "holder", NULL);
	OK(cuMemAlloc_v2(&ptr, PIECE));
	write_mark(ptr, 0x77);
	OK(cuIpcGetMemHandle(&handle, ptr));
	send_bytes(actor.sock, &handle);
	receive_number(actor.sock, NULL);
	OK(cuMemFree_v2(ptr));
	assert_int_equal(free_bytes(), before - PIECE);
	send_number(actor.sock, 0, -1);
	receive_number(actor.sock, NULL);
	assert_int_equal(free_bytes(), before);
	OK(cuMemAlloc_v2(&ptr, PIECE));
	OK(cuIpcGetMemHandle(&handle, ptr));
	send_bytes(actor.sock, &handle);
	receive_number(actor.sock, NULL);
	OK(cuMemFree_v2(ptr));
	assert_int_equal(free_bytes(), before - PIECE);
	assert_int_equal(kill(actor.pid, SIGKILL), 0);
	actor_wait(&actor, output, sizeof(output));
	assert_int_equal(free_bytes(), before);
}

/* --- pools --- */

static void role_pool_importer(int sock)
{
	CUmemAccessDesc peer = device_access(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	CUmemPoolPtrExportData data, bad;
	CUmemoryPool pool, found, second;
	CUdeviceptr ptr, other;
	uint64_t used;
	int fd;

	CHECK(!cuInit(0));
	use_device(0);
	receive_number(sock, &fd);
	CHECK(!cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, FD, 0));
	CHECK(!close(fd));
	receive_number(sock, &fd);
	CHECK(!cuMemPoolImportFromShareableHandle(&second, (void *)(uintptr_t)fd, FD, 0));
	CHECK(!close(fd));
	CHECK(cuMemAllocFromPoolAsync(&ptr, 1, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuDeviceSetMemPool(0, pool) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0) == CUDA_ERROR_INVALID_VALUE);
	receive_bytes(sock, &data);
	memset(&bad, 3, sizeof(bad));
	CHECK(cuMemPoolImportPointer(&ptr, pool, &bad) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuDeviceGetDefaultMemPool(&found, 0));
	CHECK(cuMemPoolImportPointer(&ptr, found, &data) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPoolImportPointer(&ptr, second, &data) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemPoolImportPointer(&ptr, pool, &data));
	CHECK(!cuMemPoolImportPointer(&other, pool, &data) && other != ptr);
	CHECK(read_mark(ptr + PIECE) == 0x31);
	write_mark(other, 0x32);
	CHECK(cuMemsetD8_v2(ptr, 0, PIECE + 9) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
	CHECK(found == pool);
	CHECK(cuMemPoolExportPointer(&bad, ptr) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
	CHECK(used == 2 * (PIECE + 8));
	CHECK(!cuMemPoolSetAccess(pool, &peer, 1));
	use_device(1);
	CHECK(read_mark(ptr + PIECE) == 0x31);
	use_device(0);
	CHECK(!cuMemFree_v2(other));
	CHECK(!cuMemPoolDestroy(pool)); /* it waits for the other pointer */
	send_number(sock, 0, -1);
	receive_number(sock, NULL); /* the owner has freed and trimmed */
	CHECK(read_mark(ptr) == 0x32);
	CHECK(!cuMemFreeAsync(ptr, NULL));
	CHECK(cuMemFreeAsync(ptr, NULL) == CUDA_ERROR_INVALID_VALUE);
	send_number(sock, free_bytes(), -1);
}

static void test_pool_share(void **state)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = FD,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	size_t before = free_bytes();
	CUmemPoolPtrExportData data;
	CUmemoryPool pool, closed, stranger;
	CUmemGenericAllocationHandle handle;
	struct actor actor;
	CUdeviceptr ptr, other;
	int fd;

	(void)state;
	OK(cuDeviceGetDefaultMemPool(&closed, 0));
	OK(cuMemPoolCreate(&pool, &props));
	FAILS(INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, closed, FD, 0));
	FAILS(INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, pool, FD, 1));
	FAILS(INVALID_VALUE, cuMemPoolExportToShareableHandle(&fd, pool, 0, 0));
	FAILS(NOT_SUPPORTED, cuMemPoolExportToShareableHandle(&fd, pool, FABRIC, 0));
	FAILS(INVALID_VALUE, cuMemPoolExportToShareableHandle(NULL, pool, FD, 0));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, FD));
	FAILS(INVALID_VALUE,
		cuMemPoolImportFromShareableHandle(&stranger, (void *)(uintptr_t)fd, FD, 1));
	FAILS(INVALID_VALUE, cuMemPoolImportFromShareableHandle(&stranger, (void *)0, FD, 0));
	close(fd);
	fd = memfd_create("lien-softcuda-pool-0", 0); /* named like one, but empty */
	assert_int_equal(fchmod(fd, 07666), 0);
	FAILS(INVALID_VALUE,
		cuMemPoolImportFromShareableHandle(&stranger, (void *)(uintptr_t)fd, FD, 0));
	close(fd);
	OK(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
	OK(cuMemAllocAsync(&other, 1, NULL));
	FAILS(INVALID_VALUE, cuMemPoolExportPointer(&data, other)); /* its pool is not shared */
	OK(cuMemFreeAsync(other, NULL));
	OK(cuCtxSynchronize());
	OK(cuMemAllocFromPoolAsync(&ptr, PIECE + 8, pool, NULL));
	FAILS(INVALID_VALUE, cuMemPoolExportPointer(&data, ptr + 1));
	FAILS(INVALID_VALUE, cuMemPoolExportPointer(NULL, ptr));
	OK(cuMemPoolExportPointer(&data, ptr));
	write_mark(ptr + PIECE, 0x31);

	actor_start(&actor, "pool_importer", NULL);
	send_number(actor.sock, 0, fd);
	close(fd);
	OK(cuMemPoolCreate(&stranger, &props));
	OK(cuMemPoolExportToShareableHandle(&fd, stranger, FD, 0));
	send_number(actor.sock, 0, fd);
	close(fd);
	OK(cuMemPoolDestroy(stranger));
	send_bytes(actor.sock, &data);
	receive_number(actor.sock, NULL);
	assert_int_equal(read_mark(ptr), 0x32);
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	OK(cuMemFreeAsync(ptr, NULL));
	FAILS(INVALID_VALUE, cuMemPoolExportPointer(&data, ptr));
	OK(cuMemPoolDestroy(pool));
	assert_int_equal(free_bytes(), before - 2 * PIECE); /* the importer's */
	send_number(actor.sock, 0, -1);
	assert_int_equal(receive_number(actor.sock, NULL), before);
	actor_ok(&actor);
}

/* A device that a process does not see is an error there, whichever way its memory comes. */
static void role_blind(int sock)
{
	CUmemGenericAllocationHandle handle;
	CUmemFabricHandle fabric;
	CUipcMemHandle ipc;
	CUmemoryPool pool;
	CUdeviceptr ptr;
	int fd;

	CHECK(!cuInit(0));
	use_device(0);
	receive_bytes(sock, &ipc);
	CHECK(cuIpcOpenMemHandle_v2(&ptr, ipc, LAZY) == CUDA_ERROR_INVALID_DEVICE);
	receive_bytes(sock, &fabric);
	CHECK(cuMemImportFromShareableHandle(&handle, &fabric, FABRIC) ==
		CUDA_ERROR_INVALID_DEVICE);
	receive_number(sock, &fd);
	CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)fd, FD, 0) ==
		CUDA_ERROR_INVALID_DEVICE);
}

static void test_invisible(void **state)
{
	static const char *const one[] = {"CUDA_VISIBLE_DEVICES=1", NULL};
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = FD,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemGenericAllocationHandle handle = make(PIECE, FABRIC);
	CUmemFabricHandle fabric;
	CUipcMemHandle ipc;
	struct actor actor;
	CUmemoryPool pool;
	CUdeviceptr ptr;
	int fd;

	(void)state;
	OK(cuMemAlloc_v2(&ptr, 1));
	OK(cuIpcGetMemHandle(&ipc, ptr));
	OK(cuMemExportToShareableHandle(&fabric, handle, FABRIC, 0));
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemPoolExportToShareableHandle(&fd, pool, FD, 0));
	actor_start(&actor, "blind", one);
	send_bytes(actor.sock, &ipc);
	send_bytes(actor.sock, &fabric);
	send_number(actor.sock, 0, fd);
	actor_ok(&actor);
	close(fd);
	OK(cuMemPoolDestroy(pool));
	OK(cuMemRelease(handle));
	OK(cuMemFree_v2(ptr));
}

const struct role peer_roles[] = {
	{"opener", role_opener},
	{"owner", role_owner},
	{"holder", role_holder},
	{"pool_importer", role_pool_importer},
	{"blind", role_blind},
	{NULL, NULL},
};

int peer_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ipc),
		cmocka_unit_test(test_ipc_killed_owner),
		cmocka_unit_test(test_ipc_holders),
		cmocka_unit_test(test_pool_share),
		cmocka_unit_test(test_invisible),
	};

	return cmocka_run_group_tests_name("softcuda peers", tests, NULL, NULL);
}
