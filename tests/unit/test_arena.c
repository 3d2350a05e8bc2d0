// SPDX-License-Identifier: BSD-2-Clause
/* The host arena and --verify, with a driver whose device is host memory. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include <control/orders/control.h>
#include "tests/unit/no_translate.h"

#define MIB   (1ull << 20)
#define STEP  LIEN_WIRE_ARENA_STEP
#define CHUNK (128 * MIB)

static struct lien_control control;
static unsigned registered, refuse_after, refuse_unregister, fail_reads;
static int node, slot;
static char *device_memory;

static CUresult host_register(void *memory, size_t bytes, unsigned int flags)
{
	(void)memory, (void)flags;
	assert_int_equal(bytes % STEP, 0);
	assert_true(bytes <= CHUNK);
	if (registered >= refuse_after)
		return CUDA_ERROR_OUT_OF_MEMORY;
	registered++;
	return CUDA_SUCCESS;
}

static CUresult host_unregister(void *memory)
{
	(void)memory;
	if (refuse_unregister)
		return refuse_unregister;
	registered--;
	return CUDA_SUCCESS;
}

static CUresult to_host(void *host, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)stream;
	if (fail_reads) {
		fail_reads--;
		return CUDA_ERROR_UNKNOWN;
	}
	memcpy(host, (void *)from, bytes);
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult attribute(int *value, CUdevice_attribute which, CUdevice device)
{
	(void)device;
	*value = which == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID    ? node
		 : which == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID    ? 0xee
		 : which == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID ? slot
							      : 0;
	return slot < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Device 0 alone has a primary context. */
static CUresult device_get(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult context_state(CUdevice device, unsigned int *flags, int *active)
{
	*flags = 0;
	*active = device == 0;
	return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *context, CUdevice device)
{
	(void)device;
	*context = (CUcontext)&control;
	return CUDA_SUCCESS;
}

static CUresult context_release(CUdevice device)
{
	(void)device;
	return CUDA_SUCCESS;
}

static CUresult context_set(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
	(void)flags;
	*stream = NULL;
	return CUDA_SUCCESS;
}

static CUresult error_name(CUresult error, const char **name)
{
	(void)error, (void)name;
	return CUDA_ERROR_INVALID_VALUE;
}

static struct lien_driver driver = {
	.cuGetErrorName = error_name,
	.cuDeviceGet = device_get,
	.cuDevicePrimaryCtxGetState = context_state,
	.cuDevicePrimaryCtxRetain = context_retain,
	.cuDevicePrimaryCtxRelease_v2 = context_release,
	.cuCtxSetCurrent = context_set,
	.cuStreamCreate = stream_create,
	.cuStreamDestroy_v2 = synchronize,
	.cuMemHostRegister_v2 = host_register,
	.cuMemHostUnregister = host_unregister,
	.cuMemcpyDtoHAsync_v2 = to_host,
	.cuStreamSynchronize = synchronize,
	.cuDeviceGetAttribute = attribute,
};

static int prepare(uint64_t bytes, uint64_t ordinal)
{
	static struct lien_order order;

	order.header.arg = bytes;
	order.header.arg2 = ordinal;
	control.order = &order;
	return lien_order_prepare(&control);
}

static int setup(void **state)
{
	(void)state;
	memset(&control, 0, sizeof(control));
	control.driver = &driver;
	registered = refuse_unregister = 0;
	refuse_after = ~0u;
	node = -1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	refuse_unregister = 0;
	control.arena.used = 0;
	assert_int_equal(lien_arena_release(&control.arena, &driver), 0);
	assert_int_equal(registered, 0);
	assert_int_equal(control.arena.bytes, 0);
	free(control.arena.chunks);
	free(control.items.item);
	return 0;
}

static void test_grow(void **state)
{
	struct lien_arena *arena = &control.arena;
	uint64_t length = 500 * MIB;

	(void)state;
	assert_int_equal(lien_arena_grow(arena, &driver, 0, 1), 0);
	assert_int_equal(arena->bytes, STEP);
	assert_int_equal(lien_arena_grow(arena, &driver, 0, 1000 * MIB), 0);
	assert_int_equal(arena->bytes, STEP + CHUNK);
	assert_int_equal(lien_arena_reserve(arena, &driver, 0, 300 * MIB), 0);
	assert_int_equal(arena->bytes, LIEN_WIRE_ARENA_ROUND(300 * MIB));
	assert_int_equal(arena->count, 4);
	assert_int_equal(lien_arena_reserve(arena, &driver, 0, 300 * MIB), 0);
	assert_int_equal(registered, 4);
	assert_int_equal(lien_arena_take(arena, 300 * MIB), 0);
	assert_ptr_equal(lien_arena_at(arena, STEP + 5, &length), arena->chunks[1].memory + 5);
	assert_int_equal(length, CHUNK - 5);
	assert_null(lien_arena_at(arena, arena->bytes, &length));
	assert_int_equal(lien_arena_reserve(arena, &driver, 0, LIEN_WIRE_BYTES_MAX + 1), -ENOMEM);
}

/* All or nothing: what was pinned for a reservation that fails goes back, what was there stays. */
static void test_no_room(void **state)
{
	struct lien_arena *arena = &control.arena;

	(void)state;
	assert_int_equal(lien_arena_reserve(arena, &driver, 0, MIB), 0);
	refuse_after = 3;
	assert_int_equal(
		lien_arena_reserve(arena, &driver, 0, 1000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(arena->count, 1);
	assert_int_equal(arena->bytes, STEP);
	assert_int_equal(registered, 1);
}

static void test_release(void **state)
{
	struct lien_arena *arena = &control.arena;

	(void)state;
	assert_int_equal(lien_order_release(&control), 0); /* nothing, and no device */
	assert_int_equal(lien_arena_reserve(arena, &driver, 0, 300 * MIB), 0);
	lien_arena_take(arena, CHUNK + 1);
	assert_int_equal(lien_order_release(&control), 0);
	assert_int_equal(control.reply.arg, 48 * MIB);
	assert_int_equal(arena->bytes, 2 * CHUNK);
	assert_int_equal(lien_order_release(&control), 0);
	assert_int_equal(control.reply.arg, 0);
	arena->used = 0;
	refuse_unregister = CUDA_ERROR_UNKNOWN;
	assert_int_equal(lien_order_release(&control), CUDA_ERROR_UNKNOWN);
	assert_int_equal(arena->bytes, 2 * CHUNK);
	assert_non_null(strstr(control.reply.text, "cuMemHostUnregister"));
	refuse_unregister = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; /* its context has ended */
	assert_int_equal(lien_order_release(&control), 0);
	assert_int_equal(arena->bytes, 0);
	registered = 0;
}

static void test_prepare(void **state)
{
	(void)state;
	assert_int_equal(prepare(200 * MIB, 0), 0);
	assert_int_equal(control.arena.bytes, CHUNK); /* one chunk for each order */
	assert_int_equal(prepare(200 * MIB, 0), 0);
	assert_int_equal(control.arena.bytes, LIEN_WIRE_ARENA_ROUND(200 * MIB));
	assert_int_equal(prepare(200 * MIB, 0), 0);
	assert_int_equal(registered, 2);
	assert_int_equal(prepare(400 * MIB, 1), -ENODEV);
	assert_non_null(strstr(control.reply.text, "no primary context"));
	assert_int_equal(prepare(400 * MIB, 1ull << 32), -EINVAL);
	assert_int_equal(prepare(LIEN_WIRE_BYTES_MAX + 1, 0), -EINVAL);
	refuse_after = 2;
	assert_int_equal(prepare(400 * MIB, 0), CUDA_ERROR_OUT_OF_MEMORY);
	assert_int_equal(registered, 2);
}

static int asked = -1; /* the node that the kernel was asked for last */

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
	const unsigned long *mask;
	long arg[6];
	va_list args;

	va_start(args, number);
	for (unsigned i = 0; i < 6; i++)
		arg[i] = va_arg(args, long);
	va_end(args);
	mask = (const unsigned long *)arg[3];
	for (long i = 0; number == SYS_mbind && i + 1 < arg[4]; i++)
		if (mask[i / 64] >> i % 64 & 1)
			asked = i;
	return __real_syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

/* Returns the node that memory for a device is asked for from; -1: none. None of these is an
 * error. */
static int node_asked(int reported)
{
	node = reported;
	asked = -1;
	assert_int_equal(lien_arena_grow(&control.arena, &driver, 0, 1), 0);
	return asked;
}

static void test_node(void **state)
{
	(void)state;
	assert_int_equal(node_asked(3), 3);
	assert_int_equal(node_asked(0), 0);
	assert_int_equal(node_asked(1000), 1000);
	assert_int_equal(node_asked(5000), -1);
	assert_int_equal(node_asked(-1), -1); /* then sysfs is asked, which has no such device */
	slot = -1;
	assert_int_equal(node_asked(3), -1);
	slot = 0;
	driver.cuDeviceGetAttribute = NULL;
	assert_int_equal(node_asked(3), -1);
	driver.cuDeviceGetAttribute = attribute;
	control.arena.chunks[1].memory[0] = 1;
}

/* --- checksums ---------------------------------------------------------------------------------
 */

/* Returns the checksum of saved bytes, of which the first `before` are in another chunk. */
static uint64_t sum_of(const char *text, size_t size, uint64_t before)
{
	struct lien_wire_item wire = {.token = 1,
		.va = LIEN_WIRE_STEP,
		.bytes = size,
		.allocation_bytes = size,
		.flags = LIEN_WIRE_OWNED,
		.mappings = 1};
	struct lien_item *item;
	uint64_t length, done;

	lien_items_forget(&control.items, ~0u, 0);
	assert_int_equal(lien_items_add(&control.items, &wire, 1, 1), 0);
	assert_int_equal(lien_items_seal(&control.items), 0);
	item = control.items.item;
	item->state = LIEN_ITEM_SAVED;
	item->arena = STEP - before;
	for (done = 0; done < size; done += length) {
		char *host;

		length = size - done;
		host = lien_arena_at(&control.arena, item->arena + done, &length);
		assert_true(done || !before || length == before);
		memcpy(host, text + done, length);
	}
	lien_verify_keep(&control);
	assert_true(item->checked);
	return item->checksum;
}

/* As xxhsum says. */
static void test_checksum(void **state)
{
	char text[1000];

	(void)state;
	assert_int_equal(lien_arena_grow(&control.arena, &driver, 0, STEP), 0);
	assert_int_equal(lien_arena_grow(&control.arena, &driver, 0, STEP), 0);
	assert_true(sum_of("a", 1, 0) == 0xd24ec4f1a98c6e5bull);
	assert_true(sum_of("abc", 3, 0) == 0x44bc2cf5ad770999ull);
	assert_true(
		sum_of("Nobody inspects the spammish repetition", 39, 0) == 0xfbcea83c8a378bf1ull);
	for (unsigned i = 0; i < sizeof(text); i++)
		text[i] = i * i >> 3;
	for (unsigned at = 32; at < sizeof(text); at += 32)
		assert_true(sum_of(text, sizeof(text), at) == sum_of(text, sizeof(text), 0));
	for (unsigned i = 0; i < sizeof(text); i++) {
		uint64_t before = sum_of(text, sizeof(text), 0);

		text[i] ^= 1 << i % 8;
		assert_true(sum_of(text, sizeof(text), 0) != before);
	}
}

#define ITEMS 3
#define BYTES (50 * MIB) /* of each: the third lies across two chunks */

static void saved_again(void)
{
	for (unsigned i = 0; i < ITEMS; i++)
		control.items.item[i].state = LIEN_ITEM_SAVED;
	lien_verify_keep(&control);
	for (unsigned i = 0; i < ITEMS; i++)
		assert_true(control.items.item[i].checked);
}

/* What SAVE leaves behind. */
static void saved(void)
{
	uint64_t length, done;
	unsigned i;

	device_memory = mmap(
		NULL, ITEMS * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(device_memory, MAP_FAILED);
	for (i = 0; i < ITEMS * BYTES; i += 4096)
		device_memory[i] = i >> 12;
	for (i = 0; i < ITEMS; i++) {
		struct lien_wire_item wire = {.token = i + 1,
			.va = (uintptr_t)device_memory + i * BYTES,
			.bytes = BYTES,
			.allocation_bytes = BYTES,
			.flags = LIEN_WIRE_OWNED,
			.places = 1,
			.place = {{CU_MEM_LOCATION_TYPE_DEVICE, 0,
				CU_MEM_ACCESS_FLAGS_PROT_READWRITE}},
			.mappings = 1};

		assert_int_equal(lien_items_add(&control.items, &wire, 1, 1), 0);
	}
	assert_int_equal(lien_items_seal(&control.items), 0);
	assert_int_equal(lien_arena_reserve(&control.arena, &driver, -1,
				 ITEMS * BYTES + LIEN_WIRE_ARENA_BOUNCE),
		0);
	for (i = 0; i < ITEMS; i++) {
		struct lien_item *item = &control.items.item[i];

		item->arena = lien_arena_take(&control.arena, BYTES);
		item->state = LIEN_ITEM_SAVED;
		for (done = 0; done < BYTES; done += length) {
			char *host;

			length = BYTES - done;
			host = lien_arena_at(&control.arena, item->arena + done, &length);
			memcpy(host, (char *)item->wire.va + done, length);
		}
	}
	saved_again();
}

static void host_flip(uint64_t offset)
{
	uint64_t length = 1;

	*(char *)lien_arena_at(&control.arena, offset, &length) ^= 0x10;
}

static void all_in(enum lien_item_state state)
{
	for (unsigned i = 0; i < ITEMS; i++)
		control.items.item[i].state = state;
}

static void expect_damage(int result, unsigned item, const char *words)
{
	assert_int_equal(result, -EBADMSG);
	assert_true(control.reply.arg == control.items.item[item].wire.va);
	assert_non_null(strstr(control.reply.text, words));
	assert_non_null(strstr(control.reply.text, "52428800 bytes"));
	memset(&control.reply, 0, sizeof(control.reply));
}

static void test_verify_host(void **state)
{
	struct lien_item *item;

	(void)state;
	saved();
	item = control.items.item;
	for (unsigned i = 0; i < ITEMS; i++)
		assert_int_equal(lien_verify_host(&control, &item[i]), 0);
	host_flip(3 * BYTES - 1); /* its last byte, in the second chunk */
	assert_int_equal(lien_verify_host(&control, &item[0]), 0);
	assert_int_equal(lien_verify_host(&control, &item[1]), 0);
	expect_damage(lien_verify_host(&control, &item[2]), 2, "host memory was changed");
	item[2].checked = 0; /* saved without --verify */
	assert_int_equal(lien_verify_host(&control, &item[2]), 0);
	munmap(device_memory, ITEMS * BYTES);
}

static void test_verify_device(void **state)
{
	struct lien_item *item;

	(void)state;
	saved();
	item = control.items.item;
	all_in(LIEN_ITEM_AWAY);
	device_memory[0] ^= 1; /* nothing of it is back, so nothing is looked at */
	assert_int_equal(lien_verify_device(&control), 0);
	assert_int_equal(control.reply.arg, 0);
	assert_int_equal(item[0].state, LIEN_ITEM_AWAY);
	device_memory[0] ^= 1;
	device_memory[BYTES + 12345] ^= 1;
	all_in(LIEN_ITEM_FILLING);
	expect_damage(lien_verify_device(&control), 1, "not restored as it was saved");
	assert_int_equal(item[0].state, LIEN_ITEM_BACK);
	assert_int_equal(item[1].state, LIEN_ITEM_EMPTY); /* to be copied once more */
	assert_int_equal(item[2].state, LIEN_ITEM_BACK);
	device_memory[BYTES + 12345] ^= 1;
	item[1].state = LIEN_ITEM_FILLING;
	assert_int_equal(lien_verify_device(&control), 0);
	assert_int_equal(item[1].state, LIEN_ITEM_BACK);
	/* The others were found good before; from then on they are the application's. */
	assert_int_equal(control.reply.arg, BYTES);
	device_memory[7] ^= 1;
	assert_int_equal(lien_verify_device(&control), 0);
	munmap(device_memory, ITEMS * BYTES);
}

/* A read that fails is tried again; then what could not be compared is copied once more. */
static void test_verify_fails(void **state)
{
	(void)state;
	saved();
	all_in(LIEN_ITEM_FILLING);
	fail_reads = 1;
	assert_int_equal(lien_verify_device(&control), 0);
	assert_int_equal(control.reply.arg, ITEMS * BYTES);
	saved_again();
	all_in(LIEN_ITEM_FILLING);
	fail_reads = 2;
	assert_int_equal(lien_verify_device(&control), CUDA_ERROR_UNKNOWN);
	assert_non_null(strstr(control.reply.text, "copy for --verify"));
	assert_int_equal(control.items.item[0].state, LIEN_ITEM_EMPTY);
	assert_int_equal(control.items.item[1].state, LIEN_ITEM_BACK);
	munmap(device_memory, ITEMS * BYTES);
}

/* Another way to read the device, where the arena has no room left. */
static void test_verify_without_room(void **state)
{
	(void)state;
	saved();
	all_in(LIEN_ITEM_FILLING);
	control.arena.used = control.arena.bytes;
	device_memory[2 * BYTES + 16000] ^= 1;
	expect_damage(lien_verify_device(&control), 2, "not restored as it was saved");
	device_memory[2 * BYTES + 16000] ^= 1;
	control.items.item[2].state = LIEN_ITEM_FILLING;
	assert_int_equal(lien_verify_device(&control), 0);
	munmap(device_memory, ITEMS * BYTES);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		CASE(test_grow),
		CASE(test_no_room),
		CASE(test_release),
		CASE(test_prepare),
		CASE(test_node),
		CASE(test_checksum),
		CASE(test_verify_host),
		CASE(test_verify_device),
		CASE(test_verify_fails),
		CASE(test_verify_without_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
