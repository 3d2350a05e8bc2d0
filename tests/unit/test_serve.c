// SPDX-License-Identifier: BSD-2-Clause
/*
 * Orders to a control library as they come over the socket, and the silence of an agent: what it
 * lets go of, and what stays exportable. The driver is a table of ours with a few places and
 * handles; a piece of memory is one number.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/mman.h>
#include <sys/wait.h>

/* Its state outlives sockets; a test begins with none. */
#include "control/orders/serve.c"
#include "control/driver/names.h"
#include "tests/unit/no_translate.h"

#define BASE	0x7e0000000000ull
#define PLACES	6
#define HANDLES 24
#define FIRST	100ull /* the transactions of the tests */
#define SECOND	200ull

/* --- a driver -----------------------------------------------------------------------------------
 */

static struct {
	unsigned place[PLACES]; /* which handle's memory is mapped there; 0: none */
	unsigned references[HANDLES];
	uint64_t value[HANDLES]; /* of the memory */
	unsigned exports;	 /* calls that fail from now on */
} w;

static uint64_t va_of(unsigned place)
{
	return BASE + place * LIEN_WIRE_STEP;
}

static unsigned place_of(uint64_t va)
{
	assert_true(va >= BASE && va < va_of(PLACES));
	return (va - BASE) / LIEN_WIRE_STEP;
}

static unsigned memory_at(uint64_t va)
{
	unsigned handle = w.place[place_of(va)];

	assert_true(handle);
	return handle;
}

static bool lives(unsigned handle)
{
	for (unsigned i = 0; i < PLACES; i++)
		if (w.place[i] == handle)
			return true;
	return w.references[handle] != 0;
}

static CUresult handle_new(CUmemGenericAllocationHandle *handle, uint64_t value)
{
	static unsigned last;

	do
		last = last % (HANDLES - 1) + 1;
	while (lives(last));
	w.references[last] = 1;
	w.value[last] = value;
	*handle = last;
	return CUDA_SUCCESS;
}

static CUresult error_name(CUresult result, const char **name)
{
	*name = result ? "failed" : "ok";
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
	return CUDA_SUCCESS;
}

static CUresult device_fine(CUdevice device)
{
	(void)device;
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

static CUresult stream_fine(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

static CUresult capture_mode(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

static CUresult host_register(void *memory, size_t bytes, unsigned int flags)
{
	(void)memory, (void)bytes, (void)flags;
	return CUDA_SUCCESS;
}

static CUresult host_unregister(void *memory)
{
	(void)memory;
	return CUDA_SUCCESS;
}

static CUresult to_host(void *host, CUdeviceptr va, size_t bytes, CUstream stream)
{
	(void)bytes, (void)stream;
	memcpy(host, &w.value[memory_at(va)], sizeof(w.value[0]));
	return CUDA_SUCCESS;
}

static CUresult to_device(CUdeviceptr va, const void *host, size_t bytes, CUstream stream)
{
	(void)bytes, (void)stream;
	memcpy(&w.value[memory_at(va)], host, sizeof(w.value[0]));
	return CUDA_SUCCESS;
}

static CUresult get_info(size_t *free_bytes, size_t *total)
{
	*free_bytes = *total = PLACES * LIEN_WIRE_STEP;
	return CUDA_SUCCESS;
}

static CUresult get_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr va)
{
	*base = va;
	*bytes = LIEN_WIRE_STEP;
	return CUDA_SUCCESS;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr va)
{
	(void)location, (void)va;
	*flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return CUDA_SUCCESS;
}

static CUresult get_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	(void)handle;
	memset(prop, 0, sizeof(*prop));
	prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return CUDA_SUCCESS;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)bytes, (void)prop, (void)flags;
	return handle_new(handle, 0xdead);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
	assert_true(handle < HANDLES && w.references[handle]);
	w.references[handle]--;
	return CUDA_SUCCESS;
}

static CUresult mem_retain(CUmemGenericAllocationHandle *handle, void *va)
{
	*handle = memory_at((uintptr_t)va);
	w.references[*handle]++;
	return CUDA_SUCCESS;
}

static CUresult mem_map(CUdeviceptr va, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	(void)bytes, (void)offset, (void)flags;
	assert_true(handle < HANDLES && w.references[handle]);
	assert_false(w.place[place_of(va)]);
	w.place[place_of(va)] = handle;
	return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr va, size_t bytes)
{
	(void)bytes;
	assert_true(memory_at(va));
	w.place[place_of(va)] = 0;
	return CUDA_SUCCESS;
}

static CUresult set_access(
	CUdeviceptr va, size_t bytes, const CUmemAccessDesc *places, size_t count)
{
	(void)va, (void)bytes, (void)places, (void)count;
	return CUDA_SUCCESS;
}

/* A descriptor from which the memory's value can be read. */
static CUresult mem_export(void *fd, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	(void)type, (void)flags;
	assert_true(handle < HANDLES && w.references[handle]);
	if (w.exports)
		return CUDA_ERROR_UNKNOWN;
	*(int *)fd = memfd_create("export", MFD_CLOEXEC);
	assert_int_equal(pwrite(*(int *)fd, &w.value[handle], sizeof(w.value[0]), 0), 8);
	return CUDA_SUCCESS;
}

static CUresult mem_import(
	CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	uint64_t value;

	(void)type;
	assert_int_equal(pread((intptr_t)fd, &value, sizeof(value), 0), sizeof(value));
	return handle_new(handle, value);
}

/* Part of an allocation is bound to an object, or of none. */
#define OBJECT 0x900ull

static unsigned bound;

static CUresult object_bind(CUmemGenericAllocationHandle object, size_t object_offset,
	CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags)
{
	(void)object_offset, (void)offset, (void)bytes, (void)flags;
	assert_int_equal(object, OBJECT);
	assert_true(lives(handle));
	assert_int_equal(bound++, 0);
	return CUDA_SUCCESS;
}

static CUresult object_unbind(
	CUmemGenericAllocationHandle object, CUdevice device, size_t object_offset, size_t bytes)
{
	(void)device, (void)object_offset, (void)bytes;
	assert_int_equal(object, OBJECT);
	assert_int_equal(bound--, 1);
	return CUDA_SUCCESS;
}

static const struct lien_driver driver = {
	.cuGetErrorName = error_name,
	.cuDeviceGet = device_get,
	.cuDevicePrimaryCtxGetState = context_state,
	.cuDevicePrimaryCtxRetain = context_retain,
	.cuDevicePrimaryCtxRelease_v2 = device_fine,
	.cuCtxSetCurrent = context_fine,
	.cuThreadExchangeStreamCaptureMode = capture_mode,
	.cuStreamCreate = stream_create,
	.cuStreamDestroy_v2 = stream_fine,
	.cuStreamSynchronize = stream_fine,
	.cuMemHostRegister_v2 = host_register,
	.cuMemHostUnregister = host_unregister,
	.cuMemcpyHtoDAsync_v2 = to_device,
	.cuMemcpyDtoHAsync_v2 = to_host,
	.cuMemGetInfo_v2 = get_info,
	.cuMemGetAddressRange_v2 = get_range,
	.cuMemGetAccess = get_access,
	.cuMemGetAllocationPropertiesFromHandle = get_properties,
	.cuMemCreate = mem_create,
	.cuMemRelease = mem_release,
	.cuMemRetainAllocationHandle = mem_retain,
	.cuMemMap = mem_map,
	.cuMemUnmap = mem_unmap,
	.cuMemSetAccess = set_access,
	.cuMemExportToShareableHandle = mem_export,
	.cuMemImportFromShareableHandle = mem_import,
	.cuMulticastBindMem = object_bind,
	.cuMulticastUnbind = object_unbind,
};

/* --- an agent -----------------------------------------------------------------------------------
 */

/* What the replies to an order have told. */
static struct {
	struct lien_wire_header last;
	struct lien_wire_hello hello;
	struct lien_wire_item item[PLACES];
	unsigned items;
	struct {
		uint64_t token, value;
	} share[PLACES];
	unsigned shares;
} told;

static int silent; /* nothing comes for as long as is waited */

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
	(void)fds, (void)timeout;
	return silent ? 0 : (int)count;
}

static void take_replies(int fd)
{
	static struct lien_order message;
	unsigned i;

	memset(&told, 0, sizeof(told));
	while (lien_pass_receive(fd, message.bytes, sizeof(message.bytes), message.fds,
		       &message.fds_count, MSG_DONTWAIT) > 0) {
		const char *body = message.bytes + sizeof(message.header);
		size_t size = message.header.length - sizeof(message.header);

		if (message.header.type == LIEN_WIRE_LIST && size) {
			memcpy(told.item + told.items, body, size);
			told.items += size / sizeof(told.item[0]);
		}
		if (message.header.type == LIEN_WIRE_HELLO)
			memcpy(&told.hello, body, sizeof(told.hello));
		for (i = 0; i < message.fds_count; i++) {
			told.share[told.shares].token = ((const uint64_t *)body)[i];
			assert_int_equal(
				pread(message.fds[i], &told.share[told.shares].value, 8, 0), 8);
			told.shares++;
			close(message.fds[i]);
		}
		told.last = message.header;
	}
}

/* Serves one order, or none, on sockets of their own; what is kept outlives them. */
static void serve_one(const struct iovec *parts, unsigned count, int *fds, unsigned fds_count)
{
	const int on = 1;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
	if (count)
		assert_int_equal(lien_pass_send(pair[0], parts, count, fds, fds_count), 0);
	shutdown(pair[0], SHUT_WR);
	lien_control_serve(pair[1], lien_control_inode(pair[1]));
	take_replies(pair[0]);
	close(pair[0]);
	close(pair[1]);
}

struct asked {
	uint16_t flags;
	uint64_t arg, arg2;
	const void *body;
	size_t size;
	int *fds;
	unsigned fds_count;
};

static int ask_with(enum lien_wire_type type, struct asked asked)
{
	struct lien_wire_header order = {.length = sizeof(order) + asked.size,
		.type = type,
		.flags = asked.flags,
		.seq = 1,
		.arg = asked.arg,
		.arg2 = asked.arg2};
	struct iovec parts[2] = {{&order, sizeof(order)}, {(void *)asked.body, asked.size}};

	serve_one(parts, asked.size ? 2 : 1, asked.fds, asked.fds_count);
	assert_int_equal(told.last.type, type);
	assert_int_equal(told.last.flags, LIEN_WIRE_LAST);
	return told.last.result;
}

#define ASK(type, ...) ask_with(LIEN_WIRE_##type, (struct asked){__VA_ARGS__})
#define GATE(step)     ASK(GATE, .arg = LIEN_WIRE_GATE_##step)
#define FINISH(transaction, more)                                                                  \
	ASK(FINISH, .arg = (transaction), .flags = LIEN_WIRE_LAST | (more))

static void agent_is_silent(void)
{
	silent = 1;
	serve_one(NULL, 0, NULL, 0);
	silent = 0;
}

/* --- a process ----------------------------------------------------------------------------------
 */

/* By place: one that is its own, ones that are shared, ones that it has imported. */
static const uint32_t kinds[PLACES] = {LIEN_WIRE_OWNED, LIEN_WIRE_OWNED | LIEN_WIRE_SHARED,
	LIEN_WIRE_IMPORTED, LIEN_WIRE_OWNED, LIEN_WIRE_OWNED | LIEN_WIRE_SHARED,
	LIEN_WIRE_IMPORTED};

static struct lien_wire_item wire_of(unsigned place)
{
	return (struct lien_wire_item){.token = 1000 + place,
		.va = va_of(place),
		.bytes = LIEN_WIRE_STEP,
		.allocation_bytes = LIEN_WIRE_STEP,
		.flags = kinds[place],
		.mappings = 1,
		.handles = 1,
		.handle = {{.value = w.place[place], .references = 1}},
		.location_type = CU_MEM_LOCATION_TYPE_DEVICE,
		.places = 1,
		.place = {{CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}}};
}

static uint64_t token_of(unsigned place)
{
	return 1000 + place;
}

static int begin(void **state)
{
	CUmemGenericAllocationHandle handle;

	(void)state;
	kept.driver = kept.driver ? kept.driver : &driver;
	lien_order_forget(&kept, ~0u, 0);
	free(kept.items.item);
	free(kept.arena.chunks);
	memset(&kept, 0, sizeof(kept));
	lien_names_clear();
	memset(&w, 0, sizeof(w));
	kept.driver = &driver;
	lien_gate_open();
	for (unsigned i = 0; i < PLACES; i++) {
		handle_new(&handle, 10 + i);
		w.place[i] = handle;
	}
	return 0;
}

static void stage_all(uint64_t transaction, unsigned from, unsigned to)
{
	struct lien_wire_item items[PLACES];

	for (unsigned i = from; i < to; i++)
		items[i - from] = wire_of(i);
	assert_int_equal(ASK(STAGE, .flags = LIEN_WIRE_FIRST | LIEN_WIRE_LAST, .arg = transaction,
				 .body = items, .size = (to - from) * sizeof(items[0])),
		0);
	assert_int_equal(GATE(SHUT), 0);
}

/* Up to a phase of an offload. */
static void offload(uint64_t transaction, unsigned from, unsigned to, enum lien_wire_type last)
{
	static const enum lien_wire_type orders[] = {
		LIEN_WIRE_CHECK, LIEN_WIRE_SAVE, LIEN_WIRE_UNMAP, LIEN_WIRE_DROP};

	stage_all(transaction, from, to);
	for (unsigned i = 0; i < 4 && orders[i] <= last; i++)
		assert_int_equal(ask_with(orders[i], (struct asked){.arg = transaction}), 0);
}

static void import(unsigned place, uint64_t value)
{
	struct lien_wire_share share = {token_of(place)};
	int fd = memfd_create("import", MFD_CLOEXEC);

	assert_int_equal(pwrite(fd, &value, sizeof(value), 0), sizeof(value));
	assert_int_equal(
		ASK(IMPORT, .body = &share, .size = sizeof(share), .fds = &fd, .fds_count = 1), 0);
	close(fd);
}

/* All of the application's is as it was, nothing is known of it, and nothing more is held. */
static void check_forgotten(void)
{
	for (unsigned i = 0; i < PLACES; i++) {
		assert_true(w.place[i]);
		assert_int_equal(w.references[w.place[i]], 1);
	}
	assert_int_equal(ASK(LIST), 0);
	assert_int_equal(told.items, 0);
	assert_int_equal(told.last.arena_used, 0);
}

static unsigned references(void)
{
	unsigned sum = 0;

	for (unsigned i = 0; i < HANDLES; i++)
		sum += w.references[i];
	return sum;
}

/* --- the agent is not heard of ------------------------------------------------------------------
 */

/* What nobody else imports is forgotten; what is shared is lent, until a restore says that all have
 * it. */
static void test_saved_and_silent(void **state)
{
	unsigned shared = w.place[1];

	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_SAVE);
	assert_true(lien_gate_is_shut());
	agent_is_silent();
	assert_false(lien_gate_is_shut());
	assert_int_equal(ASK(UNMAP, .arg = FIRST), -ESTALE);
	assert_int_equal(ASK(DROP, .arg = FIRST), -ESTALE);
	assert_int_equal(ASK(LIST), 0);
	assert_int_equal(told.items, 1);
	assert_int_equal(told.item[0].token, token_of(1));
	assert_int_equal(told.item[0].flags, kinds[1] | LIEN_WIRE_HERE);
	assert_int_equal(told.last.arena_used, 0);
	assert_int_equal(ASK(HELLO), 0);
	assert_int_equal(told.hello.items, 1);
	assert_int_equal(told.hello.here, 1);
	assert_int_equal(told.hello.bytes + told.hello.shut, 0);
	/* The application frees it, and what it has there next is not what was shared. */
	w.value[shared] = 77;
	w.references[shared]--;
	w.place[1] = w.place[0];
	assert_int_equal(
		ASK(STAGE, .flags = LIEN_WIRE_FIRST | LIEN_WIRE_LAST, .arg = SECOND), -EBUSY);
	assert_non_null(strstr(told.last.text, "cut short"));
	assert_int_equal(ASK(END), -EBUSY);
	for (unsigned i = 0; i < 2; i++) { /* an importer does not get it, and then it does */
		assert_int_equal(ASK(CREATE), 0);
		assert_int_equal(ASK(EXPORT), 0);
		assert_int_equal(told.shares, 1);
		assert_int_equal(told.share[0].token, token_of(1));
		assert_int_equal(told.share[0].value, 77);
		assert_int_equal(FINISH(0, i ? 0 : LIEN_WIRE_KEEP), 0);
		assert_int_equal(w.references[shared], 1 - i);
		assert_int_equal(GATE(OPEN), 0);
	}
	assert_int_equal(ASK(LIST), 0);
	assert_int_equal(told.items, 0);
	w.place[1] = 0;
	handle_new(&(CUmemGenericAllocationHandle){0}, 0);
}

/* The same agent goes on, and puts its offload back. */
static void test_silent_and_undone(void **state)
{
	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_UNMAP); /* its import is away: the gate stays shut */
	agent_is_silent();
	assert_true(lien_gate_is_shut());
	assert_int_equal(ASK(DROP, .arg = FIRST), 0);
	assert_int_equal(ASK(CREATE, .arg = FIRST), 0);
	import(2, 12);
	assert_int_equal(FINISH(FIRST, 0), 0);
	assert_int_equal(GATE(OPEN), 0);
	check_forgotten();
	offload(SECOND, 0, 2, LIEN_WIRE_UNMAP); /* no import: it is let go */
	agent_is_silent();
	assert_false(lien_gate_is_shut());
	assert_int_equal(ASK(DROP, .arg = SECOND), -ESTALE);
	assert_int_equal(ASK(CREATE, .arg = SECOND), 0);
	assert_int_equal(ASK(EXPORT, .arg = SECOND), 0);
	assert_int_equal(told.shares, 1);
	assert_int_equal(FINISH(SECOND, 0), 0);
	assert_int_equal(GATE(OPEN), 0);
	check_forgotten();
}

/* No import was unmapped anywhere: nobody waits for what was lent. */
static void test_silent_and_discarded(void **state)
{
	(void)state;
	for (unsigned last = LIEN_WIRE_STAGE; last <= LIEN_WIRE_SAVE; last++) {
		offload(FIRST + last, 0, 6, last);
		agent_is_silent();
		assert_false(lien_gate_is_shut());
		assert_int_equal(ASK(SAVE, .arg = FIRST + last), -ESTALE);
		assert_int_equal(ASK(DISCARD, .arg = FIRST + last), 0);
		assert_int_equal(GATE(OPEN), 0);
		check_forgotten();
		assert_int_equal(references(), PLACES);
	}
}

/* A transaction of an agent that cannot shut the gate ends as well, when that is not heard of. */
static void test_silent_without_a_gate(void **state)
{
	(void)state;
	for (unsigned last = LIEN_WIRE_STAGE; last <= LIEN_WIRE_SAVE; last++) {
		offload(FIRST + last, 0, 3, last);
		lien_gate_open();
		agent_is_silent();
		assert_int_equal(
			ASK(SAVE, .arg = FIRST + last), last >= LIEN_WIRE_CHECK ? -ESTALE : 0);
		assert_int_equal(ASK(DISCARD, .arg = FIRST + last), 0);
		check_forgotten();
	}
	offload(SECOND, 0, 3,
		LIEN_WIRE_UNMAP); /* its import is away, and its own may have changed */
	lien_gate_open();
	agent_is_silent();
	assert_int_equal(ASK(DROP, .arg = SECOND), -ESTALE);
	assert_int_equal(ASK(EXPORT), 0);
	assert_int_equal(told.shares, 1);
	import(2, 12);
	assert_int_equal(FINISH(0, 0), 0);
	check_forgotten();
}

/* An agent that is there is not silent: what it says changes nothing. */
static void test_alive(void **state)
{
	(void)state;
	assert_int_equal(GATE(ALIVE), 0);
	assert_false(lien_gate_is_shut());
	offload(FIRST, 0, 3, LIEN_WIRE_UNMAP);
	assert_int_equal(GATE(ALIVE), 0);
	assert_true(lien_gate_is_shut());
	assert_int_equal(ASK(DROP, .arg = FIRST), 0);
	assert_int_equal(ASK(CREATE), 0);
	import(2, 12);
	assert_int_equal(GATE(ALIVE), 0);
	assert_int_equal(FINISH(0, 0), 0);
	assert_int_equal(GATE(OPEN), 0);
	check_forgotten();
}

/* An import that was let go is mapped still: an undo that brings it changes nothing. */
static void test_silent_and_imported(void **state)
{
	unsigned there = w.place[2];

	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_SAVE);
	agent_is_silent();
	assert_int_equal(ASK(UNMAP, .arg = FIRST), -ESTALE);
	import(2, 55);
	assert_int_equal(w.place[2], there);
	assert_int_equal(FINISH(FIRST, 0), 0);
	check_forgotten();
}

/* An agent that finds the gate shut and nothing away opens it: as if it had not been heard of. */
static void test_saved_and_opened(void **state)
{
	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_SAVE);
	assert_int_equal(GATE(OPEN), 0);
	assert_int_equal(ASK(LIST), 0);
	assert_int_equal(told.items, 1);
	assert_int_equal(told.item[0].flags, kinds[1] | LIEN_WIRE_HERE);
	assert_int_equal(ASK(EXPORT), 0);
	assert_int_equal(told.shares, 1);
	assert_int_equal(FINISH(0, 0), 0);
	check_forgotten();
}

/* In the middle of a list: the rest of it is not taken for the whole. */
static void test_silent_while_staging(void **state)
{
	struct lien_wire_item items[2] = {wire_of(0), wire_of(1)};

	(void)state;
	assert_int_equal(GATE(SHUT), 0);
	assert_int_equal(ASK(STAGE, .flags = LIEN_WIRE_FIRST, .arg = FIRST, .body = items,
				 .size = sizeof(items[0])),
		0);
	agent_is_silent();
	assert_int_equal(ASK(STAGE, .flags = LIEN_WIRE_LAST, .arg = FIRST, .body = items + 1,
				 .size = sizeof(items[0])),
		-ESTALE);
	assert_int_equal(ASK(CHECK, .arg = FIRST), -ESTALE);
	check_forgotten();
}

/* What a child of fork() has a copy of is not its own. */
static void test_forked(void **state)
{
	int status = -1;
	pid_t child;

	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_UNMAP);
	child = fork();
	if (!child) {
		memset(__start_lien_zero_in_child, 0, /* as control/start.c */
			__stop_lien_zero_in_child - __start_lien_zero_in_child);
		ASK(HELLO);
		/* Not by an exit: what it forgot is not freed, because a thread of the parent may
		 * have been changing it. */
		raise(told.hello.items || told.hello.shut || ASK(LIST) || told.items ? SIGABRT
										     : SIGKILL);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, SIGKILL);
	assert_int_equal(ASK(HELLO), 0);
	assert_int_equal(told.hello.items, 2);
	assert_int_equal(ASK(DROP, .arg = FIRST), 0);
	assert_int_equal(ASK(CREATE), 0);
	import(2, 12);
	assert_int_equal(FINISH(0, 0), 0);
	assert_int_equal(GATE(OPEN), 0);
	check_forgotten();
}

/* The job must not see a mark, or have a reference less. */
static void test_adoption_needs_the_gate(void **state)
{
	(void)state;
	assert_int_equal(ASK(COUNT), -ESTALE);
	assert_int_equal(ASK(MARKS, .flags = LIEN_WIRE_FIRST), -ESTALE);
	assert_int_equal(ASK(MARK), -ESTALE);
	assert_int_equal(ASK(LOOK), -ESTALE);
	assert_int_equal(ASK(UNMARK), 0);
	assert_int_equal(GATE(SHUT), 0);
	assert_int_equal(ASK(COUNT), 0);
	assert_int_equal(ASK(MARKS, .flags = LIEN_WIRE_FIRST), 0);
	assert_int_equal(ASK(MARK), 0);
	assert_int_equal(GATE(OPEN), 0);
}

/* --- orders mean one transaction's items ---------------------------------------------------------
 */

/* A second offload is refused, and discarded: what the first one has saved is none of its. */
static void test_discard_means_its_own(void **state)
{
	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_SAVE);
	assert_int_equal(
		ASK(STAGE, .flags = LIEN_WIRE_FIRST | LIEN_WIRE_LAST, .arg = SECOND), -EBUSY);
	assert_int_equal(ASK(DISCARD, .arg = SECOND), 0);
	assert_int_equal(GATE(OPEN), 0);
	assert_int_equal(ASK(EXPORT), 0);
	assert_int_equal(told.shares, 1);
	assert_int_equal(
		ASK(STAGE, .flags = LIEN_WIRE_FIRST | LIEN_WIRE_LAST, .arg = SECOND + 1), -EBUSY);
	assert_int_equal(ASK(DISCARD, .arg = SECOND + 1), 0);
	assert_int_equal(ASK(EXPORT), 0);
	assert_int_equal(told.shares, 1);
	assert_int_equal(FINISH(0, 0), 0);
	check_forgotten();
}

static int listed(unsigned place)
{
	for (unsigned i = 0; i < told.items; i++)
		if (told.item[i].token == token_of(place))
			return 1;
	return 0;
}

/* Two offloads are away. Undoing the second one, whose import is lost, changes nothing of the
 * first. */
static void test_undo_means_its_own(void **state)
{
	struct lien_wire_share lost = {token_of(5)};
	uint64_t used;

	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_DROP);
	used = told.last.arena_used;
	offload(SECOND, 3, 6, LIEN_WIRE_DROP);
	assert_true(told.last.arena_used > used);
	assert_int_equal(ASK(CREATE, .arg = SECOND), 0);
	assert_int_equal(ASK(EXPORT, .arg = SECOND), 0);
	assert_int_equal(told.shares, 1);
	assert_int_equal(told.share[0].token, token_of(4));
	assert_int_equal(ASK(FINISH, .arg = SECOND, .flags = LIEN_WIRE_LAST, .body = &lost,
				 .size = sizeof(lost)),
		0);
	assert_int_equal(told.last.arg2, 1);
	assert_int_equal(told.last.arena_used, used);
	assert_int_equal(GATE(OPEN), -EBUSY);
	assert_int_equal(ASK(LIST), 0);
	assert_int_equal(told.items, 3);
	for (unsigned i = 0; i < PLACES; i++) {
		assert_int_equal(listed(i), i < 3);
		assert_int_equal(w.place[i] != 0, i == 3 || i == 4);
	}
	assert_int_equal(w.value[w.place[3]], 13);
	assert_int_equal(w.value[w.place[4]], 14);
	assert_int_equal(ASK(CREATE), 0);
	import(2, 12);
	assert_int_equal(FINISH(0, 0), 0);
	assert_int_equal(GATE(OPEN), 0);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(w.value[w.place[i]], 10 + i);
}

/* The phases of the second one, while the first is away. */
static void test_offload_means_its_own(void **state)
{
	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_DROP);
	stage_all(SECOND, 3, 6);
	for (unsigned type = LIEN_WIRE_CHECK; type <= LIEN_WIRE_DROP; type++) {
		assert_int_equal(ask_with(type, (struct asked){.arg = FIRST}), 0);
		for (unsigned i = 3; i < PLACES; i++) {
			assert_true(w.place[i]);
			assert_int_equal(
				lien_items_find(&kept.items, token_of(i))->state, LIEN_ITEM_STAGED);
		}
	}
	assert_int_equal(FINISH(FIRST, LIEN_WIRE_KEEP), -EBUSY);
	assert_int_equal(ASK(DISCARD, .arg = FIRST), 0);
	for (unsigned i = 3; i < PLACES; i++)
		assert_non_null(lien_items_find(&kept.items, token_of(i)));
	assert_int_equal(ASK(DISCARD, .arg = SECOND), 0);
	assert_int_equal(ASK(CREATE), 0);
	import(2, 12);
	assert_int_equal(FINISH(0, 0), 0);
	assert_int_equal(GATE(OPEN), 0);
	check_forgotten();
}

/* While memory is away that was bound to an object, threads with any handle wait, whatever another
 * transaction does: the object has room where it was bound. */
static void test_unbound(void **state)
{
	struct lien_wire_item items[] = {wire_of(0), wire_of(0)};

	(void)state;
	items[0].mappings = items[1].mappings = 2;
	items[1].index = 1;
	items[1].va = items[1].places = 0;
	items[1].object = OBJECT;
	bound = 1;
	assert_int_equal(ASK(STAGE, .flags = LIEN_WIRE_FIRST | LIEN_WIRE_LAST, .arg = FIRST,
				 .body = items, .size = sizeof(items)),
		0);
	assert_int_equal(GATE(SHUT), 0);
	for (unsigned type = LIEN_WIRE_CHECK; type <= LIEN_WIRE_DROP; type++)
		assert_int_equal(ask_with(type, (struct asked){.arg = FIRST}), 0);
	assert_int_equal(bound, 0);
	assert_true(all_handles_wait);
	stage_all(SECOND, 3, 4);
	assert_true(all_handles_wait);
	assert_int_equal(ASK(DISCARD, .arg = SECOND), 0);
	assert_true(all_handles_wait);
	offload(SECOND + 1, 3, 4, LIEN_WIRE_DROP);
	assert_true(all_handles_wait);
	assert_int_equal(ASK(CREATE, .arg = SECOND + 1), 0);
	assert_int_equal(FINISH(SECOND + 1, 0), 0);
	assert_true(all_handles_wait);
	assert_int_equal(ASK(CREATE, .arg = FIRST), 0);
	assert_int_equal(bound, 1);
	assert_int_equal(FINISH(FIRST, 0), 0);
	assert_false(all_handles_wait);
	assert_int_equal(GATE(OPEN), 0);
	check_forgotten();
}

/* Only imports that are away can be lost; in several orders, of which the last one finishes. */
static void test_lost(void **state)
{
	struct lien_wire_share shares[] = {{token_of(0)}, {token_of(1)}, {token_of(2)}, {77}};

	(void)state;
	offload(FIRST, 0, 3, LIEN_WIRE_DROP);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ASK(FINISH, .body = shares, .size = sizeof(shares)), 0);
		assert_int_equal(told.last.arg2, 1 - i);
		assert_int_equal(ASK(LIST), 0);
		assert_int_equal(told.items, 2);
		assert_false(listed(2));
	}
	assert_int_equal(FINISH(0, 0), -EBUSY);
	assert_int_equal(ASK(CREATE), 0);
	assert_int_equal(
		ASK(FINISH, .flags = LIEN_WIRE_LAST, .body = shares, .size = sizeof(shares)), 0);
	assert_int_equal(told.last.arg2, 0);
	assert_int_equal(GATE(OPEN), 0);
	assert_false(w.place[2]);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_saved_and_silent),
		TEST(test_silent_and_undone),
		TEST(test_silent_and_discarded),
		TEST(test_silent_without_a_gate),
		TEST(test_alive),
		TEST(test_silent_and_imported),
		TEST(test_saved_and_opened),
		TEST(test_silent_while_staging),
		TEST(test_forked),
		TEST(test_adoption_needs_the_gate),
		TEST(test_discard_means_its_own),
		TEST(test_undo_means_its_own),
		TEST(test_offload_means_its_own),
		TEST(test_unbound),
		TEST(test_lost),
	};

	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
