/* SPDX-License-Identifier: BSD-2-Clause */
/* Handles of all shapes: aliases, parts, many devices, host memory, fabric handles. */
#include <sys/stat.h>

#include "test_softcuda.h"

#define NONE   CU_MEM_HANDLE_TYPE_NONE
#define FD     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC
#define RW     CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* Several mappings of one handle, some shorter than it, alive without it; each its own access. */
static void test_aliases(void **state)
{
	CUmemAccessDesc both[2] = {device_access(0, RW), device_access(1, RW)};
	CUmemGenericAllocationHandle handle = make(4 * PIECE, NONE), got;
	size_t before = free_bytes();
	unsigned long long flags;
	CUdeviceptr whole, part;

	(void)state;
	whole = map_somewhere(handle, 4 * PIECE);
	OK(cuMemAddressReserve(&part, 4 * PIECE, 0, 0, 0));
	FAILS(INVALID_VALUE, cuMemMap(part, PIECE, PIECE, handle, 0)); /* "must be zero" */
	OK(cuMemMap(part, PIECE, 0, handle, 0));
	OK(cuMemMap(part + PIECE, 2 * PIECE, 0, handle, 0));
	OK(cuMemSetAccess(part, 3 * PIECE, both, 2));
	assert_int_equal(free_bytes(), before);
	OK(cuMemRelease(handle));
	write_mark(part + PIECE, 0x11); /* the allocation's first bytes, all three times */
	assert_int_equal(read_mark(part), 0x11);
	assert_int_equal(read_mark(whole), 0x11);
	write_mark(whole + PIECE, 0x22);
	assert_int_equal(read_mark(part + 2 * PIECE), 0x22);
	OK(cuMemGetAccess(&flags, &both[1].location, whole));
	assert_int_equal(flags, 0);
	OK(cuMemGetAccess(&flags, &both[1].location, part));
	assert_int_equal(flags, RW);
	use_device(1);
	FAILS(INVALID_VALUE, cuMemsetD8_v2(whole, 0, 1));
	OK(cuMemsetD8_v2(part + PIECE, 0, 1));
	use_device(0);
	unmap_and_free(whole, 4 * PIECE);
	OK(cuMemRetainAllocationHandle(&got, (void *)(uintptr_t)(part + 2 * PIECE)));
	assert_int_equal(got, handle);
	OK(cuMemUnmap(part + PIECE, 2 * PIECE));
	OK(cuMemUnmap(part, PIECE));
	assert_int_equal(free_bytes(), before);
	OK(cuMemRelease(handle));
	assert_int_equal(free_bytes(), before + 4 * PIECE);
	OK(cuMemAddressFree(part, 4 * PIECE));
}

static void test_host_fabric(void **state)
{
	CUmemAllocationProp prop = device_prop(0, FABRIC), read;
	CUmemGenericAllocationHandle handle, copy;
	size_t before = free_bytes();
	CUmemFabricHandle fabric;
	CUdeviceptr ptr, alias;

	(void)state;
	prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 3};
	OK(cuMemCreate(&handle, PIECE, &prop, 0));
	OK(cuMemExportToShareableHandle(&fabric, handle, FABRIC, 0));
	OK(cuMemImportFromShareableHandle(&copy, &fabric, FABRIC));
	OK(cuMemGetAllocationPropertiesFromHandle(&read, copy));
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	assert_memory_equal(&read, &prop, sizeof(prop));
	ptr = map_somewhere(handle, PIECE);
	alias = map_somewhere(copy, PIECE);
	write_mark(ptr, 0x66);
	assert_int_equal(read_mark(alias), 0x66);
	assert_int_equal(free_bytes(), before);
	unmap_and_free(ptr, PIECE);
	unmap_and_free(alias, PIECE);
	OK(cuMemRelease(handle));
	OK(cuMemRelease(copy));
}

static void role_fabric_importer(int sock)
{
	CUmemGenericAllocationHandle handle;
	CUmemFabricHandle fabric;
	CUmemAllocationProp prop;
	CUdeviceptr ptr;
	int fd;

	CHECK(!cuInit(0));
	use_device(0);
	receive_bytes(sock, &fabric);
	CHECK(!cuMemImportFromShareableHandle(&handle, &fabric, FABRIC));
	CHECK(!cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	CHECK(!prop.requestedHandleTypes && prop.location.id == 0);
	ptr = map_somewhere(handle, 2 * PIECE);
	CHECK(read_mark(ptr + PIECE) == 0x99);
	write_mark(ptr, 0x100);
	/* What was imported cannot be exported again. */
	CHECK(cuMemExportToShareableHandle(&fd, handle, FD, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemExportToShareableHandle(&fabric, handle, FABRIC, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemRelease(handle));
	send_number(sock, 0, -1);
	receive_number(sock, NULL);
	CHECK(read_mark(ptr) == 0x100);
}

static void test_fabric(void **state)
{
	CUmemAllocationProp prop = device_prop(0, FABRIC | FD);
	CUmemGenericAllocationHandle handle, copy, plain = make(PIECE, FD);
	size_t before = free_bytes();
	CUmemFabricHandle fabric, again;
	struct actor actor;
	CUdeviceptr ptr;

	(void)state;
	OK(cuMemCreate(&handle, 2 * PIECE, &prop, 0));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&fabric, plain, FABRIC, 0));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(NULL, handle, FABRIC, 0));
	OK(cuMemExportToShareableHandle(&fabric, handle, FABRIC, 0));
	OK(cuMemExportToShareableHandle(&again, handle, FABRIC, 0));
	assert_memory_equal(&fabric, &again, sizeof(fabric));
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&copy, NULL, FABRIC));
	memset(&again, 1, sizeof(again));
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&copy, &again, FABRIC));
	OK(cuMemImportFromShareableHandle(&copy, &fabric, FABRIC)); /* in the same process */
	assert_true(copy != handle);
	OK(cuMemRelease(copy));

	ptr = map_somewhere(handle, 2 * PIECE);
	write_mark(ptr + PIECE, 0x99);
	actor_start(&actor, "fabric_importer", NULL);
	send_bytes(actor.sock, &fabric);
	receive_number(actor.sock, NULL);
	assert_int_equal(read_mark(ptr), 0x100);
	unmap_and_free(ptr, 2 * PIECE);
	OK(cuMemRelease(handle));
	assert_int_equal(free_bytes(), before - 2 * PIECE);
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&copy, &fabric, FABRIC)); /* gone */
	send_number(actor.sock, 0, -1);
	actor_ok(&actor);
	assert_int_equal(free_bytes(), before);
	OK(cuMemRelease(plain));
}

/* Whoever comes by a descriptor of the driver's own cannot import what was not made for that. */
static void test_not_by_fd(void **state)
{
	CUmemGenericAllocationHandle handle = make(PIECE, FABRIC), stolen;
	struct stat st;
	int found = 0;

	(void)state;
	for (int fd = 1024; fd < 4096; fd++) {
		if (fstat(fd, &st) || !(st.st_mode & S_ISVTX) || st.st_size != PIECE)
			continue;
		found++;
		FAILS(INVALID_VALUE,
			cuMemImportFromShareableHandle(&stolen, (void *)(uintptr_t)fd, FD));
	}
	assert_int_equal(found, 1);
	OK(cuMemRelease(handle));
}

const struct role shape_roles[] = {
	{"fabric_importer", role_fabric_importer},
	{NULL, NULL},
};

int shape_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_aliases),
		cmocka_unit_test(test_host_fabric),
		cmocka_unit_test(test_fabric),
		cmocka_unit_test(test_not_by_fd),
	};

	return cmocka_run_group_tests_name("softcuda shapes", tests, NULL, NULL);
}
