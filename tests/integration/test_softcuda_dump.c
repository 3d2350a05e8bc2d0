/* SPDX-License-Identifier: BSD-2-Clause */
/* The dump tells all there is and nothing else, by the same numbers in all processes. */
#include <dlfcn.h>
#include <pthread.h>

#include "../../tests/softcuda/dump.h"
#include "test_softcuda.h"

#define FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

struct told {
	struct softcuda_object object[64];
	int count;
};

static int note(const struct softcuda_object *object, void *arg)
{
	struct told *told = arg;

	CHECK(told->count < 64);
	told->object[told->count++] = *object;
	return 0;
}

static int stop(const struct softcuda_object *object, void *arg)
{
	(void)object;
	++*(int *)arg;
	return 42;
}

/* As a test program has to find it: the library is not linked for it. */
static int dump(softcuda_dump_fn fn, void *arg)
{
	int (*of)(softcuda_dump_fn, void *) = dlsym(RTLD_DEFAULT, "softcuda_dump");

	CHECK(of);
	return of(fn, arg);
}

static struct told look(void)
{
	struct told told = {.count = 0};

	CHECK(!dump(note, &told));
	return told;
}

/* The only one of its kind at this address or with this value. */
static const struct softcuda_object *one(
	const struct told *told, enum softcuda_kind kind, uint64_t at)
{
	const struct softcuda_object *found = NULL;

	for (int i = 0; i < told->count; i++) {
		const struct softcuda_object *object = &told->object[i];

		if (object->kind != kind || (object->va != at && object->value != at))
			continue;
		assert_null(found);
		found = object;
	}
	assert_non_null(found);
	return found;
}

static int count(const struct told *told, enum softcuda_kind kind)
{
	int n = 0;

	for (int i = 0; i < told->count; i++)
		n += told->object[i].kind == kind;
	return n;
}

static void test_dump_vmm(void **state)
{
	CUmemAccessDesc both[2] = {
		device_access(0, CU_MEM_ACCESS_FLAGS_PROT_READ), device_access(1, RW)};
	CUmemGenericAllocationHandle handle, copy;
	const struct softcuda_object *object;
	struct told told = look();
	int before = told.count, fd;
	CUdeviceptr ptr;

	(void)state;
	handle = make(2 * PIECE, FD);
	OK(cuMemAddressReserve(&ptr, 4 * PIECE, 0, 0, 0));
	OK(cuMemMap(ptr, PIECE, 0, handle, 0));		    /* shorter than the handle */
	OK(cuMemMap(ptr + PIECE, 2 * PIECE, 0, handle, 0)); /* its alias */
	OK(cuMemSetAccess(ptr, PIECE, both, 2));
	OK(cuMemRetainAllocationHandle(&copy, (void *)(uintptr_t)ptr));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	OK(cuMemImportFromShareableHandle(&copy, (void *)(uintptr_t)fd, FD));
	close(fd);
	told = look();
	assert_int_equal(told.count, before + 5);
	object = one(&told, SOFTCUDA_HANDLE, handle);
	assert_int_equal(object->references, 2);
	assert_int_equal(object->bytes, 2 * PIECE);
	assert_int_equal(object->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
	assert_false(object->imported);
	assert_true(one(&told, SOFTCUDA_HANDLE, copy)->imported);
	assert_int_equal(one(&told, SOFTCUDA_HANDLE, copy)->references, 1);
	assert_int_equal(one(&told, SOFTCUDA_HANDLE, copy)->number, object->number);
	assert_int_equal(one(&told, SOFTCUDA_MAPPING, ptr)->number, object->number);
	assert_int_equal(one(&told, SOFTCUDA_MAPPING, ptr)->bytes, PIECE);
	assert_int_equal(one(&told, SOFTCUDA_MAPPING, ptr)->access[0], both[0].flags);
	assert_int_equal(one(&told, SOFTCUDA_MAPPING, ptr)->access[1], both[1].flags);
	assert_int_equal(one(&told, SOFTCUDA_MAPPING, ptr + PIECE)->access[1], 0);
	assert_int_equal(one(&told, SOFTCUDA_MAPPING, ptr + PIECE)->number, object->number);
	assert_int_equal(one(&told, SOFTCUDA_RANGE, ptr)->bytes, 4 * PIECE);
	OK(cuMemRelease(copy));
	OK(cuMemRelease(handle));
	OK(cuMemRelease(handle));
	told = look(); /* the mappings stay, without a handle */
	assert_int_equal(told.count, before + 3);
	assert_int_equal(count(&told, SOFTCUDA_MAPPING), 2);
	OK(cuMemUnmap(ptr, 3 * PIECE));
	OK(cuMemAddressFree(ptr, 4 * PIECE));
	assert_int_equal(look().count, before);
}

static void test_dump_kinds(void **state)
{
	CUmulticastObjectProp prop = {.numDevices = 1, .size = PIECE};
	CUmemGenericAllocationHandle multicast, memory = make(PIECE, FD);
	CUdeviceptr plain, pitched, managed, async, idle;
	const struct softcuda_object *object;
	char *ours = malloc(4096);
	struct told told = look();
	int before, calls = 0;
	CUmemoryPool pool;
	size_t pitch;
	void *host;

	(void)state;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	told = look();
	before = told.count;
	OK(cuMemAlloc_v2(&plain, 5));
	OK(cuMemAllocPitch_v2(&pitched, &pitch, 100, 10, 4));
	OK(cuMemAllocManaged(&managed, 7, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemAllocAsync(&async, 9, NULL));
	OK(cuMemAllocAsync(&idle, 9, NULL));
	OK(cuMemFreeAsync(idle, NULL));
	OK(cuMemHostAlloc(&host, 300, 0));
	OK(cuMemHostRegister_v2(ours, 4096, 0));
	OK(cuMulticastCreate(&multicast, &prop));
	OK(cuMulticastAddDevice(multicast, 0));
	OK(cuMulticastBindMem(multicast, 0, memory, 0, PIECE, 0));
	told = look();
	assert_int_equal(told.count, before + 8);
	assert_int_equal(one(&told, SOFTCUDA_PLAIN, plain)->bytes, 5);
	assert_int_equal(one(&told, SOFTCUDA_PLAIN, plain)->size, PIECE);
	assert_int_equal(one(&told, SOFTCUDA_PITCH, pitched)->bytes, pitch * 10);
	assert_int_equal(one(&told, SOFTCUDA_MANAGED, managed)->bytes, 7);
	assert_int_equal(one(&told, SOFTCUDA_ASYNC, async)->pool, (uintptr_t)pool);
	assert_int_equal(one(&told, SOFTCUDA_POOL, (uintptr_t)pool)->bytes, 9);
	assert_int_equal(one(&told, SOFTCUDA_POOL, (uintptr_t)pool)->size, 2 * PIECE);
	assert_int_equal(one(&told, SOFTCUDA_HOST, (uintptr_t)host)->bytes, 300);
	assert_int_equal(one(&told, SOFTCUDA_HOST_REGISTERED, (uintptr_t)ours)->bytes, 4096);
	object = one(&told, SOFTCUDA_MULTICAST, multicast);
	assert_int_equal(object->team, 1);
	assert_int_equal(object->team_wanted, 1);
	assert_int_equal(one(&told, SOFTCUDA_BINDING, memory)->multicast, object->number);
	assert_int_equal(one(&told, SOFTCUDA_BINDING, memory)->number,
		one(&told, SOFTCUDA_HANDLE, memory)->number);
	assert_int_equal(dump(stop, &calls), 42);
	assert_int_equal(calls, 1);
	OK(cuMemFree_v2(plain));
	OK(cuMemFree_v2(pitched));
	OK(cuMemFree_v2(managed));
	OK(cuMemFree_v2(async));
	OK(cuMemFreeHost(host));
	OK(cuMemHostUnregister(ours));
	OK(cuMulticastUnbind(multicast, 0, 0, PIECE));
	OK(cuMemRelease(multicast));
	assert_int_equal(look().count, before);
	OK(cuMemRelease(memory));
	OK(cuCtxSynchronize());
	free(ours);
}

static void role_dump_importer(int sock)
{
	CUmemGenericAllocationHandle handle;
	CUipcMemHandle ipc;
	CUdeviceptr ptr;
	struct told told;
	int fd;

	CHECK(dump(note, &told) == -1); /* before cuInit */
	CHECK(!cuInit(0));
	use_device(0);
	CHECK(read(sock, &ipc, sizeof(ipc)) == sizeof(ipc));
	receive_number(sock, &fd);
	CHECK(!cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, FD));
	CHECK(!close(fd));
	CHECK(!cuIpcOpenMemHandle_v2(&ptr, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(!cuIpcOpenMemHandle_v2(&ptr, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	told = look();
	CHECK(told.count == 2);
	send_number(sock, one(&told, SOFTCUDA_HANDLE, handle)->number, -1);
	send_number(sock, one(&told, SOFTCUDA_IPC, ptr)->number, -1);
	send_number(sock, one(&told, SOFTCUDA_IPC, ptr)->references, -1);
	CHECK(one(&told, SOFTCUDA_IPC, ptr)->imported);
}

static void test_dump_numbers(void **state)
{
	CUmemGenericAllocationHandle handle = make(PIECE, FD);
	uint64_t first, second;
	struct actor actor;
	CUipcMemHandle ipc;
	struct told told;
	CUdeviceptr ptr;
	int fd;

	(void)state;
	OK(cuMemAlloc_v2(&ptr, 1));
	OK(cuIpcGetMemHandle(&ipc, ptr));
	OK(cuMemExportToShareableHandle(&fd, handle, FD, 0));
	told = look();
	first = one(&told, SOFTCUDA_HANDLE, handle)->number;
	second = one(&told, SOFTCUDA_PLAIN, ptr)->number;
	assert_true(first && second && first != second);
	actor_start(&actor, "dump_importer", NULL);
	assert_int_equal(write(actor.sock, &ipc, sizeof(ipc)), sizeof(ipc));
	send_number(actor.sock, 0, fd);
	close(fd);
	assert_int_equal(receive_number(actor.sock, NULL), first);
	assert_int_equal(receive_number(actor.sock, NULL), second);
	assert_int_equal(receive_number(actor.sock, NULL), 2);
	actor_ok(&actor);
	OK(cuMemFree_v2(ptr));
	OK(cuMemRelease(handle));
	/* Nor are numbers given out again, on either device. */
	for (int i = 0; i < 200; i++) {
		CUmemAllocationProp prop = device_prop(i & 1, 0);

		OK(cuMemCreate(&handle, PIECE, &prop, 0));
		told = look();
		assert_true(one(&told, SOFTCUDA_HANDLE, handle)->number != first);
		assert_true(one(&told, SOFTCUDA_HANDLE, handle)->number != second);
		OK(cuMemRelease(handle));
	}
}

static _Atomic bool done;

static void *churn(void *arg)
{
	CUdeviceptr ptr;

	(void)arg;
	use_device(0);
	while (!done) {
		CHECK(!cuMemAlloc_v2(&ptr, 1));
		CHECK(!cuMemFree_v2(ptr));
	}
	return NULL;
}

static void test_dump_threads(void **state)
{
	int before = look().count;
	pthread_t thread;

	(void)state;
	done = false;
	assert_int_equal(pthread_create(&thread, NULL, churn, NULL), 0);
	for (int i = 0; i < 500; i++) {
		struct told told = look();

		assert_true(told.count == before || told.count == before + 1);
		assert_int_equal(count(&told, SOFTCUDA_PLAIN), told.count - before);
	}
	done = true;
	pthread_join(thread, NULL);
}

const struct role dump_roles[] = {
	{"dump_importer", role_dump_importer},
	{NULL, NULL},
};

int dump_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dump_vmm),
		cmocka_unit_test(test_dump_kinds),
		cmocka_unit_test(test_dump_numbers),
		cmocka_unit_test(test_dump_threads),
	};

	return cmocka_run_group_tests_name("softcuda dump", tests, NULL, NULL);
}
