// SPDX-License-Identifier: BSD-2-Clause
/*
 * What may be sent to a control library, and what its driver may answer. The input is 16 bytes that
 * say which calls of the driver fail, then messages: how many descriptors, what is to be set right
 * in its header, its length (16 bits), its bytes.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Their state outlives a socket, and is to be reset here. */
#include "control/driver/names.c"
#include "control/orders/serve.c"
#include "tests/unit/no_translate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BASE	       0x7e0000000000ull
#define PLACES	       8 /* of LIEN_WIRE_STEP each */
#define HANDLES	       8
#define HOST_BYTES_MAX (1ull << 30)

static const uint8_t *tape;
static unsigned calls;
static uint64_t host_bytes;
static int agent_end;
static uint64_t place[PLACES]; /* its handle; 0: nothing is mapped */
static uint64_t place_bytes[PLACES];
static unsigned references[HANDLES + 1];

/* --- a driver -----------------------------------------------------------------------------------
 */

static CUresult may_fail(void)
{
	unsigned n = calls++ % 128;

	return tape[n / 8] >> n % 8 & 1 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* The mapping that has the address; -1: none. */
static int place_of(uint64_t va)
{
	unsigned i;

	for (i = 0; i < PLACES; i++)
		if (place[i] && va - (BASE + i * LIEN_WIRE_STEP) < place_bytes[i])
			return i;
	return -1;
}

static CUresult error_name(CUresult result, const char **name)
{
	*name = result % 2 ? NULL : "CUDA_ERROR_OUT_OF_MEMORY";
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return ordinal < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult device_count(int *count)
{
	*count = 2;
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
	*context = (CUcontext)(uintptr_t)(device + 1);
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

static CUresult synchronize(void)
{
	return CUDA_SUCCESS;
}

static CUresult plain_alloc(CUdeviceptr *ptr, size_t bytes)
{
	(void)bytes;
	*ptr = 0x7000000;
	return CUDA_SUCCESS;
}

static CUresult plain_free(CUdeviceptr ptr)
{
	return ptr == 0x7000000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult capture_mode(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
	(void)flags;
	*stream = NULL;
	return may_fail();
}

static CUresult stream_any(CUstream stream)
{
	(void)stream;
	return may_fail();
}

static CUresult host_register(void *memory, size_t bytes, unsigned int flags)
{
	(void)memory, (void)flags;
	if (host_bytes + bytes > HOST_BYTES_MAX)
		return CUDA_ERROR_OUT_OF_MEMORY;
	host_bytes += bytes;
	return may_fail();
}

static CUresult host_unregister(void *memory)
{
	(void)memory;
	return CUDA_SUCCESS;
}

/* Touches both ends of the host's memory. */
static CUresult to_host(void *host, CUdeviceptr va, size_t bytes, CUstream stream)
{
	(void)stream;
	if (may_fail() || place_of(va) < 0 || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*(volatile char *)host = 1;
	*((volatile char *)host + bytes - 1) = 1;
	return CUDA_SUCCESS;
}

static CUresult to_device(CUdeviceptr va, const void *host, size_t bytes, CUstream stream)
{
	return to_host((void *)host, va, bytes, stream);
}

static CUresult get_info(size_t *free_bytes, size_t *total)
{
	*free_bytes = *total = LIEN_WIRE_STEP;
	return may_fail();
}

static CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr va)
{
	int i = place_of(va);

	if (i < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*base = BASE + i * LIEN_WIRE_STEP;
	*bytes = place_bytes[i];
	return may_fail();
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr va)
{
	(void)attribute, (void)va;
	*(int *)data = 0;
	return may_fail();
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr va)
{
	*flags = location->id ? 0 : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return place_of(va) < 0 ? CUDA_ERROR_INVALID_VALUE : may_fail();
}

static CUresult get_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	(void)handle;
	prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	return may_fail();
}

static CUresult handle_new(CUmemGenericAllocationHandle *handle)
{
	unsigned i;

	for (i = 1; i <= HANDLES; i++)
		if (!references[i]) {
			references[i] = 1;
			*handle = i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	(void)bytes, (void)prop, (void)flags;
	return may_fail() ? CUDA_ERROR_OUT_OF_MEMORY : handle_new(handle);
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
	if (handle > HANDLES || !references[handle])
		return CUDA_ERROR_INVALID_VALUE;
	references[handle]--;
	return CUDA_SUCCESS;
}

static CUresult mem_retain(CUmemGenericAllocationHandle *handle, void *va)
{
	int i = place_of((uintptr_t)va);

	if (i < 0 || may_fail())
		return CUDA_ERROR_INVALID_VALUE;
	*handle = place[i];
	references[place[i]]++;
	return CUDA_SUCCESS;
}

static CUresult mem_map(CUdeviceptr va, size_t bytes, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	unsigned i = (va - BASE) / LIEN_WIRE_STEP;

	(void)offset, (void)flags;
	if (va < BASE || i >= PLACES || place[i] || !handle || handle > HANDLES || may_fail())
		return CUDA_ERROR_INVALID_VALUE;
	place[i] = handle;
	place_bytes[i] = bytes;
	return CUDA_SUCCESS;
}

static CUresult mem_unmap(CUdeviceptr va, size_t bytes)
{
	int i = place_of(va);

	(void)bytes;
	if (i < 0 || may_fail())
		return CUDA_ERROR_INVALID_VALUE;
	place[i] = 0;
	return CUDA_SUCCESS;
}

static CUresult set_access(
	CUdeviceptr va, size_t bytes, const CUmemAccessDesc *places, size_t count)
{
	CUmemAccessDesc last;

	(void)va, (void)bytes;
	memcpy(&last, &places[count - 1], sizeof(last));
	return may_fail();
}

static CUresult mem_export(void *out, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	(void)handle, (void)type, (void)flags;
	if (may_fail())
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)out = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return CUDA_SUCCESS;
}

static CUresult mem_import(
	CUmemGenericAllocationHandle *handle, void *fd, CUmemAllocationHandleType type)
{
	(void)fd, (void)type;
	return may_fail() ? CUDA_ERROR_INVALID_VALUE : handle_new(handle);
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
	memset(uuid, device, sizeof(*uuid));
	return may_fail();
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	(void)attribute, (void)device;
	*value = 0;
	return may_fail();
}

static CUresult set_bytes(CUdeviceptr va, unsigned char value, size_t bytes, CUstream stream)
{
	(void)value, (void)stream;
	return place_of(va) < 0 || !bytes ? CUDA_ERROR_INVALID_VALUE : may_fail();
}

/* Where nothing is ever mapped. */
static CUresult address_reserve(
	CUdeviceptr *va, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
	(void)bytes, (void)alignment, (void)wish, (void)flags;
	*va = BASE + PLACES * LIEN_WIRE_STEP;
	return may_fail();
}

static CUresult address_free(CUdeviceptr va, size_t bytes)
{
	(void)va, (void)bytes;
	return may_fail();
}

const struct lien_driver *lien_driver_find(const char **missing)
{
	static const struct lien_driver driver = {
		.cuGetErrorName = error_name,
		.cuDeviceGet = device_get,
		.cuDeviceGetCount = device_count,
		.cuDevicePrimaryCtxGetState = context_state,
		.cuDevicePrimaryCtxRetain = context_retain,
		.cuDevicePrimaryCtxRelease_v2 = context_release,
		.cuCtxSetCurrent = context_set,
		.cuCtxSynchronize = synchronize,
		.cuMemAlloc_v2 = plain_alloc,
		.cuMemFree_v2 = plain_free,
		.cuThreadExchangeStreamCaptureMode = capture_mode,
		.cuStreamCreate = stream_create,
		.cuStreamDestroy_v2 = stream_any,
		.cuStreamSynchronize = stream_any,
		.cuMemHostRegister_v2 = host_register,
		.cuMemHostUnregister = host_unregister,
		.cuMemcpyHtoDAsync_v2 = to_device,
		.cuMemcpyDtoHAsync_v2 = to_host,
		.cuMemGetInfo_v2 = get_info,
		.cuMemGetAddressRange_v2 = address_range,
		.cuPointerGetAttribute = pointer_attribute,
		.cuMemGetAccess = get_access,
		.cuMemGetAllocationPropertiesFromHandle = get_properties,
		.cuMemCreate = mem_create,
		.cuMemRelease = mem_release,
		.cuMemRetainAllocationHandle = mem_retain,
		.cuMemAddressReserve = address_reserve,
		.cuMemAddressFree = address_free,
		.cuMemMap = mem_map,
		.cuMemUnmap = mem_unmap,
		.cuMemSetAccess = set_access,
		.cuMemExportToShareableHandle = mem_export,
		.cuMemImportFromShareableHandle = mem_import,
		.cuDeviceGetUuid_v2 = device_uuid,
		.cuDeviceGetAttribute = device_attribute,
		.cuMemsetD8Async = set_bytes,
	};

	*missing = NULL;
	return &driver;
}

void lien_driver_error(const struct lien_driver *driver, CUresult result, char *text, size_t size)
{
	(void)driver;
	snprintf(text, size, "CUDA error %d", result);
}

/* --- the agent's end ----------------------------------------------------------------------------
 */

/* Takes the replies out, and looks whether they are what wire.h says. */
static void take_replies(void)
{
	static struct lien_order message;
	ssize_t n;

	while ((n = lien_pass_receive(agent_end, message.bytes, sizeof(message.bytes), message.fds,
			&message.fds_count, MSG_DONTWAIT)) > 0) {
		if (n < (ssize_t)sizeof(message.header) || message.header.length != (size_t)n ||
			memchr(message.header.text, 0, sizeof(message.header.text)) == NULL)
			abort();
		while (message.fds_count)
			close(message.fds[--message.fds_count]);
	}
	if (n == -EMSGSIZE)
		abort();
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
	(void)fds, (void)timeout;
	take_replies();
	return count;
}

/* Host memory that nobody looks at is not to be made. */
int __wrap_madvise(void *memory, size_t bytes, int advice);
int __wrap_madvise(void *memory, size_t bytes, int advice)
{
	(void)memory, (void)bytes, (void)advice;
	return 0;
}

/* False: the input ends. */
static int send_one(const uint8_t **at, size_t *left)
{
	static union {
		struct lien_wire_header header;
		char bytes[LIEN_WIRE_MESSAGE_MAX];
	} message;
	struct iovec part = {message.bytes, 0};
	int fds[3] = {agent_end, agent_end, agent_end};
	unsigned set;
	uint16_t length;

	if (*left < 4)
		return 0;
	set = (*at)[1];
	memcpy(&length, *at + 2, sizeof(length));
	part.iov_len = length < *left - 4 ? length : *left - 4;
	memcpy(message.bytes, *at + 4, part.iov_len);
	if (set & 1)
		message.header.length = part.iov_len;
	if (set & 2)
		message.header.type = set >> 4;
	lien_pass_send(agent_end, &part, 1, fds, (*at)[0] % 4);
	*left -= 4 + part.iov_len;
	*at += 4 + part.iov_len;
	return 1;
}

static void reset(void)
{
	unsigned i;

	for (i = 0; i < PLACES; i++) {
		place[i] = i < 4 ? (i < 3 ? i + 1 : 3) : 0; /* the last one is an alias */
		place_bytes[i] = LIEN_WIRE_STEP;
	}
	for (i = 0; i <= HANDLES; i++)
		references[i] = i >= 1 && i <= 3;
	calls = 0;
	host_bytes = 0;
}

/* As if the process had just begun; but for the thread that waits for the devices. */
static void forget_all(void)
{
	struct lien_drain *drain = kept.drain;
	unsigned i;

	for (i = 0; i < kept.arena.count; i++)
		munmap(kept.arena.chunks[i].memory, kept.arena.chunks[i].bytes);
	free(kept.arena.chunks);
	free(kept.items.item);
	free(kept.marks.mark);
	memset(&kept, 0, sizeof(kept));
	kept.drain = drain;
	while (!RB_EMPTY(&names))
		forget(RB_ROOT(&names));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t left = size - 16;
	int pair[2];

	if (size < 16)
		return 0;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		abort(); /* descriptors are not given back */
	setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
	reset();
	tape = data;
	data += 16;
	agent_end = pair[0];
	while (send_one(&data, &left))
		;
	shutdown(pair[0], SHUT_WR); /* serve() returns when it has obeyed all */
	lien_control_serve(pair[1], lien_control_inode(pair[1]));
	take_replies();
	close(pair[0]);
	close(pair[1]);
	forget_all();
	return 0;
}
