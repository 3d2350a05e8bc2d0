/* SPDX-License-Identifier: BSD-2-Clause */
/* Initialisation, devices, contexts, plain and host memory. */
#include <sys/mman.h>
#include <sys/stat.h>

#include "test_softcuda.h"

static void role_uninitialised(int sock)
{
	CUmemAllocationProp prop = device_prop(0, CU_MEM_HANDLE_TYPE_NONE);
	CUmemGenericAllocationHandle handle;
	CUcontext context;
	CUdeviceptr ptr;
	int number;

	(void)sock;
	CHECK(cuDeviceGetCount(&number) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuMemCreate(&handle, PIECE, &prop, 0) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuMemAddressReserve(&ptr, PIECE, 0, 0, 0) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuMemAlloc_v2(&ptr, 1) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(cuStreamSynchronize(NULL) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(!cuDriverGetVersion(&number) && number == 13000);
	CHECK(cuInit(1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuDeviceGetCount(&number) == CUDA_ERROR_NOT_INITIALIZED);
	CHECK(!cuInit(0) && !cuInit(0));
	CHECK(!cuDeviceGetCount(&number) && number == 2);
}

/* A job's ranks often see one device each, and call it 0. */
static void role_visible(int sock)
{
	CUmemAllocationProp prop = device_prop(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemGenericAllocationHandle handle;
	CUuuid uuid;
	int count, fd;

	CHECK(!cuInit(0));
	CHECK(!cuDeviceGetCount(&count) && count == 1);
	CHECK(!cuDeviceGetUuid_v2(&uuid, 0) && uuid.bytes[15] == 1);
	CHECK(!cuMemCreate(&handle, 4 * PIECE, &prop, 0));
	prop.location.id = 1;
	CHECK(cuMemCreate(&handle, PIECE, &prop, 0) == CUDA_ERROR_INVALID_DEVICE);
	send_number(sock, 0, -1);
	receive_number(sock, &fd); /* of the device that we do not see */
	CHECK(cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
		      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_ERROR_INVALID_DEVICE);
	receive_number(sock, NULL);
}

/* Both, the second one first. */
static void role_swapped(int sock)
{
	CUuuid uuid, older;
	int count;

	(void)sock;
	CHECK(!cuInit(0));
	CHECK(!cuDeviceGetCount(&count) && count == 2);
	CHECK(!cuDeviceGetUuid_v2(&uuid, 0) && uuid.bytes[15] == 1);
	CHECK(!cuDeviceGetUuid_v2(&uuid, 1) && uuid.bytes[15] == 0);
	CHECK(!cuDeviceGetUuid(&older, 1) && !memcmp(&uuid, &older, sizeof(uuid)));
	CHECK(cuDeviceGetUuid(&uuid, 2) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(cuDeviceGetUuid_v2(NULL, 0) == CUDA_ERROR_INVALID_VALUE);
}

static void role_one_visible(int sock)
{
	CUuuid uuid;
	int count;

	(void)sock;
	CHECK(!cuInit(0));
	CHECK(!cuDeviceGetCount(&count) && count == 1);
	CHECK(!cuDeviceGetUuid_v2(&uuid, 0) && uuid.bytes[15] == 1);
}

static void role_none_visible(int sock)
{
	int count;

	(void)sock;
	CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
	CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
}

static void role_unprivileged(int sock)
{
	int before = receive_number(sock, NULL);
	CUmemGenericAllocationHandle handle;

	CHECK(!setgid(65534) && !setuid(65534));
	CHECK((int)cuInit(0) == before);
	if (before)
		return;
	handle = make(PIECE, CU_MEM_HANDLE_TYPE_NONE);
	CHECK(!cuMemRelease(handle));
}

static void role_size(int sock)
{
	size_t wanted = receive_number(sock, NULL), total;

	CHECK(!cuInit(0));
	CHECK(!cuDeviceTotalMem_v2(&total, 0));
	CHECK(total == wanted);
	use_device(0);
	make(PIECE, CU_MEM_HANDLE_TYPE_NONE);
	send_number(sock, 0, -1);
	receive_number(sock, NULL);
}

static void test_before_init(void **state)
{
	(void)state;
	run_role("uninitialised", NULL);
}

static void test_devices(void **state)
{
	size_t total, free;
	char name[64];
	int value;

	(void)state;
	OK(cuDeviceGetCount(&value));
	assert_int_equal(value, 2);
	FAILS(INVALID_DEVICE, cuDeviceGet(&value, 2));
	FAILS(INVALID_DEVICE, cuDeviceGet(&value, -1));
	FAILS(INVALID_VALUE, cuDeviceGetCount(NULL));
	OK(cuDeviceGetName(name, sizeof(name), 1));
	OK(cuDeviceTotalMem_v2(&total, 0));
	assert_int_equal(total, DEVICE_MEMORY);
	OK(cuMemGetInfo_v2(&free, &total));
	assert_int_equal(total, DEVICE_MEMORY);
	OK(cuDeviceGetAttribute(
		&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
	assert_int_equal(value, 1);
	OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0));
	assert_int_equal(value, 1);
	FAILS(INVALID_VALUE, cuDeviceGetAttribute(&value, 0, 0));
	OK(cuDeviceCanAccessPeer(&value, 0, 1));
	assert_int_equal(value, 1);
	OK(cuDeviceCanAccessPeer(&value, 0, 0));
	assert_int_equal(value, 0);
}

static void test_visible_devices(void **state)
{
	static const char *const one[] = {"CUDA_VISIBLE_DEVICES=1", NULL};
	static const char *const none[] = {"CUDA_VISIBLE_DEVICES=", "LIEN_SOFTCUDA_QUIET=1", NULL};
	static const char *const wrong[] = {"CUDA_VISIBLE_DEVICES=7,0", NULL};
	static const char *const uuid[] = {
		"CUDA_VISIBLE_DEVICES=GPU-6c69656E-2073-6f66-7463-756461000001", NULL};
	static const char *const mixed[] = {
		"CUDA_VISIBLE_DEVICES=1,GPU-6c69656e-2073-6f66-7463-756461000000,GPU-6c", NULL};
	static const char *const vague[] = {
		"CUDA_VISIBLE_DEVICES=GPU-6c69656e", "LIEN_SOFTCUDA_QUIET=1", NULL};
	CUmemGenericAllocationHandle handle;
	struct actor actor;
	size_t zero, one_free;
	int fd;

	(void)state;
	zero = free_bytes();
	use_device(1);
	one_free = free_bytes();
	actor_start(&actor, "visible", one);
	receive_number(actor.sock, NULL);
	assert_int_equal(free_bytes(), one_free - 4 * PIECE);
	use_device(0);
	assert_int_equal(free_bytes(), zero);
	handle = make(PIECE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	send_number(actor.sock, 0, fd);
	send_number(actor.sock, 0, -1);
	actor_ok(&actor);
	close(fd);
	OK(cuMemRelease(handle));
	run_role("none_visible", none);
	run_role("one_visible", uuid);
	run_role("swapped", mixed);
	run_role("none_visible", vague);
	run_role("none_visible", wrong);
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuDevicePrimaryCtxRelease_v2(0));
}

static void test_mounting(void **state)
{
	char variable[128], dir[96], output[512];
	const char *env[] = {variable, "LIEN_SOFTCUDA_MEMORY=64M", NULL};
	const char *grown[] = {variable, "LIEN_SOFTCUDA_MEMORY=96M", NULL};
	struct actor first, second;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/other", test_dir);
	snprintf(variable, sizeof(variable), "LIEN_SOFTCUDA_DIR=%s", dir);

	/* Not mounted and no right to: an error that names the directory. */
	actor_start_captured(&first, "unprivileged", env);
	send_number(first.sock, CUDA_ERROR_NO_DEVICE, -1);
	assert_int_equal(actor_wait(&first, output, sizeof(output)), 0);
	assert_non_null(strstr(output, dir));
	if (!under_valgrind()) /* one line */
		assert_ptr_equal(strchr(output, '\n'), output + strlen(output) - 1);

	/* Mounted by root; while it is in use another size is not forced on it. */
	actor_start(&first, "size", env);
	send_number(first.sock, 64ul << 20, -1);
	receive_number(first.sock, NULL);
	actor_start(&second, "size", grown);
	send_number(second.sock, 64ul << 20, -1);
	receive_number(second.sock, NULL);
	send_number(second.sock, 0, -1);
	actor_ok(&second);
	send_number(first.sock, 0, -1);
	actor_ok(&first);

	/* Empty: the new size holds. */
	actor_start(&first, "size", grown);
	send_number(first.sock, 96ul << 20, -1);
	receive_number(first.sock, NULL);
	send_number(first.sock, 0, -1);
	actor_ok(&first);

	/* Mounted: others may use it. */
	assert_int_equal(chmod(test_dir, 0755), 0);
	actor_start(&first, "unprivileged", grown);
	send_number(first.sock, CUDA_SUCCESS, -1);
	actor_ok(&first);
	unmount_devices(dir);
}

static void test_contexts(void **state)
{
	CUcontext primary, made, current;
	unsigned int flags;
	CUdevice device;
	CUdeviceptr ptr;
	size_t size;
	int active;

	(void)state;
	OK(cuCtxPopCurrent_v2(NULL));
	FAILS(INVALID_CONTEXT, cuCtxPopCurrent_v2(&current));
	OK(cuCtxGetCurrent(&current));
	assert_null(current);
	FAILS(INVALID_CONTEXT, cuMemAlloc_v2(&ptr, 1));
	FAILS(INVALID_CONTEXT, cuMemGetAddressRange_v2(&ptr, &size, 4096));
	FAILS(INVALID_CONTEXT, cuMemGetInfo_v2(&size, &size));
	FAILS(INVALID_CONTEXT, cuCtxSynchronize());
	FAILS(INVALID_CONTEXT, cuMemcpyHtoD_v2(4096, &size, 1));
	FAILS(INVALID_CONTEXT, cuCtxGetDevice(&device));
	OK(cuMemRelease(make(PIECE, CU_MEM_HANDLE_TYPE_NONE))); /* the VMM calls need none */

	OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	assert_int_equal(active, 0);
	FAILS(INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
	OK(cuDevicePrimaryCtxRetain(&primary, 1));
	OK(cuDevicePrimaryCtxRetain(&current, 1));
	assert_ptr_equal(primary, current);
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	assert_int_equal(active, 1);

	OK(cuCtxPushCurrent_v2(primary));
	OK(cuCtxGetDevice(&device));
	assert_int_equal(device, 1);
	size = free_bytes();
	OK(cuMemAlloc_v2(&ptr, 1));
	OK(cuCtxCreate_v2(&made, 0, 0));
	OK(cuCtxGetDevice(&device));
	assert_int_equal(device, 0);
	FAILS(INVALID_CONTEXT, cuCtxDestroy_v2(primary));
	OK(cuCtxDestroy_v2(made));
	OK(cuCtxGetCurrent(&current));
	assert_ptr_equal(current, primary);
	FAILS(INVALID_CONTEXT, cuCtxSetCurrent(made));
	FAILS(INVALID_CONTEXT, cuCtxPushCurrent_v2((CUcontext)&size));
	assert_int_equal(free_bytes(), size - PIECE);

	/* The last release resets the context: its memory goes with it. */
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
	assert_int_equal(active, 0);
	FAILS(CONTEXT_IS_DESTROYED, cuCtxSynchronize());
	OK(cuDevicePrimaryCtxRetain(&current, 1));
	assert_int_equal(free_bytes(), size);
	FAILS(INVALID_VALUE, cuMemFree_v2(ptr));
	OK(cuDevicePrimaryCtxRelease_v2(1));
	OK(cuCtxSetCurrent(NULL));
	use_device(0);
}

static void test_memory(void **state)
{
	size_t before = free_bytes(), size;
	CUdeviceptr ptr, base;
	char out[8] = "";
	unsigned int type;

	(void)state;
	FAILS(INVALID_VALUE, cuMemAlloc_v2(&ptr, 0));
	FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&ptr, DEVICE_MEMORY + 1));
	FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&ptr, SIZE_MAX));
	OK(cuMemAlloc_v2(&ptr, PIECE + 5));
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	OK(cuMemGetAddressRange_v2(&base, &size, ptr + PIECE));
	assert_int_equal(base, ptr);
	assert_int_equal(size, PIECE + 5);
	FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, ptr + PIECE + 5));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
	assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
	OK(cuMemcpyHtoD_v2(ptr + PIECE, "12345", 5));
	OK(cuMemcpyDtoH_v2(out, ptr + PIECE, 5));
	assert_string_equal(out, "12345");
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(out, ptr + PIECE, 6));
	FAILS(INVALID_VALUE, cuMemFree_v2(ptr + PIECE));
	FAILS(INVALID_VALUE, cuMemUnmap(ptr, 2 * PIECE));
	FAILS(INVALID_VALUE, cuMemAddressFree(ptr, 2 * PIECE));
	OK(cuMemFree_v2(ptr));
	FAILS(INVALID_VALUE, cuMemFree_v2(ptr));
	OK(cuMemFree_v2(0));
	FAILS(INVALID_VALUE, cuMemcpyDtoH_v2(out, ptr, 1));
	assert_int_equal(free_bytes(), before);
}

static void test_host_memory(void **state)
{
	char *ours = malloc(3 * 4096), *gone;
	size_t size;
	CUdeviceptr base;
	void *ptr;

	(void)state;
	OK(cuMemHostAlloc(&ptr, 5000, CU_MEMHOSTALLOC_PORTABLE));
	memset(ptr, 1, 5000);
	OK(cuMemGetAddressRange_v2(&base, &size, (uintptr_t)ptr + 1));
	assert_int_equal(base, (uintptr_t)ptr);
	FAILS(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(ptr, 100, 0));
	FAILS(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(ptr));
	OK(cuMemFreeHost(ptr));
	FAILS(INVALID_VALUE, cuMemFreeHost(ptr));

	OK(cuMemHostRegister_v2(ours, 2 * 4096, CU_MEMHOSTREGISTER_PORTABLE));
	FAILS(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(ours, 2 * 4096, 0));
	FAILS(HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(ours + 4096, 2 * 4096, 0));
	FAILS(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(ours + 1));
	FAILS(INVALID_VALUE, cuMemFreeHost(ours));
	OK(cuMemHostUnregister(ours));
	FAILS(HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(ours));
	FAILS(INVALID_VALUE, cuMemHostRegister_v2(NULL, 1, 0));
	FAILS(INVALID_VALUE, cuMemHostRegister_v2(ours, 0, 0));
	gone = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(gone, 4096);
	FAILS(INVALID_VALUE, cuMemHostRegister_v2(gone, 4096, 0));
	free(ours);
}

const struct role device_roles[] = {
	{"uninitialised", role_uninitialised},
	{"visible", role_visible},
	{"none_visible", role_none_visible},
	{"one_visible", role_one_visible},
	{"swapped", role_swapped},
	{"unprivileged", role_unprivileged},
	{"size", role_size},
	{NULL, NULL},
};

int device_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_before_init),
		cmocka_unit_test(test_devices),
		cmocka_unit_test(test_visible_devices),
		cmocka_unit_test(test_mounting),
		cmocka_unit_test(test_contexts),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_host_memory),
	};

	return cmocka_run_group_tests_name("softcuda devices", tests, NULL, NULL);
}
