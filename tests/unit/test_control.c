// SPDX-License-Identifier: BSD-2-Clause
/*
 * Saving, dropping and putting back one allocation over a driver table of ours, whose copies arrive
 * when their stream is waited for, or do not: what the software driver, which copies at once,
 * cannot show. Any function can be made to fail.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

/* Also what of it only orders call. */
#include "control/orders/restore.c"
#include "control/driver/gate.h"
#include "control/memory/handles.h"
#include "control/driver/names.h"
#include "tests/unit/no_translate.h"

#define BYTES	(2ul << 20)
#define ALIASES 2
#define TOKEN	7
#define HANDLES 16

enum call {
	CREATE,
	RELEASE,
	RETAIN,
	MAP,
	UNMAP,
	ACCESS,
	COPY,
	CLEAR,
	SYNC,
	UNPIN,
	EXPORT,
	RESERVE,
	FREE,
	BIND,
	UNBIND,
	CALLS
};

/* How the application has the memory. */
static enum {
	WHOLE,	     /* mapped twice, with one handle */
	READ_ONLY,   /* mapped once, for reading: the library needs a mapping of its own */
	HANDLE_ONLY, /* not mapped */
	TWO_HANDLES, /* as WHOLE, once by each handle */
	BOUND,	     /* mapped once, and bound to a multicast object: at place 1 */
} shape;

#define OURS ALIASES /* the place that can be reserved */

static struct {
	unsigned spare[CALLS];		      /* so many of the next ones succeed, */
	unsigned fail[CALLS];		      /* and so many after them fail */
	unsigned calls[CALLS];		      /* made, failed ones as well */
	unsigned references[HANDLES], handle; /* of each; and the last one that was made */
	unsigned same[HANDLES];		      /* 0, or the handle of the same memory */
	unsigned mapped[ALIASES + 1];	      /* which one; 0: none */
	bool reserved;			      /* place OURS */
	unsigned char memory[HANDLES][BYTES];
	void *to; /* a copy that is under way */
	const void *from;
	unsigned flip; /* so many of the next copies to the device arrive with a byte changed */
	int contexts;  /* so often the primary context is retained */
} w;

static struct lien_control control;

static CUresult call(enum call which)
{
	w.calls[which]++;
	if (!w.fail[which])
		return CUDA_SUCCESS;
	if (w.spare[which]) {
		w.spare[which]--;
		return CUDA_SUCCESS;
	}
	w.fail[which]--;
	return CUDA_ERROR_UNKNOWN;
}

static unsigned char *bytes_of(unsigned handle)
{
	return w.memory[w.same[handle] ? w.same[handle] : handle];
}

/* Addresses of the device are numbers: place n is at (n + 1) << 32. */
static unsigned place_of(CUdeviceptr va)
{
	return (va >> 32) - 1;
}

static CUresult error_name(CUresult error, const char **name)
{
	*name = error ? "failed" : "ok";
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult context_state(CUdevice device, unsigned int *flags, int *active)
{
	(void)device;
	*flags = 0;
	*active = 1;
	return CUDA_SUCCESS;
}

static CUresult context_retain(CUcontext *context, CUdevice device)
{
	(void)device;
	*context = (CUcontext)&w;
	w.contexts++;
	return CUDA_SUCCESS;
}

static CUresult context_release(CUdevice device)
{
	(void)device;
	assert_true(w.contexts > 0);
	w.contexts--;
	return CUDA_SUCCESS;
}

static CUresult context_fine(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
	(void)flags;
	*stream = (CUstream)&w;
	return CUDA_SUCCESS;
}

static CUresult stream_destroy(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

/* A copy that fails does not arrive. */
static CUresult stream_synchronize(CUstream stream)
{
	CUresult result = call(SYNC);

	(void)stream;
	if (!result && w.to) {
		memcpy(w.to, w.from, BYTES);
		if (w.flip && w.to >= (void *)w.memory && w.to < (void *)w.memory[HANDLES]) {
			w.flip--;
			((unsigned char *)w.to)[BYTES / 3] ^= 1;
		}
	}
	w.to = NULL;
	return result;
}

static CUresult copy_start(void *to, const void *from, size_t bytes)
{
	CUresult result = call(COPY);

	assert_int_equal(bytes, BYTES);
	assert_null(w.to);
	if (!result) {
		w.to = to;
		w.from = from;
	}
	return result;
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	(void)stream;
	assert_true(w.mapped[place_of(to)]);
	return copy_start(bytes_of(w.mapped[place_of(to)]), from, bytes);
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	(void)stream;
	assert_true(w.mapped[place_of(from)]);
	return copy_start(to, bytes_of(w.mapped[place_of(from)]), bytes);
}

static CUresult clear(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	static const unsigned char zeros[BYTES];
	CUresult result = call(CLEAR);

	(void)stream;
	assert_int_equal(value, 0);
	assert_int_equal(bytes, BYTES);
	assert_null(w.to);
	assert_true(w.mapped[place_of(to)]);
	if (!result) {
		w.to = bytes_of(w.mapped[place_of(to)]);
		w.from = zeros;
	}
	return result;
}

static CUresult host_register(void *memory, size_t bytes, unsigned int flags)
{
	(void)memory;
	(void)bytes;
	(void)flags;
	return CUDA_SUCCESS;
}

static CUresult host_unregister(void *memory)
{
	(void)memory;
	return call(UNPIN);
}

static CUresult get_info(size_t *free_bytes, size_t *total)
{
	*free_bytes = *total = 3 * BYTES;
	return CUDA_SUCCESS;
}

static bool held(void)
{
	unsigned i, references = 0;

	for (i = 0; i < HANDLES; i++)
		references += w.references[i];
	return references || w.mapped[0] || w.mapped[1] || w.mapped[OURS];
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = call(CREATE);

	(void)prop;
	(void)flags;
	assert_int_equal(bytes, BYTES);
	if (result)
		return result;
	*handle = ++w.handle;
	assert_true(w.handle < HANDLES);
	memset(w.memory[w.handle], 0xee, BYTES);
	w.references[w.handle] = 1;
	return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	CUresult result = call(RELEASE);

	if (result)
		return result;
	assert_true(handle < HANDLES && w.references[handle]);
	w.references[handle]--;
	return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *va)
{
	CUresult result = call(RETAIN);

	if (result)
		return result;
	*handle = w.mapped[place_of((uintptr_t)va)];
	assert_true(*handle);
	w.references[*handle]++;
	return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *va, size_t bytes, size_t alignment, CUdeviceptr address,
	unsigned long long flags)
{
	CUresult result = call(RESERVE);

	(void)alignment, (void)address, (void)flags;
	assert_int_equal(bytes, BYTES);
	assert_false(w.reserved);
	*va = (OURS + 1ull) << 32;
	w.reserved = !result;
	return result;
}

static CUresult address_free(CUdeviceptr va, size_t bytes)
{
	CUresult result = call(FREE);

	assert_int_equal(bytes, BYTES);
	assert_int_equal(place_of(va), OURS);
	assert_true(w.reserved && !w.mapped[OURS]);
	w.reserved = result;
	return result;
}

static CUresult map(CUdeviceptr va, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult result = call(MAP);

	(void)bytes;
	(void)flags;
	if (result)
		return result;
	assert_int_equal(offset, 0);
	assert_true(handle < HANDLES && w.references[handle]);
	assert_false(w.mapped[place_of(va)]);
	w.mapped[place_of(va)] = handle;
	return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr va, size_t bytes)
{
	CUresult result = call(UNMAP);

	(void)bytes;
	if (result)
		return result;
	assert_true(w.mapped[place_of(va)]);
	w.mapped[place_of(va)] = 0;
	return CUDA_SUCCESS;
}

#define OBJECT	      0x77
#define OBJECT_OFFSET (3ull << 20)

static CUresult bind(CUmemGenericAllocationHandle object, size_t object_offset,
	CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags)
{
	CUresult result = call(BIND);

	assert_int_equal(object, OBJECT);
	assert_int_equal(object_offset, OBJECT_OFFSET);
	assert_int_equal(offset, 0);
	assert_int_equal(bytes, BYTES);
	assert_int_equal(flags, 0);
	assert_true(handle < HANDLES && w.references[handle]);
	assert_false(w.mapped[1]);
	if (!result)
		w.mapped[1] = handle;
	return result;
}

static CUresult unbind(
	CUmemGenericAllocationHandle object, CUdevice device, size_t object_offset, size_t bytes)
{
	CUresult result = call(UNBIND);

	assert_int_equal(object, OBJECT);
	assert_int_equal(device, 0);
	assert_int_equal(object_offset, OBJECT_OFFSET);
	assert_int_equal(bytes, BYTES);
	assert_true(w.mapped[1]);
	if (!result)
		w.mapped[1] = 0;
	return result;
}

static CUresult set_access(
	CUdeviceptr va, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	(void)va;
	(void)bytes;
	(void)access;
	assert_int_equal(count, 1);
	return call(ACCESS);
}

static CUresult get_range(CUdeviceptr *base, size_t *size, CUdeviceptr va)
{
	*base = va;
	*size = BYTES;
	return CUDA_SUCCESS;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr va)
{
	(void)location;
	*flags = shape == READ_ONLY && place_of(va) != OURS ? CU_MEM_ACCESS_FLAGS_PROT_READ
							    : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return CUDA_SUCCESS;
}

static CUresult get_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	assert_true(handle < HANDLES && w.references[handle]);
	memset(prop, 0, sizeof(*prop));
	prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return CUDA_SUCCESS;
}

/* The descriptor tells which memory it is of. */
static CUresult export(void *fd, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult result = call(EXPORT);

	(void)type;
	(void)flags;
	assert_true(handle < HANDLES && w.references[handle]);
	*(int *)fd = handle;
	return result;
}

static const struct lien_driver driver = {
	.cuGetErrorName = error_name,
	.cuDeviceGet = device_get,
	.cuDevicePrimaryCtxGetState = context_state,
	.cuDevicePrimaryCtxRetain = context_retain,
	.cuDevicePrimaryCtxRelease_v2 = context_release,
	.cuCtxSetCurrent = context_fine,
	.cuStreamCreate = stream_create,
	.cuStreamDestroy_v2 = stream_destroy,
	.cuStreamSynchronize = stream_synchronize,
	.cuMemHostRegister_v2 = host_register,
	.cuMemHostUnregister = host_unregister,
	.cuMemcpyHtoDAsync_v2 = copy_in,
	.cuMemcpyDtoHAsync_v2 = copy_out,
	.cuMemsetD8Async = clear,
	.cuMemGetInfo_v2 = get_info,
	.cuMemGetAddressRange_v2 = get_range,
	.cuMemGetAccess = get_access,
	.cuMemGetAllocationPropertiesFromHandle = get_properties,
	.cuMemCreate = create,
	.cuMemRelease = release,
	.cuMemRetainAllocationHandle = retain,
	.cuMulticastBindMem = bind,
	.cuMulticastUnbind = unbind,
	.cuMemAddressReserve = reserve,
	.cuMemAddressFree = address_free,
	.cuMemMap = map,
	.cuMemUnmap = unmap,
	.cuMemSetAccess = set_access,
	.cuMemExportToShareableHandle = export,
};

static struct lien_item *item(void)
{
	return lien_items_find(&control.items, TOKEN);
}

/* One mapping more, at that place; at OURS it is the library's to make. */
static void add_mapping(struct lien_wire_item *wire, unsigned index, unsigned place)
{
	unsigned long long flags;

	wire[index] = wire[0];
	wire[index].index = index;
	wire[index].va = place == OURS ? 0 : (place + 1ull) << 32;
	wire[index].places = place != OURS;
	wire[index].place[0].location_type = CU_MEM_LOCATION_TYPE_DEVICE;
	get_access(&flags, NULL, wire[index].va);
	wire[index].place[0].flags = flags;
}

/* On the device, with bytes and so many references of the application's. */
static void begin(unsigned references, uint32_t flags)
{
	struct lien_wire_item wire[ALIASES] = {{.token = TOKEN,
		.bytes = BYTES,
		.allocation_bytes = BYTES,
		.flags = LIEN_WIRE_OWNED | flags,
		.handles = 1,
		.handle = {{1, references, 0}},
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
		.mappings = shape == HANDLE_ONLY ? 1 : ALIASES}};

	lien_order_forget(&control, ~0u, 0);
	lien_names_clear();
	memset(&w, 0, sizeof(w));
	control.driver = &driver;
	for (unsigned i = 0; i < BYTES; i++)
		w.memory[1][i] = i * 31 + references;
	w.handle = 1;
	w.references[1] = references;
	w.mapped[0] = shape != HANDLE_ONLY;
	if (shape == TWO_HANDLES) {
		w.handle = w.mapped[1] = 2;
		w.same[2] = 1;
		wire->handle[1] = (struct lien_wire_handle){2, references / 2, 0};
		wire->handle[0].references -= references / 2;
		wire->handles = 2;
		w.references[1] = wire->handle[0].references;
		w.references[2] = wire->handle[1].references;
	} else if (shape == WHOLE || shape == BOUND) {
		w.mapped[1] = 1;
	}
	add_mapping(wire, 0, shape == READ_ONLY || shape == HANDLE_ONLY ? OURS : 0);
	if (shape != HANDLE_ONLY)
		add_mapping(wire, 1, shape == READ_ONLY ? 0 : 1);
	if (shape == BOUND) {
		wire[1].va = wire[1].places = 0;
		wire[1].object = OBJECT;
		wire[1].object_offset = OBJECT_OFFSET;
	}
	assert_int_equal(lien_items_add(&control.items, wire, wire->mappings, 1), 0);
	assert_int_equal(lien_items_seal(&control.items), 0);
}

static void staged_as(unsigned references, uint32_t flags)
{
	begin(references, flags);
	assert_int_equal(lien_order_check(&control), 0);
}

static void saved_as(unsigned references, uint32_t flags)
{
	staged_as(references, flags);
	assert_int_equal(lien_order_save(&control), 0);
	control.flags = 0;
}

static uint32_t shared; /* or LIEN_WIRE_SHARED, where a test is about both */

static void saved(unsigned references)
{
	saved_as(references, shared);
}

static void away(unsigned references)
{
	saved(references);
	assert_int_equal(lien_order_drop(&control), 0);
	assert_false(held());
}

static void order(void)
{
	memset(&control.reply, 0, sizeof(control.reply));
	lien_handles_release_owed(&driver);
}

static int finish_order(uint32_t flags)
{
	static struct lien_order order; /* without a body */
	const uint32_t before = control.flags;
	int result;

	control.order = &order;
	control.flags |= LIEN_WIRE_LAST | flags;
	result = lien_order_finish(&control);
	control.flags = before;
	return result;
}

static void check_back(unsigned references)
{
	unsigned ours = item() ? item()->held : 0, i, sum = 0, handle = w.handle;
	const unsigned char *bytes = bytes_of(handle);

	assert_int_equal(w.mapped[0] != 0, shape != HANDLE_ONLY);
	assert_int_equal(w.mapped[1] != 0, shape != READ_ONLY && shape != HANDLE_ONLY);
	for (i = 0; i < ALIASES; i++)
		assert_true(!w.mapped[i] || bytes_of(w.mapped[i]) == bytes);
	if (!item())
		assert_true(!w.reserved && !w.mapped[OURS]);
	for (i = 0; i < HANDLES; i++) {
		assert_true(!w.references[i] || bytes_of(i) == bytes);
		sum += w.references[i];
	}
	assert_int_equal(sum, references + ours);
	assert_null(w.to);
	for (i = 0; i < BYTES; i++)
		if (bytes[i] != (unsigned char)(i * 31 + references))
			fail_msg("byte %u is wrong", i);
	assert_false(lien_handles_owed());
}

static void restore(unsigned references)
{
	memset(w.fail, 0, sizeof(w.fail));
	order();
	assert_int_equal(lien_order_create(&control), 0);
	order();
	assert_int_equal(finish_order(0), 0);
	check_back(references);
	assert_null(item());
}

/* The application may let go of its context while its memory is away: ours is there till the end.
 */
static void test_round(void **state)
{
	(void)state;
	for (unsigned references = 0; references < 4; references++) {
		away(references);
		assert_int_equal(w.contexts, 1);
		restore(references);
		assert_int_equal(w.contexts, 0);
	}
}

/* References can be taken by its own mapping alone. */
static void test_handle_only(void **state)
{
	(void)state;
	shape = HANDLE_ONLY;
	for (unsigned i = 2; i < 8; i++) {
		saved_as(i / 2, i % 2 ? LIEN_WIRE_SHARED : 0);
		assert_int_equal(lien_order_drop(&control), 0);
		assert_false(held());
		restore(i / 2);
	}
	shape = WHOLE;
}

/* Once: it is copied again. For good: it stays in the arena, and is copied by the next restore. */
static void test_copy_does_not_arrive(void **state)
{
	(void)state;
	for (unsigned times = 1; times < 4; times++) {
		away(1);
		assert_int_equal(lien_order_create(&control), 0);
		w.fail[SYNC] = times;
		order();
		if (times == 1) {
			assert_int_equal(finish_order(0), 0);
			check_back(1);
			continue;
		}
		assert_int_equal(finish_order(0), CUDA_ERROR_UNKNOWN);
		assert_non_null(item());
		restore(1);
		assert_int_equal(w.calls[CREATE], 1); /* it was there, without its bytes */
	}
}

/* Each call fails once, or for good: nothing is left behind, and the next restore succeeds. */
static void test_create_fails(void **state)
{
	static const enum call calls[] = {CREATE, MAP, ACCESS, RETAIN, COPY};

	(void)state;
	for (unsigned i = 0; i < 2 * sizeof(calls) / sizeof(calls[0]); i++) {
		away(3);
		w.fail[calls[i / 2]] = i % 2 ? 99 : 1;
		order();
		assert_int_equal(lien_order_create(&control), i % 2 ? CUDA_ERROR_UNKNOWN : 0);
		if (i % 2)
			assert_false(held());
		else
			assert_int_equal(control.reply.text[0], 0);
		restore(3);
	}
}

/* What cannot be taken away is in the way of nothing. */
static void test_create_and_undo_fail(void **state)
{
	static const enum call calls[] = {ACCESS, RETAIN, COPY};

	(void)state;
	for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		away(2);
		w.fail[calls[i]] = w.fail[UNMAP] = w.fail[RELEASE] = 99;
		order();
		assert_int_equal(lien_order_create(&control), CUDA_ERROR_UNKNOWN);
		order();
		assert_int_not_equal(finish_order(0), 0);
		assert_non_null(item());
		restore(2);
	}
}

/* References that the driver does not take back are given back later. */
static void test_drop_fails(void **state)
{
	static const enum call calls[] = {UNMAP, RELEASE};

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		unsigned references = i / 2;

		saved(references);
		w.fail[calls[i % 2]] = 99;
		order();
		assert_int_equal(lien_order_drop(&control), CUDA_ERROR_UNKNOWN);
		memset(w.fail, 0, sizeof(w.fail));
		order();
		assert_false(lien_handles_owed());
		if (calls[i % 2] == UNMAP) { /* as it was */
			check_back(references);
			continue;
		}
		assert_false(held());
		restore(references);
	}
}

/* The second place is not unmapped, and the first one not mapped again: it is away. */
static void test_drop_and_undo_fail(void **state)
{
	(void)state;
	saved(2);
	w.spare[UNMAP] = 1;
	w.fail[UNMAP] = w.fail[MAP] = w.fail[RELEASE] = 99;
	order();
	assert_int_not_equal(lien_order_drop(&control), 0);
	assert_true(!w.mapped[0] && w.mapped[1]);
	assert_int_equal(w.references[1], shared ? 3 : 2);
	restore(2);
}

/* Also where the first try did not get there. */
static void test_worthless(void **state)
{
	(void)state;
	for (unsigned times = 0; times < 3; times++) {
		saved_as(1, LIEN_WIRE_WORTHLESS);
		assert_int_equal(lien_order_drop(&control), 0);
		order();
		assert_int_equal(lien_order_create(&control), 0);
		w.fail[SYNC] = times;
		order();
		if (times == 2) { /* for good: the next restore clears it */
			assert_int_equal(finish_order(0), CUDA_ERROR_UNKNOWN);
			order();
			assert_int_equal(lien_order_create(&control), 0);
			order();
		}
		assert_int_equal(finish_order(0), 0);
		assert_null(item());
		assert_int_equal(w.calls[COPY], 0);
		assert_int_equal(w.calls[CREATE], 1);
		for (unsigned i = 0; i < BYTES; i++)
			assert_int_equal(w.memory[w.mapped[0]][i], 0);
	}
}

static void expect_damage(int result, const char *words)
{
	assert_int_equal(result, -EBADMSG);
	assert_true(control.reply.arg == 1ull << 32);
	assert_non_null(strstr(control.reply.text, words));
	assert_non_null(item());
}

/* --verify: what arrives changed is copied once more by the next restore. */
static void test_damage_on_device(void **state)
{
	(void)state;
	control.flags = LIEN_WIRE_VERIFY;
	away(2);
	order();
	assert_int_equal(lien_order_create(&control), 0);
	w.flip = 1;
	order();
	expect_damage(finish_order(0), "not restored as it was saved");
	assert_int_equal(item()->state, LIEN_ITEM_EMPTY);
	assert_true(control.arena.used >= BYTES);
	restore(2);
	assert_int_equal(w.calls[CREATE], 1);
	assert_int_equal(control.reply.arg, BYTES);
	assert_int_equal(control.arena.used, 0);
}

/* A copy that fails and one that arrives changed, in one restore. */
static void test_damage_and_failure(void **state)
{
	(void)state;
	control.flags = LIEN_WIRE_VERIFY;
	away(1);
	order();
	assert_int_equal(lien_order_create(&control), 0);
	w.fail[SYNC] = w.flip = 1;
	order();
	expect_damage(finish_order(0), "not restored as it was saved");
	restore(1);
}

static void test_damage_in_arena(void **state)
{
	uint64_t length = 1;

	(void)state;
	control.flags = LIEN_WIRE_VERIFY;
	away(1);
	*(char *)lien_arena_at(&control.arena, item()->arena + 77, &length) ^= 4;
	order();
	expect_damage(lien_order_create(&control), "host memory was changed");
	assert_int_equal(w.calls[CREATE], 0);
	order();
	assert_int_equal(finish_order(0), -EBUSY);
	assert_false(held());
	*(char *)lien_arena_at(&control.arena, item()->arena + 77, &length) ^= 4;
	restore(1);
}

/* Their stream stays until they have ended, also if the agent that ordered them has. */
static void test_copies_under_way(void **state)
{
	(void)state;
	away(1);
	order();
	assert_int_equal(lien_order_create(&control), 0);
	lien_devices_close(&control); /* as other orders do */
	assert_true(control.devices[0].open);
	order();
	assert_int_equal(finish_order(0), 0);
	check_back(1);
	assert_false(control.devices[0].open);
}

static void test_room(void **state)
{
	struct lien_wire_room rooms[LIEN_DEVICES_MAX];

	(void)state;
	saved(1);
	assert_int_equal(rooms_of(&control, rooms), 0);
	away(1);
	assert_int_equal(rooms_of(&control, rooms), 1);
	assert_int_equal(rooms[0].device, 0);
	assert_int_equal(rooms[0].needed, BYTES);
	assert_int_equal(rooms[0].free_bytes, 3 * BYTES);
	control.generation = 2; /* an undo of another offload needs none of it */
	assert_int_equal(rooms_of(&control, rooms), 0);
	control.generation = 0;
	restore(1);
	assert_int_equal(rooms_of(&control, rooms), 0);
}

/* As the application would: its memory is given back, and other memory lies at its address. */
static void free_and_use_again(unsigned references)
{
	unsigned handle = w.mapped[0];

	assert_true(w.references[handle] >= references);
	w.references[handle] -= references;
	w.mapped[0] = w.mapped[1] = ++w.handle;
	w.references[w.handle] = 1;
}

static void check_export(unsigned handle)
{
	int fd = -1;

	order();
	assert_int_equal(export_item(&control, item(), &fd), 0);
	assert_int_equal(fd, handle);
}

/* From CHECK until it is dropped, and from CREATE until FINISH, there is a reference of our own to
 * what others import: it is exported, whatever the application does meanwhile. */
static void test_shared_is_held(void **state)
{
	(void)state;
	for (unsigned references = 0; references < 3; references++) {
		saved_as(references, LIEN_WIRE_SHARED);
		assert_int_equal(w.references[1], references + 1);
		free_and_use_again(references);
		check_export(1);
		lien_order_forget(&control, LIEN_ITEMS_UNTOUCHED, 0);
		assert_int_equal(w.references[1], 0);

		saved_as(references, LIEN_WIRE_SHARED);
		assert_int_equal(lien_order_drop(&control), 0);
		assert_false(held());
		assert_int_equal(lien_order_create(&control), 0);
		assert_int_equal(w.references[2], references + 1);
		check_export(2);
		free_and_use_again(references);
		check_export(2);
		order();
		w.to = NULL; /* the copy went where the memory was */
		assert_int_equal(finish_order(0), 0);
		assert_int_equal(w.references[2], 0);
		assert_null(item());
	}
}

/* Lent: its bytes in the arena are of no use any more, and a restore does not fill it with them. */
static void test_lent(void **state)
{
	(void)state;
	for (unsigned references = 0; references < 3; references++) {
		saved_as(references, LIEN_WIRE_SHARED);
		lien_order_lend(&control, 1 << LIEN_ITEM_SAVED, 0);
		lien_order_forget(&control, LIEN_ITEMS_UNTOUCHED, 0);
		assert_int_equal(item()->state, LIEN_ITEM_LENT);
		assert_int_equal(control.arena.used, 0);
		w.memory[1][5] = 0xcc; /* the application goes on */
		order();
		assert_int_equal(lien_order_create(&control), 0);
		check_export(1);
		w.references[1] += 5 - references; /* and counts as it likes */
		order();
		assert_int_equal(finish_order(LIEN_WIRE_KEEP), 0);
		check_export(1);
		order();
		assert_int_equal(finish_order(0), 0);
		assert_null(item());
		assert_int_equal(w.references[1], 5);
		assert_int_equal(w.memory[1][5], 0xcc);
		assert_int_equal(w.calls[CREATE], 0);
	}
}

/* A restore that could not give it to all lends it; what is not shared is forgotten then. */
static void test_kept(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		saved_as(1, i ? LIEN_WIRE_SHARED : 0);
		assert_int_equal(lien_order_drop(&control), 0);
		order();
		assert_int_equal(lien_order_create(&control), 0);
		order();
		assert_int_equal(finish_order(LIEN_WIRE_KEEP), 0);
		check_back(1);
		if (!i) {
			assert_null(item());
			continue;
		}
		assert_int_equal(item()->state, LIEN_ITEM_LENT);
		assert_int_equal(control.arena.used, 0);
		free_and_use_again(1);
		check_export(2);
		order();
		assert_int_equal(finish_order(0), 0);
		assert_int_equal(w.references[2], 0);
	}
}

/* The copy did not arrive: it is not lent before it has. */
static void test_kept_and_empty(void **state)
{
	(void)state;
	shared = LIEN_WIRE_SHARED;
	away(2);
	order();
	assert_int_equal(lien_order_create(&control), 0);
	w.fail[SYNC] = 99;
	order();
	assert_int_equal(finish_order(LIEN_WIRE_KEEP), CUDA_ERROR_UNKNOWN);
	assert_int_equal(item()->state, LIEN_ITEM_EMPTY);
	assert_true(control.arena.used >= BYTES);
	restore(2);
	shared = 0;
	assert_null(item());
}

/* Nobody else needs it: no reference is taken. */
static void test_unshared_is_not_held(void **state)
{
	int fd;

	(void)state;
	saved(2);
	assert_int_equal(w.references[1], 2);
	order();
	assert_int_equal(export_item(&control, item(), &fd), -ENOENT);
}

/* An export that fails once is made again; for good: the next one succeeds. */
static void test_export_fails(void **state)
{
	int fd;

	(void)state;
	saved_as(0, LIEN_WIRE_SHARED);
	w.fail[EXPORT] = 1;
	check_export(1);
	assert_int_equal(control.reply.text[0], 0);
	w.fail[EXPORT] = 2;
	order();
	assert_int_equal(export_item(&control, item(), &fd), CUDA_ERROR_UNKNOWN);
	check_export(1);
}

/* What CHECK holds is given back if the offload ends there, and by the driver's leave. */
static void test_check_fails(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		staged_as(1, LIEN_WIRE_SHARED);
		assert_int_equal(w.references[1], 2);
		assert_int_equal(lien_order_check(&control), 0); /* once more: it is held once */
		assert_int_equal(w.references[1], 2);
		w.fail[RETAIN] = 1;
		order();
		assert_int_not_equal(lien_order_check(&control), 0);
		w.fail[RELEASE] = i ? 99 : 0;
		lien_order_forget(&control, LIEN_ITEMS_UNTOUCHED, 0);
		assert_int_equal(lien_handles_owed(), i);
		w.fail[RELEASE] = 0;
		order();
		assert_false(lien_handles_owed());
		assert_int_equal(w.references[1], 1);
	}
}

static void refused(int result, const char *words)
{
	order();
	assert_int_equal(lien_order_end(&control), result);
	assert_non_null(strstr(control.reply.text, words));
	assert_false(control.ended);
	assert_true(control.arena.bytes);
}

/* Refused while anybody needs what would go; then nothing is left. */
static void test_end(void **state)
{
	(void)state;
	away(2);
	assert_int_equal(lien_names_renamed(), 1);
	refused(-EBUSY, "is offloaded");
	order();
	assert_int_equal(lien_order_create(&control), 0);
	refused(-EBUSY, "is offloaded");
	restore(2);
	refused(-EBUSY, "from before a restore");
	lien_names_released(1);
	refused(-EBUSY, "from before a restore");
	lien_names_released(1);
	lien_gate_shut();
	refused(-EBUSY, "gate");
	lien_gate_open();
	w.fail[UNPIN] = 99;
	refused(CUDA_ERROR_UNKNOWN, "cuMemHostUnregister");
	w.fail[UNPIN] = 0;
	order();
	assert_int_equal(lien_order_end(&control), 0);
	assert_true(control.ended);
	assert_int_equal(control.arena.bytes, 0);
	assert_null(control.arena.chunks);
	assert_null(control.items.item);
	control.ended = 0;
	lien_starting = 0;
}

static struct {
	_Atomic int tid, go, shut; /* shut: how the gate was when the thread had come through */
} visitor;

static void *visit(void *arg)
{
	visitor.tid = syscall(SYS_gettid);
	while (!visitor.go)
		;
	lien_gate_wait();
	visitor.shut = lien_gate_is_shut();
	visitor.go = 0;
	return arg;
}

/* It has come through, or sleeps, which it does at the gate alone. */
static bool has_decided(void)
{
	char path[64], line[256] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", visitor.tid);
	file = fopen(path, "re");
	if (file) {
		assert_non_null(fgets(line, sizeof(line), file));
		fclose(file);
	}
	return !visitor.go || strstr(line, ") S ");
}

/* An agent that was silent for too long lets a thread in after the gate has opened by itself. That
 * is not for the gate of the next transaction. */
static void test_pass_comes_late(void **state)
{
	pthread_t thread;
	uint32_t tid;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, visit, NULL), 0);
	while (!visitor.tid)
		;
	tid = visitor.tid;
	lien_gate_shut();
	lien_gate_open();
	lien_gate_pass(&tid, 1);
	lien_gate_shut();
	visitor.go = 1;
	while (!has_decided())
		;
	lien_gate_open();
	pthread_join(thread, NULL);
	assert_int_equal(visitor.shut, 0);
}

/* An agent died after the save: an importer may have let go, and needs an export. */
static void test_end_cut_short(void **state)
{
	(void)state;
	saved_as(0, LIEN_WIRE_SHARED);
	refused(-EBUSY, "cut short");
	lien_order_lend(&control, 1 << LIEN_ITEM_SAVED, 0);
	refused(-EBUSY, "cut short");
	saved(0); /* nobody else needs this: it is forgotten */
	order();
	assert_int_equal(lien_order_end(&control), 0);
	control.ended = 0;
	lien_starting = 0;
}

/* A restore for other groups: memory that is lent, or away, is as it was. */
static void test_not_chosen(void **state)
{
	(void)state;
	saved_as(0, LIEN_WIRE_SHARED);
	lien_order_lend(&control, 1 << LIEN_ITEM_SAVED, 0);
	item()->wire.group = 7;
	for (unsigned chosen = 0; chosen < 2; chosen++) {
		order();
		control.flags = LIEN_WIRE_CHOSEN;
		control.groups_count = 1;
		control.chosen[0] = item()->wire.group + !chosen;
		assert_int_equal(lien_order_chooses(&control, item()), chosen);
		assert_int_equal(finish_order(0), 0);
		control.flags = 0;
		assert_int_equal(item() == NULL, chosen);
	}
	saved_as(0, 0);
	order();
	assert_int_equal(lien_order_drop(&control), 0);
	order();
	control.flags = LIEN_WIRE_CHOSEN;
	control.chosen[0] = 1;
	assert_int_equal(lien_order_create(&control), 0);
	assert_int_equal(finish_order(0), 0);
	assert_int_equal(item()->state, LIEN_ITEM_AWAY);
	/* groups and tags narrow each other down */
	control.groups_count = 1;
	control.tags_count = 2;
	for (unsigned which = 0; which < 8; which++) {
		item()->wire.group = which & 1 ? 1 : 2;
		item()->wire.tag = which & 2 ? 4 : which & 4 ? 1 : 0;
		memcpy(control.chosen, (uint64_t[]){1, 3, 4}, 3 * sizeof(uint64_t));
		assert_int_equal(lien_order_chooses(&control, item()), (which & 3) == 3);
	}
	control.groups_count = 0;
	item()->wire.group = 0;
	item()->wire.tag = 3;
	assert_true(lien_order_chooses(&control, item())); /* any group, and tag 1 or 3 */
	item()->wire.tag = 0;
	assert_false(lien_order_chooses(&control, item()));
	control.tags_count = 0;
	item()->wire.team = 1; /* what objects join comes back together */
	assert_true(lien_order_chooses(&control, item()));
	item()->wire.team = 0;
	control.flags = 0;
	restore(0);
}

/* A mapping of the library's own that cannot be made leaves nothing behind; one that cannot be
 * taken away is taken away later. */
static void test_scratch_fails(void **state)
{
	static const enum call calls[] = {RESERVE, MAP, ACCESS, RETAIN, UNMAP, FREE};

	(void)state;
	for (unsigned i = 0; i < 4 * sizeof(calls) / sizeof(calls[0]); i++) {
		const enum call which = calls[i / 4];
		const bool ends = which == UNMAP || which == FREE;

		shape = i % 2 ? READ_ONLY : HANDLE_ONLY;
		begin(2, shared);
		order();
		if (!ends)
			w.fail[which] = 1;
		assert_int_equal(lien_order_check(&control) != 0, !ends);
		if (ends)
			w.fail[which] = i % 4 / 2 ? 99 : 1;
		else
			w.fail[UNMAP] = w.fail[FREE] = i % 4 / 2 ? 99 : 0;
		lien_order_forget(&control, LIEN_ITEMS_UNTOUCHED, 0);
		memset(w.fail, 0, sizeof(w.fail));
		order();
		assert_null(item());
		check_back(2);
	}
	shape = WHOLE;
}

/* DROP unbinds, and CREATE binds again. If unbinding fails, the memory stays bound. */
static void test_binding_fails(void **state)
{
	(void)state;
	shape = BOUND;
	for (unsigned i = 0; i < 4; i++) {
		saved_as(2, shared);
		w.fail[UNBIND] = i == 1 ? 1 : i == 2 ? 99 : 0;
		order();
		assert_int_equal(lien_order_drop(&control) != 0, i == 2);
		w.fail[UNBIND] = 0;
		if (i == 2) {
			check_back(2);
			continue;
		}
		assert_false(held());
		w.fail[BIND] = i == 3 ? 99 : 1;
		order();
		assert_int_equal(lien_order_create(&control) != 0, i == 3);
		if (i == 3)
			assert_false(held());
		restore(2);
	}
	shape = WHOLE;
}

/* The agent is silent before the memory is dropped: the application has it as it was. */
static void test_scratch_is_left(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		shape = i % 2 ? READ_ONLY : HANDLE_ONLY;
		saved_as(2, i / 2 ? LIEN_WIRE_SHARED : 0);
		assert_true(w.reserved && w.mapped[OURS]);
		lien_order_lend(&control, 1 << LIEN_ITEM_SAVED, 0);
		lien_order_forget(&control, LIEN_ITEMS_UNTOUCHED, 0);
		assert_int_equal(item() != NULL, i / 2);
		assert_true(!w.reserved && !w.mapped[OURS]);
		if (item())
			check_export(1);
		order();
		assert_int_equal(finish_order(0), 0);
		check_back(2);
	}
	shape = WHOLE;
}

/* Lost or given up while it is away: the address goes, too. */
static void test_scratch_of_lost_import(void **state)
{
	const struct lien_wire_share lost = {.token = TOKEN};
	static struct lien_order order_of_it;

	(void)state;
	shape = HANDLE_ONLY;
	staged_as(1, 0);
	item()->wire.flags = LIEN_WIRE_IMPORTED;
	assert_int_equal(lien_order_save(&control), 0);
	assert_int_equal(lien_order_unmap(&control), 0);
	assert_true(w.reserved && !held());
	order();
	memcpy(order_of_it.bytes + sizeof(order_of_it.header), &lost, sizeof(lost));
	order_of_it.body = sizeof(lost);
	control.order = &order_of_it;
	assert_int_equal(lien_order_finish(&control), 0);
	assert_null(item());
	assert_false(w.reserved);
	lien_devices_close(&control);
	shape = WHOLE;
}

/* A mapping that was made by a handle which the agent does not know. */
static void test_unknown_handle(void **state)
{
	(void)state;
	shape = TWO_HANDLES;
	begin(2, 0);
	w.mapped[1] = 3;
	w.same[3] = 1;
	w.references[3] = 1;
	order();
	assert_int_equal(lien_order_check(&control), -ESTALE);
	assert_non_null(strstr(control.reply.text, "not an alias"));
	shape = WHOLE;
}

static int setup_shared(void **state)
{
	(void)state;
	shared = LIEN_WIRE_SHARED;
	return 0;
}

static int teardown_shared(void **state)
{
	(void)state;
	shared = 0;
	shape = WHOLE;
	return 0;
}

static int setup_read_only(void **state)
{
	shape = READ_ONLY;
	return setup_shared(state);
}

static int setup_bound(void **state)
{
	shape = BOUND;
	return setup_shared(state);
}

static int setup_two_handles(void **state)
{
	shape = TWO_HANDLES;
	return setup_shared(state);
}

#define BOTH(test)                                                                                 \
	cmocka_unit_test(test),                                                                    \
	{                                                                                          \
#test "(shared)", test, setup_shared, teardown_shared, NULL                        \
	}

#define IN_SHAPE(test, shape)                                                                      \
	{                                                                                          \
#test "(" #shape ")", test, setup_##shape, teardown_shared, NULL                   \
	}
#define ALL(test)                                                                                  \
	BOTH(test), IN_SHAPE(test, read_only), IN_SHAPE(test, two_handles), IN_SHAPE(test, bound)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ALL(test_round),
		ALL(test_copy_does_not_arrive),
		ALL(test_create_fails),
		ALL(test_create_and_undo_fail),
		ALL(test_drop_fails),
		BOTH(test_drop_and_undo_fail),
		cmocka_unit_test(test_handle_only),
		cmocka_unit_test(test_binding_fails),
		cmocka_unit_test(test_scratch_fails),
		cmocka_unit_test(test_scratch_is_left),
		cmocka_unit_test(test_scratch_of_lost_import),
		cmocka_unit_test(test_unknown_handle),
		cmocka_unit_test(test_worthless),
		cmocka_unit_test(test_damage_on_device),
		cmocka_unit_test(test_damage_and_failure),
		cmocka_unit_test(test_damage_in_arena),
		cmocka_unit_test(test_copies_under_way),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_shared_is_held),
		cmocka_unit_test(test_lent),
		cmocka_unit_test(test_kept),
		cmocka_unit_test(test_kept_and_empty),
		cmocka_unit_test(test_unshared_is_not_held),
		cmocka_unit_test(test_export_fails),
		cmocka_unit_test(test_check_fails),
		cmocka_unit_test(test_end),
		cmocka_unit_test(test_pass_comes_late),
		cmocka_unit_test(test_end_cut_short),
		cmocka_unit_test(test_not_chosen),
	};

	return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
