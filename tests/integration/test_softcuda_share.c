/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory between processes: export, import, what holds it, and what death gives back. */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/kcmp.h>

#include "test_softcuda.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static CUmemGenericAllocationHandle import(int fd)
{
	CUmemGenericAllocationHandle handle = 0;

	CHECK(!cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, FD));
	return handle;
}

static bool same_file(int a, int b)
{
	return !syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b);
}

static void test_export(void **state)
{
	CUmemGenericAllocationHandle handle = make(PIECE, FD);
	CUmemGenericAllocationHandle closed = make(PIECE, CU_MEM_HANDLE_TYPE_NONE), again;
	int first, second, other;

	(void)state;
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&first, closed, FD, 0));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&first, handle, FD, 1));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(NULL, handle, FD, 0));
	FAILS(INVALID_VALUE, cuMemExportToShareableHandle(&first, handle, 0, 0));
	FAILS(INVALID_VALUE,
		cuMemExportToShareableHandle(&first, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
	OK(cuMemExportToShareableHandle(&first, handle, FD, 0));
	OK(cuMemExportToShareableHandle(&second, handle, FD, 0));
	assert_false(same_file(first, second));
	other = dup(first);
	assert_true(same_file(first, other));
	close(other);
	assert_true(fcntl(first, F_GETFD) & FD_CLOEXEC);

	again = import(first);
	assert_true(again != handle);
	for (int fd = 3; fd < 4096; fd++) /* nor kept: its life shows who holds the export */
		assert_true(fd == first || !same_file(fd, first));
	assert_true(fcntl(first, F_GETFD) >= 0); /* not consumed */
	OK(cuMemRelease(again));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(closed));
	again = import(second); /* the exported fds live on */
	OK(cuMemRelease(again));
	close(first);
	close(second);
}

static void test_import_refused(void **state)
{
	CUmemGenericAllocationHandle handle;
	char path[128];
	int fd;

	(void)state;
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1, FD));
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)9999, FD));
	fd = open("/dev/null", O_RDWR);
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, FD));
	close(fd);
	fd = memfd_create("foreign", 0);
	assert_int_equal(ftruncate(fd, PIECE), 0);
	assert_int_equal(fchmod(fd, 01666), 0);
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, FD));
	close(fd);
	/* In the right place, but not made by the driver. */
	snprintf(path, sizeof(path), "%s/devices/0", test_dir);
	fd = open(path, O_TMPFILE | O_RDWR, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, PIECE), 0);
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, FD));
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, 0));
	FAILS(INVALID_VALUE, cuMemImportFromShareableHandle(NULL, (void *)(uintptr_t)fd, FD));
	close(fd);
}

/* Imports what it is sent, reads our mark, leaves its own, and keeps a mapping only. */
static void role_importer(int sock)
{
	CUmemGenericAllocationHandle handle, retained;
	CUmemAllocationProp prop;
	CUdeviceptr ptr;
	uint32_t mark;
	int fd;

	CHECK(!cuInit(0));
	use_device(0);
	CHECK(receive_number(sock, &fd) == 1);
	handle = import(fd);
	CHECK(!close(fd));
	CHECK(!cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	CHECK(prop.type == CU_MEM_ALLOCATION_TYPE_PINNED && !prop.requestedHandleTypes);
	CHECK(prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id == 0);
	CHECK(prop.allocFlags.gpuDirectRDMACapable == 1);
	CHECK(cuMemExportToShareableHandle(&fd, handle, FD, 0) == CUDA_ERROR_INVALID_VALUE);
	ptr = map_somewhere(handle, 4 * PIECE);
	CHECK(cuMemMap(ptr, 5 * PIECE, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemRelease(handle));
	CHECK(!cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)ptr));
	CHECK(retained == handle);
	CHECK(!cuMemRelease(handle));
	CHECK(!cuMemcpyDtoH_v2(&mark, ptr + 3 * PIECE, sizeof(mark)) && mark == 0x1234);
	mark = 0x5678;
	CHECK(!cuMemcpyHtoD_v2(ptr, &mark, sizeof(mark)));
	send_number(sock, free_bytes(), -1);
	receive_number(sock, NULL);
	CHECK(!cuMemcpyDtoH_v2(&mark, ptr, sizeof(mark)) && mark == 0x5678);
	unmap_and_free(ptr, 4 * PIECE);
	send_number(sock, free_bytes(), -1);
	receive_number(sock, NULL);
}

static void test_two_processes(void **state)
{
	CUmemAllocationProp prop = device_prop(0, FD);
	size_t before = free_bytes();
	CUmemGenericAllocationHandle handle;
	struct actor actor;
	uint32_t mark = 0x1234;
	CUdeviceptr ptr;
	int fd;

	(void)state;
	prop.allocFlags.gpuDirectRDMACapable = 1;
	OK(cuMemCreate(&handle, 4 * PIECE, &prop, 0));
	ptr = map_somewhere(handle, 4 * PIECE);
	OK(cuMemcpyHtoD_v2(ptr + 3 * PIECE, &mark, sizeof(mark)));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	actor_start(&actor, "importer", NULL);
	send_number(actor.sock, 1, fd);
	close(fd);
	/* Both see one and the same: bytes and accounts. */
	assert_int_equal(receive_number(actor.sock, NULL), before - 4 * PIECE);
	assert_int_equal(free_bytes(), before - 4 * PIECE);
	OK(cuMemcpyDtoH_v2(&mark, ptr, sizeof(mark)));
	assert_int_equal(mark, 0x5678);
	/* The owner lets go of everything: the importer's mapping holds the memory. */
	OK(cuMemRelease(handle));
	unmap_and_free(ptr, 4 * PIECE);
	assert_int_equal(free_bytes(), before - 4 * PIECE);
	send_number(actor.sock, 0, -1);
	assert_int_equal(receive_number(actor.sock, NULL), before);
	assert_int_equal(free_bytes(), before);
	send_number(actor.sock, 0, -1);
	actor_ok(&actor);
}

/* Holds memory in every way there is and waits for its end. */
static void role_victim(int sock)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;
	int fd;

	CHECK(!cuInit(0));
	use_device(0);
	make(PIECE, CU_MEM_HANDLE_TYPE_NONE);
	handle = make(2 * PIECE, FD);
	map_somewhere(handle, 2 * PIECE);
	CHECK(!cuMemRelease(handle));
	CHECK(!cuMemAlloc_v2(&ptr, 3 * PIECE));
	handle = make(4 * PIECE, FD);
	CHECK(!cuMemExportToShareableHandle(&fd, handle, FD, 0));
	send_number(sock, 0, fd);
	pause();
}

static void test_kill(void **state)
{
	size_t before = free_bytes();
	struct actor actor;
	char output[64];
	int fd, status;

	(void)state;
	actor_start(&actor, "victim", NULL);
	receive_number(actor.sock, &fd);
	assert_int_equal(free_bytes(), before - 10 * PIECE);
	assert_int_equal(kill(actor.pid, SIGKILL), 0);
	status = actor_wait(&actor, output, sizeof(output));
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	assert_int_equal(free_bytes(), before - 4 * PIECE); /* the fd that we were sent */
	close(fd);
	assert_int_equal(free_bytes(), before);
}

static void role_forker(int sock)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr, plain, async;
	CUcontext context;
	size_t before;
	char go;
	int status, hold[2], born[2], count;
	pid_t pid;

	(void)sock;
	CHECK(!cuInit(0));
	use_device(0);
	before = free_bytes();
	handle = make(PIECE, FD);
	ptr = map_somewhere(handle, PIECE);
	CHECK(!cuMemAlloc_v2(&plain, PIECE) && !cuMemAllocAsync(&async, PIECE, NULL));
	CHECK(!pipe(hold) && !pipe(born));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		CHECK(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuMemRelease(handle) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuMemUnmap(ptr, PIECE) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(!close(hold[1]));
		CHECK(write(born[1], "b", 1) == 1);
		CHECK(read(hold[0], &go, 1) == 1);
		_exit(0);
	}
	CHECK(!close(born[1]) && read(born[0], &go, 1) == 1);
	/* The child lives, and does not hold what its parent frees. */
	unmap_and_free(ptr, PIECE);
	CHECK(!cuMemRelease(handle));
	CHECK(!cuMemFree_v2(plain) && !cuMemFree_v2(async) && !cuCtxSynchronize());
	CHECK(free_bytes() == before);
	CHECK(write(hold[1], "g", 1) == 1);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
}

static void test_fork(void **state)
{
	(void)state;
	run_role("forker", NULL);
}

const struct role share_roles[] = {
	{"importer", role_importer},
	{"victim", role_victim},
	{"forker", role_forker},
	{NULL, NULL},
};

int share_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_export),
		cmocka_unit_test(test_import_refused),
		cmocka_unit_test(test_two_processes),
		cmocka_unit_test(test_kill),
		cmocka_unit_test(test_fork),
	};

	return cmocka_run_group_tests_name("softcuda share", tests, NULL, NULL);
}
