/* SPDX-License-Identifier: BSD-2-Clause */
/* control/driver/translate.c with a driver of ours: each function gives it the handles that the
 * application means. And fork() while threads are in these functions. */
#include "control/driver/translate.c"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <control/orders/control.h>
#include <control/driver/gate.h>
#include <control/memory/handles.h>
#include <control/driver/names.h>
#include <control/driver/thread.h>
#include <control/driver/translate.h>
#include <control/plain/plain.h>

/* An allocation that the application knows by one handle goes away. */
static int park(uint64_t real, uint64_t token, uint32_t references)
{
	const struct lien_wire_handle handle = {.value = real, .references = references};

	return lien_names_park(&handle, 1, token);
}

/* --- the driver: it notes which handles it was given, and gives out `next` -------------------- */

static __thread uint64_t given[4];
static __thread unsigned given_count;
static __thread uint64_t next;
static __thread bool waited_for; /* who shuts the gate waits for the call to leave the driver */

static CUresult take(unsigned count, const uint64_t *handles)
{
	waited_for = !lien_translate_idle();
	given_count = count;
	memcpy(given, handles, count * sizeof(*handles));
	return CUDA_SUCCESS;
}

#define TAKE(...)                                                                                  \
	take(sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), (uint64_t[]){__VA_ARGS__})

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)size, (void)prop, (void)flags;
	*handle = next;
	return CUDA_SUCCESS;
}

static CUresult import(
	CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	(void)os_handle, (void)type;
	*handle = next;
	return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *addr)
{
	(void)addr;
	*handle = next;
	return CUDA_SUCCESS;
}

static CUresult multicast_create(
	CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	(void)prop;
	*handle = next;
	return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	return TAKE(handle);
}

static CUresult map(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)ptr, (void)size, (void)offset, (void)flags;
	return TAKE(handle);
}

static CUresult map_array(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
	unsigned i;

	(void)stream;
	waited_for = !lien_translate_idle();
	given_count = count;
	for (i = 0; list && i < count; i++)
		given[i] = list[i].memHandle.memHandle;
	return CUDA_SUCCESS;
}

static CUresult export(void *shareable, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	(void)shareable, (void)type, (void)flags;
	return TAKE(handle);
}

static CUresult properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	(void)prop;
	return TAKE(handle);
}

static CUresult add_device(CUmemGenericAllocationHandle multicast, CUdevice device)
{
	(void)device;
	return TAKE(multicast);
}

static CUresult bind_memory(CUmemGenericAllocationHandle multicast, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	assert_true(offset == 1 && memory_offset == 2 && size == 3 && flags == 4);
	return TAKE(multicast, memory);
}

static CUresult bind_memory_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
	size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	assert_int_equal(device, 5);
	return bind_memory(multicast, offset, memory, memory_offset, size, flags);
}

static CUresult bind_address(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr ptr,
	size_t size, unsigned long long flags)
{
	assert_true(offset == 1 && ptr == 2 && size == 3 && flags == 4);
	return TAKE(multicast);
}

static CUresult bind_address_v2(CUmemGenericAllocationHandle multicast, CUdevice device,
	size_t offset, CUdeviceptr ptr, size_t size, unsigned long long flags)
{
	assert_int_equal(device, 5);
	return bind_address(multicast, offset, ptr, size, flags);
}

static CUresult unbind(
	CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, size_t size)
{
	assert_true(device == 5 && offset == 1 && size == 3);
	return TAKE(multicast);
}

static const struct {
	const char *name;
	void *function;
} functions[] = {
	{"cuMemCreate", create},
	{"cuMemRelease", release},
	{"cuMemRetainAllocationHandle", retain},
	{"cuMemMap", map},
	{"cuMemMapArrayAsync", map_array},
	{"cuMemMapArrayAsync_ptsz", map_array},
	{"cuMemExportToShareableHandle", export},
	{"cuMemImportFromShareableHandle", import},
	{"cuMemGetAllocationPropertiesFromHandle", properties},
	{"cuMulticastCreate", multicast_create},
	{"cuMulticastAddDevice", add_device},
	{"cuMulticastBindMem", bind_memory},
	{"cuMulticastBindMem_v2", bind_memory_v2},
	{"cuMulticastBindAddr", bind_address},
	{"cuMulticastBindAddr_v2", bind_address_v2},
	{"cuMulticastUnbind", unbind},
};

#define REALS 64

static struct {
	struct lien_driver driver;
	void *real[REALS];
} driver, empty;

static const struct lien_driver *loaded = &driver.driver;

const struct lien_driver *lien_driver_called(void)
{
	return loaded;
}

static void fill_driver(void)
{
	const size_t reals = __stop_lien_real_names - __start_lien_real_names;

	assert_true(reals <= REALS);
	for (size_t i = 0; i < reals; i++)
		for (size_t j = 0; j < sizeof(functions) / sizeof(functions[0]); j++)
			if (!strcmp(functions[j].name, __start_lien_real_names[i]))
				driver.real[i] = functions[j].function;
}

static const char *only; /* what a driver has that lacks others */

void *lien_driver_symbol(const char *name)
{
	return only && !strcmp(name, only) ? (void *)release : NULL;
}

static unsigned parents LIEN_ZERO_IN_CHILD; /* 1 in the parent */

/* As start.c. */
static void after_in_child(void)
{
	memset(__start_lien_zero_in_child, 0,
		__stop_lien_zero_in_child - __start_lien_zero_in_child);
}

/* --- handles ---------------------------------------------------------------------------------- */

static int setup(void **state)
{
	(void)state;
	lien_names_clear();
	given_count = 0;
	fill_driver();
	loaded = &driver.driver;
	return 0;
}

/* What the application knows as 1 and 2 are 2 and 1 to the driver. */
static void exchange(void)
{
	assert_int_equal(park(1, 101, 1), 0);
	assert_int_equal(park(2, 102, 1), 0);
	lien_names_revive(101, 2);
	lien_names_revive(102, 1);
}

static void expect_given(CUresult result, unsigned count, uint64_t first, uint64_t second)
{
	assert_int_equal(result, CUDA_SUCCESS);
	assert_int_equal(given_count, count);
	assert_int_equal(given[0], first);
	if (count > 1)
		assert_int_equal(given[1], second);
	assert_true(lien_translate_idle());
}

/* What means memory by handle. */
static void expect(CUresult result, unsigned count, uint64_t first, uint64_t second)
{
	assert_true(waited_for);
	expect_given(result, count, first, second);
}

/* What means memory by address: the agent may hold it in the driver. */
static void expect_held(CUresult result, unsigned count, uint64_t first, uint64_t second)
{
	assert_false(waited_for);
	expect_given(result, count, first, second);
}

static void test_passed(void **state)
{
	CUarrayMapInfo list[2] = {{.memOperationType = CU_MEM_OPERATION_TYPE_MAP},
		{.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP}};
	CUmemAllocationProp prop;
	int fd;

	(void)state;
	exchange();
	expect(lien_translate_cuMemMap(0, 0, 0, 1, 0), 1, 2, 0);
	expect(lien_translate_cuMemExportToShareableHandle(&fd, 2, 1, 0), 1, 1, 0);
	expect(lien_translate_cuMemGetAllocationPropertiesFromHandle(&prop, 1), 1, 2, 0);
	expect(lien_translate_cuMulticastAddDevice(1, 5), 1, 2, 0);
	expect(lien_translate_cuMulticastBindMem(1, 1, 2, 2, 3, 4), 2, 2, 1);
	expect(lien_translate_cuMulticastBindMem_v2(2, 5, 1, 1, 2, 3, 4), 2, 1, 2);
	expect_held(lien_translate_cuMulticastBindAddr(1, 1, 2, 3, 4), 1, 2, 0);
	expect_held(lien_translate_cuMulticastBindAddr_v2(2, 5, 1, 2, 3, 4), 1, 1, 0);
	expect(lien_translate_cuMulticastUnbind(1, 5, 1, 3), 1, 2, 0);
	list[0].memHandle.memHandle = 1;
	list[1].memHandle.memHandle = 2; /* is not looked at */
	expect(lien_translate_cuMemMapArrayAsync(list, 2, NULL), 2, 2, 2);
	expect(lien_translate_cuMemMapArrayAsync_ptsz(list, 1, NULL), 1, 2, 0);
	assert_int_equal(list[0].memHandle.memHandle, 1); /* the caller's own */
	given[0] = 0;
	expect(lien_translate_cuMemMapArrayAsync(NULL, 2, NULL), 2, 0, given[1]);
	expect(lien_translate_cuMemRelease(2), 1, 1, 0);
	expect(lien_translate_cuMemRelease(1), 1, 2, 0);
}

static void test_told(void **state)
{
	CUmemGenericAllocationHandle handle, first;

	(void)state;
	assert_int_equal(park(1, 101, 1), 0);
	lien_names_revive(101, 9);
	next = 1; /* the driver gives out what the application knows as something else */
	assert_int_equal(lien_translate_cuMulticastCreate(&first, NULL), 0);
	assert_true(first != 1);
	expect(lien_translate_cuMulticastAddDevice(first, 5), 1, 1, 0);
	expect(lien_translate_cuMulticastBindMem(first, 1, 1, 2, 3, 4), 2, 1, 9);
	expect(lien_translate_cuMemRelease(first), 1, 1, 0);
	assert_int_equal(lien_translate_cuMemCreate(&handle, 1, NULL, 0), 0);
	assert_true(handle != 1 && handle != first);
	expect(lien_translate_cuMemRelease(handle), 1, 1, 0);
	assert_int_equal(lien_translate_cuMemImportFromShareableHandle(&handle, NULL, 1), 0);
	assert_true(handle != 1);
	next = 9;
	assert_int_equal(lien_translate_cuMemRetainAllocationHandle(&handle, NULL), 0);
	assert_int_equal(handle, 1);
}

/* One too many: the driver refuses it, instead of releasing what has that value now. */
static void test_released_too_often(void **state)
{
	(void)state;
	exchange();
	expect(lien_translate_cuMemRelease(1), 1, 2, 0);
	expect(lien_translate_cuMemRelease(1), 1, 2, 0);
}

static void test_no_driver(void **state)
{
	CUmemGenericAllocationHandle handle;

	(void)state;
	loaded = NULL;
	assert_int_equal(
		lien_translate_cuMemCreate(&handle, 1, NULL, 0), CUDA_ERROR_NOT_INITIALIZED);
	assert_int_equal(lien_translate_cuMemRelease(1), CUDA_ERROR_NOT_INITIALIZED);
	only = "cuMemRelease";
	expect(lien_translate_cuMemRelease(5), 1, 5, 0);
	only = NULL;
	loaded = &empty.driver;
	assert_int_equal(lien_translate_cuMulticastUnbind(1, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
	assert_true(lien_translate_idle());
}

/* --- threads that wait -------------------------------------------------------------------------
 */

/* Returns the handle that the driver was given. */
static void *map_it(void *arg)
{
	assert_int_equal(lien_translate_cuMemMap(0, 0, 0, (uintptr_t)arg, 0), 0);
	return (void *)(uintptr_t)given[0];
}

/* A transaction ends, and the gate stays shut because other memory is away: who named this by its
 * handle goes on. */
static void test_waits_no_longer_than_it_must(void **state)
{
	CUmemGenericAllocationHandle handle;
	pthread_t thread;
	void *result;

	(void)state;
	next = 5;
	assert_int_equal(lien_translate_cuMemCreate(&handle, 1, NULL, 0), 0);
	assert_int_equal(park(1, 101, 1), 0);
	lien_gate_shut();
	lien_translate_hold_all(1);
	assert_true(lien_translate_wait_idle());
	assert_int_equal(pthread_create(&thread, NULL, map_it, (void *)(uintptr_t)handle), 0);
	usleep(50000); /* it waits by now, as a rule */
	alarm(10);
	lien_translate_hold_all(0);
	assert_int_equal(pthread_join(thread, &result), 0);
	alarm(0);
	assert_int_equal((uintptr_t)result, 5);
	assert_true(lien_gate_is_shut());
	/* What is away itself is waited for. */
	assert_int_equal(pthread_create(&thread, NULL, map_it, (void *)1), 0);
	usleep(50000);
	lien_names_revive(101, 9);
	alarm(10);
	lien_translate_hold_all(0);
	assert_int_equal(pthread_join(thread, &result), 0);
	alarm(0);
	assert_int_equal((uintptr_t)result, 9);
	lien_gate_open();
}

/* --- fork() ----------------------------------------------------------------------------------- */

#define THREADS 4
#define FORKS	200
#define HANG_S	60 /* what does not come to its end is ended */

static bool over;

/* As the control thread: lets threads pass that never come. */
static void *pass(void *arg)
{
	const uint32_t tid = syscall(SYS_gettid);

	while (!__atomic_load_n(&over, __ATOMIC_RELAXED))
		lien_gate_pass(&tid, 1);
	return arg;
}

/* Looks names up, adds and forgets some. */
static void *call(void *arg)
{
	const uint64_t base = 1000 + 1000 * (uintptr_t)arg;
	CUmemGenericAllocationHandle handle;

	while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
		next = base;
		lien_translate_cuMemCreate(&handle, 1, NULL, 0);
		lien_translate_cuMemMap(0, 0, 0, handle, 0);
		park(base, base, 1);
		lien_names_revive(base, base + 1);
		lien_translate_cuMemRelease(handle);
	}
	return NULL;
}

/* A failure by its number. */
static int child(void)
{
	const uint32_t tid = syscall(SYS_gettid);
	CUmemGenericAllocationHandle handle;

	alarm(HANG_S);
	if (parents)
		return 1;
	if (!lien_translate_idle() || lien_gate_is_shut())
		return 2;
	next = 77777;
	if (lien_translate_cuMemCreate(&handle, 1, NULL, 0) || handle != 77777)
		return 3;
	if (lien_translate_cuMemMap(0, 0, 0, handle, 0) || given[0] != handle)
		return 4;
	/* It cannot use the parent's handles, nor has names of them. */
	if (lien_translate_cuMemMap(0, 0, 0, 1, 0) || given[0] != 1)
		return 5;
	if (lien_translate_cuMemRelease(handle) || given[0] != handle)
		return 6;
	lien_gate_shut();
	lien_gate_pass(&tid, 1);
	lien_gate_wait();
	lien_gate_open();
	return 0;
}

/* Another library gives something back when its process forks. */
static void release_in_handler(void)
{
	alarm(HANG_S);
	lien_translate_cuMemRelease(3);
	alarm(0);
}

static void test_fork(void **state)
{
	pthread_t threads[THREADS];
	unsigned i, failed = 0;
	int status;

	(void)state;
	parents = 1;
	exchange();
	pthread_atfork(release_in_handler, release_in_handler, NULL);
	pthread_atfork(NULL, NULL, after_in_child);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, i ? call : pass, (void *)(uintptr_t)i),
			0);
	for (i = 0; i < FORKS && !failed; i++) {
		pid_t pid = fork();

		if (!pid) {
			status = child();
			/* At an _exit() valgrind would look for what a child forgets on purpose. */
			if (!status)
				execl("/bin/true", "true", NULL);
			_exit(status);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (status)
			print_error("fork %u: status %#x\n", i, status);
		failed += status != 0;
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(failed, 0);
	assert_int_equal(parents, 1); /* not in the parent */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_passed, setup),
		cmocka_unit_test_setup(test_told, setup),
		cmocka_unit_test_setup(test_released_too_often, setup),
		cmocka_unit_test_setup(test_no_driver, setup),
		cmocka_unit_test_setup(test_waits_no_longer_than_it_must, setup),
		cmocka_unit_test_setup(test_fork, setup),
	};

	return cmocka_run_group_tests_name("translate", tests, NULL, NULL);
}
