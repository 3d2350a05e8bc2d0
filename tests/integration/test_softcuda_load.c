/* SPDX-License-Identifier: BSD-2-Clause */
/* Misuse and load: stale handles that abort, thousands of allocations, many threads. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "test_softcuda.h"

#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

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
		CHECK(!cuMemUnmap(ptr, PIECE));
		cuMemRelease(handle);
		break;
	case 1:
		cuMemExportToShareableHandle(&(int){0}, handle, FD, 0);
		break;
	case 2:
		cuMemMap(ptr, PIECE, 0, 77, 0);
		break;
	default: /* no fault: must not abort */
		CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE); /* and mapped */
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

/* Strict: nothing is given out twice. */
static void role_unique(int sock)
{
	CUmemGenericAllocationHandle last = 0, handle;
	CUdeviceptr ptr, before = 0;
	CUstream stream, stale = NULL;

	CHECK(!cuInit(0));
	use_device(0);
	for (int i = 0; i < 1000; i++) {
		handle = make(PIECE, FD);
		CHECK(handle > last);
		last = handle;
		ptr = map_somewhere(handle, PIECE);
		CHECK(ptr != before);
		before = ptr;
		unmap_and_free(ptr, PIECE);
		CHECK(!cuMemRelease(handle));
		CHECK(!cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) && stream != stale);
		CHECK(!stale || cuStreamQuery(stale) == CUDA_ERROR_INVALID_HANDLE);
		stale = stream;
		CHECK(!cuStreamDestroy_v2(stream));
	}
	send_number(sock, 0, -1);
	*(volatile char *)ptr = 1;
}

static void test_strict_unique(void **state)
{
	static const char *const strict[] = {"LIEN_SOFTCUDA_STRICT=1", NULL};
	struct actor actor;
	char output[512];
	int status;

	(void)state;
	actor_start_captured(&actor, "unique", strict);
	receive_number(actor.sock, NULL);
	status = actor_wait(&actor, output, sizeof(output));
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
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
	if (limit.rlim_max < count + 64 || under_valgrind())
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

const struct role load_roles[] = {
	{"stale", role_stale},
	{"unique", role_unique},
	{"many", role_many},
	{NULL, NULL},
};

int load_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strict),
		cmocka_unit_test(test_strict_unique),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests_name("softcuda load", tests, NULL, NULL);
}
