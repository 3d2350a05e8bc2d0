// SPDX-License-Identifier: BSD-2-Clause
/* The other side of legacy IPC: memory of another process. A chunk is mapped once, whatever number
 * of its blocks is open. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <lien/locked.h>
#include <lien/pass_fds.h>

#include "control/ask/ask.h"
#include "control/plain/ipc.h"

struct chunk {
	LIST_ENTRY(chunk) entry;
	uint8_t cookie[LIEN_PLAIN_COOKIE];
	uint64_t number;
	struct lien_heap_range range;
	CUcontext context;
	unsigned blocks;
};

struct opened {
	LIST_ENTRY(opened) entry;
	struct lien_plain_handle handle;
	struct chunk *chunk;
	CUdeviceptr address;
	uint64_t id;
	unsigned count;
	int sync_memops;
};

LIST_HEAD(chunk_list, chunk);
LIST_HEAD(opened_list, opened);

static struct {
	/* One thread at a time maps, opens or closes; not while it asks an owner. */
	pthread_mutex_t turn;
	pthread_mutex_t lock; /* of the lists; held briefly */
	struct chunk_list chunks;
	struct opened_list list;
	unsigned count;
	uint64_t last_id;
} open_memory LIEN_ZERO_IN_CHILD;

/* The heap counts its blocks from 1. */
#define FIRST_ID (1ull << 40)

/* --- asking the owner ------------------------------------------------------------------------- */

#define ASK_MS	10000
#define LOOK_MS 200 /* so often a thread that waits for an owner looks whether that still lives */
/* An owner may close a connection without an answer, when many others connect, or when this thread
 * was held between its two questions. */
#define TRIES 8

/* The agent makes the connection, in the owner's network namespace. */
static int connect_there(const struct lien_plain_handle *handle, const struct sockaddr_un *name)
{
	int fd, err;
	struct lien_asked asked = {.passed = &fd};
	char request[128];

	snprintf(request, sizeof(request),
		"{\"op\": \"ipc_connect\", \"socket\": \"%.16s\", \"network\": %u}\n",
		name->sun_path + 1 + strlen(LIEN_PLAIN_PREFIX), handle->network);
	err = lien_ask(request, ASK_MS, &asked);
	if (err)
		return err == -EREMOTEIO && !strcmp(asked.code, "busy") ? -EAGAIN : -ECONNREFUSED;
	if (fd >= 0 && fcntl(fd, F_SETFL, 0)) { /* it blocks, as one made here does */
		close(fd);
		return -ECONNREFUSED;
	}
	return fd >= 0 ? fd : -ECONNREFUSED;
}

/* Returns a connection to the handle's owner, on which recv() waits LOOK_MS at a time; -EAGAIN: too
 * many wait for one; -errno. */
static int connect_to(const struct lien_plain_handle *handle)
{
	const struct timeval often = {.tv_usec = LOOK_MS * 1000};
	struct sockaddr_un name;
	const socklen_t length = lien_plain_socket_name(&name, handle->cookie);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), err = 0;

	if (fd < 0)
		return -errno;
	if (lien_plain_network(fd) != handle->network) {
		close(fd);
		fd = connect_there(handle, &name);
		if (fd < 0)
			return fd;
	} else {
		do
			err = connect(fd, (struct sockaddr *)&name, length);
		while (err && errno == EINTR);
	}
	if (err || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &often, sizeof(often))) {
		err = errno;
		close(fd);
		return -err;
	}
	return fd;
}

/* A child that the owner made by clone() alone keeps the socket, and answers nothing. An owner in
 * another pid namespace is taken for living. */
static int owner_lives(int socket)
{
	struct ucred owner;
	socklen_t size = sizeof(owner);
	struct pollfd end = {.events = POLLIN};
	int ended;

	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &owner, &size) || owner.pid <= 0)
		return 1;
	end.fd = syscall(SYS_pidfd_open, owner.pid, 0);
	if (end.fd < 0)
		return errno != ESRCH;
	ended = poll(&end, 1, 0) == 1;
	close(end.fd);
	return !ended;
}

/* Fills in where the block lies, and with `fd` a descriptor of its chunk. While the memory is away,
 * the owner answers when it is back. Returns CUDA_ERROR_NOT_READY: it has hung up. */
static CUresult ask_owner(int socket, const struct lien_plain_handle *handle,
	struct lien_plain_answer *answer, int *fd)
{
	const struct lien_plain_question question = {.handle = *handle, .export = fd != NULL};
	const struct iovec part = {(void *)&question, sizeof(question)};
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count = 0;
	ssize_t n = lien_pass_send(socket, &part, 1, NULL, 0);

	if (!n)
		do
			n = lien_pass_receive(socket, answer, sizeof(*answer), fds, &count, 0);
		while (n == -EAGAIN && owner_lives(socket));
	if (n == sizeof(*answer) && !answer->result && count == (fd != NULL)) {
		if (fd)
			*fd = fds[0];
		return CUDA_SUCCESS;
	}
	while (count)
		close(fds[--count]);
	if (!n || n == -EPIPE || n == -ECONNRESET)
		return CUDA_ERROR_NOT_READY;
	return n == sizeof(*answer) && answer->result ? (CUresult)answer->result
						      : CUDA_ERROR_INVALID_HANDLE;
}

/* --- opening ---------------------------------------------------------------------------------- */

static struct opened *find_handle(const struct lien_plain_handle *handle)
{
	struct opened *opened;

	LIST_FOREACH (opened, &open_memory.list, entry)
		if (!memcmp(&opened->handle, handle, sizeof(*handle)))
			return opened;
	return NULL;
}

static struct chunk *find_chunk(const uint8_t *cookie, uint64_t number)
{
	struct chunk *chunk;

	LIST_FOREACH (chunk, &open_memory.chunks, entry)
		if (chunk->number == number && !memcmp(chunk->cookie, cookie, LIEN_PLAIN_COOKIE))
			return chunk;
	return NULL;
}

/* The owner closes its end when it has closed the descriptor. An open one would keep the memory on
 * the device, if it were moved now. */
static void wait_for_end(int socket)
{
	char end;

	while (recv(socket, &end, 1, 0) < 0 && (errno == EINTR || errno == EAGAIN) &&
		owner_lives(socket))
		;
}

/* Maps a chunk that the owner answered with, in the current context. */
LIEN_TRANSLATED static CUresult new_chunk(const struct lien_plain_handle *handle,
	const struct lien_plain_answer *answer, int fd, struct chunk **got)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk));
	CUmemGenericAllocationHandle imported;
	CUdevice device = 0;
	CUresult result = CUDA_ERROR_INVALID_CONTEXT;

	if (!chunk)
		return CUDA_ERROR_OUT_OF_MEMORY;
	chunk->number = answer->chunk;
	chunk->range.bytes = answer->chunk_bytes;
	memcpy(chunk->cookie, handle->cookie, sizeof(chunk->cookie));
	if (!LIEN_REAL(cuCtxGetCurrent)(&chunk->context) && !LIEN_REAL(cuCtxGetDevice)(&device))
		result = lien_translate_cuMemImportFromShareableHandle(
			&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (!result)
		result = lien_plain_map(imported, device, 0, &chunk->range);
	if (result) {
		free(chunk);
		return result;
	}
	LIEN_LOCKED(&open_memory.lock);
	LIST_INSERT_HEAD(&open_memory.chunks, chunk, entry);
	*got = chunk;
	return CUDA_SUCCESS;
}

/* The chunk is mapped. */
LIEN_TRANSLATED static CUresult use_chunk(const struct chunk *chunk)
{
	CUcontext context = NULL;
	CUdevice device = 0;

	if (LIEN_REAL(cuCtxGetCurrent)(&context) || LIEN_REAL(cuCtxGetDevice)(&device))
		return CUDA_ERROR_INVALID_CONTEXT;
	return chunk->context == context ? CUDA_SUCCESS : lien_plain_allow(chunk->range, device);
}

static void remove_chunk(struct chunk *chunk)
{
	pthread_mutex_lock(&open_memory.lock);
	LIST_REMOVE(chunk, entry);
	pthread_mutex_unlock(&open_memory.lock);
	free(chunk);
}

/* Unmaps the chunk if none of its blocks is open. */
LIEN_TRANSLATED static CUresult put_chunk(struct chunk *chunk)
{
	CUresult result;

	if (chunk->blocks)
		return CUDA_SUCCESS;
	result = lien_plain_unmap(chunk->range);
	if (!result)
		remove_chunk(chunk);
	return result;
}

LIEN_TRANSLATED static CUresult open_block(const struct lien_plain_handle *handle,
	struct chunk *chunk, uint64_t offset, CUdeviceptr *ptr)
{
	struct opened *opened = NULL;
	CUresult result = CUDA_SUCCESS;

	if (offset > chunk->range.bytes || handle->bytes > chunk->range.bytes - offset)
		result = CUDA_ERROR_INVALID_HANDLE;
	else if (!(opened = calloc(1, sizeof(*opened))))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (result) {
		put_chunk(chunk);
		return result;
	}
	opened->handle = *handle;
	opened->chunk = chunk;
	opened->address = chunk->range.base + offset;
	opened->count = 1;
	*ptr = opened->address;
	pthread_mutex_lock(&open_memory.lock);
	opened->id = FIRST_ID + ++open_memory.last_id;
	chunk->blocks++;
	open_memory.count++;
	LIST_INSERT_HEAD(&open_memory.list, opened, entry);
	pthread_mutex_unlock(&open_memory.lock);
	return CUDA_SUCCESS;
}

/* Opens it once more, or with what the owner has answered; NULL: nothing yet. fd -1: only where the
 * chunk is mapped. Returns CUDA_ERROR_NOT_FOUND: more of an answer is needed. */
LIEN_TRANSLATED static CUresult open_with(const struct lien_plain_handle *handle,
	const struct lien_plain_answer *answer, int fd, CUdeviceptr *ptr)
{
	struct opened *opened;
	struct chunk *chunk;
	CUresult result = CUDA_ERROR_NOT_FOUND;

	LIEN_LOCKED(&open_memory.turn);
	opened = find_handle(handle);
	if (opened) {
		result = use_chunk(opened->chunk);
		if (result)
			return result;
		opened->count++;
		*ptr = opened->address;
		return CUDA_SUCCESS;
	}
	chunk = answer ? find_chunk(handle->cookie, answer->chunk) : NULL;
	if (chunk)
		result = use_chunk(chunk);
	else if (fd >= 0)
		result = new_chunk(handle, answer, fd, &chunk);
	return result ? result : open_block(handle, chunk, answer->offset, ptr);
}

LIEN_TRANSLATED static CUresult open_handle(
	const struct lien_plain_handle *handle, CUdeviceptr *ptr)
{
	struct lien_plain_answer answer;
	CUresult result = open_with(handle, NULL, -1, ptr);
	unsigned tries;
	int socket, fd;

	if (result != CUDA_ERROR_NOT_FOUND)
		return result;
	for (tries = 0; tries < TRIES; tries++) {
		socket = connect_to(handle);
		if (socket == -EAGAIN)
			usleep(LOOK_MS * 1000);
		else if (socket < 0)
			break;
		if (socket < 0)
			continue;
		result = ask_owner(socket, handle, &answer, NULL);
		if (!result)
			result = open_with(handle, &answer, -1, ptr);
		if (result == CUDA_ERROR_NOT_FOUND) {
			result = ask_owner(socket, handle, &answer, &fd);
			if (!result) {
				result = open_with(handle, &answer, fd, ptr);
				close(fd);
				wait_for_end(socket);
			}
		}
		close(socket);
		if (result != CUDA_ERROR_NOT_READY)
			return result;
	}
	return CUDA_ERROR_INVALID_HANDLE;
}

static LIEN_PLAIN(
	cuIpcOpenMemHandle_v2, CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags)
{
	struct lien_plain_handle ours;
	CUresult result;
	int state;

	memcpy(&ours, &handle, sizeof(ours));
	if (!ptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
		memcmp(ours.magic, LIEN_PLAIN_MAGIC, sizeof(ours.magic)) || !lien_plain_current())
		return LIEN_REAL(cuIpcOpenMemHandle_v2)(ptr, handle, flags);
	if (lien_plain_offered(&ours))
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state); /* the driver's is no such place */
	result = open_handle(&ours, ptr);
	pthread_setcancelstate(state, NULL);
	return result;
}

LIEN_INTERPOSE(LIEN_FROM_START, cuIpcOpenMemHandle, plain_cuIpcOpenMemHandle_v2);

/* --- what is open ----------------------------------------------------------------------------- */

static struct opened *find_address(CUdeviceptr address)
{
	struct opened *opened;

	LIST_FOREACH (opened, &open_memory.list, entry)
		if (address >= opened->address && address - opened->address < opened->handle.bytes)
			return opened;
	return NULL;
}

int lien_plain_any_sync_memops;

int lien_plain_find(CUdeviceptr address, struct lien_heap_block *block)
{
	struct opened *opened;

	if (lien_heap_find(&lien_plain_heap, address, block))
		return 1;
	if (!__atomic_load_n(&open_memory.count, __ATOMIC_RELAXED))
		return 0;
	LIEN_LOCKED(&open_memory.lock);
	opened = find_address(address);
	if (opened)
		*block = (struct lien_heap_block){
			.id = opened->id,
			.address = opened->address,
			.bytes = opened->handle.bytes,
			.sync_memops = opened->sync_memops,
			.key = {.context = (uintptr_t)opened->chunk->context},
			.chunk = opened->chunk->range,
		};
	return opened != NULL;
}

void lien_plain_set_sync_memops(const struct lien_heap_block *block, int value)
{
	struct opened *opened;

	if (value)
		__atomic_store_n(&lien_plain_any_sync_memops, 1, __ATOMIC_RELAXED);
	if (!lien_plain_is_opened(block)) {
		lien_heap_set_sync_memops(&lien_plain_heap, block, value);
		return;
	}
	LIEN_LOCKED(&open_memory.lock);
	opened = find_address(block->address);
	if (opened && opened->id == block->id)
		opened->sync_memops = value;
}

/* --- closing ---------------------------------------------------------------------------------- */

static void remove_opened(struct opened *opened)
{
	pthread_mutex_lock(&open_memory.lock);
	LIST_REMOVE(opened, entry);
	open_memory.count--;
	opened->chunk->blocks--;
	pthread_mutex_unlock(&open_memory.lock);
	free(opened);
}

/* If the owner has freed a small block and reused its place, opened blocks can overlap. */
static struct opened *find_start(CUdeviceptr address)
{
	struct opened *opened;

	LIST_FOREACH (opened, &open_memory.list, entry)
		if (opened->address == address)
			return opened;
	return NULL;
}

LIEN_TRANSLATED static CUresult close_address(CUdeviceptr address)
{
	struct opened *opened;
	struct chunk *chunk;
	CUresult result;

	LIEN_LOCKED(&open_memory.turn);
	opened = find_start(address);
	if (!opened)
		return CUDA_ERROR_INVALID_VALUE;
	if (opened->count > 1) {
		opened->count--;
		return CUDA_SUCCESS;
	}
	chunk = opened->chunk;
	result = lien_plain_wait(chunk->context);
	if (!result && chunk->blocks == 1)
		result = lien_plain_unmap(chunk->range);
	if (result)
		return result;
	remove_opened(opened);
	if (!chunk->blocks)
		remove_chunk(chunk);
	return CUDA_SUCCESS;
}

static LIEN_PLAIN(cuIpcCloseMemHandle, CUdeviceptr ptr)
{
	struct lien_heap_block block;
	CUresult result;
	int state;

	if (!lien_plain_find(ptr, &block) || !lien_plain_is_opened(&block) || !lien_plain_current())
		return LIEN_REAL(cuIpcCloseMemHandle)(ptr);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	result = close_address(ptr);
	pthread_setcancelstate(state, NULL);
	return result;
}

/* The driver closes what the context has opened. */
LIEN_TRANSLATED void lien_plain_opened_drop(CUcontext context)
{
	struct opened *opened, *next;
	struct chunk *chunk;

	if (!__atomic_load_n(&open_memory.count, __ATOMIC_RELAXED))
		return;
	LIEN_LOCKED(&open_memory.turn);
	for (opened = LIST_FIRST(&open_memory.list); opened; opened = next) {
		next = LIST_NEXT(opened, entry);
		chunk = opened->chunk;
		if (chunk->context != context)
			continue;
		remove_opened(opened);
		put_chunk(chunk);
	}
}
