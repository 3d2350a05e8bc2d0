// SPDX-License-Identifier: BSD-2-Clause
/* The owner's side of legacy IPC. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/pass_fds.h>

#include "control/plain/ipc.h"
#include "control/driver/thread.h"

/* Programs count their descriptors from below. */
#define FD_FLOOR 900

#define BACKLOG	   128
#define PATIENCE_S 5 /* for a process that connects and shows nothing */
#define RETRY_US   10000
#define SPARE	   2 /* a connection, and the descriptor of a chunk */

static struct {
	pthread_mutex_t lock;
	int listens;
	int socket;
	uint64_t inode; /* of the socket: the application may close it, and reuse its number */
	uint8_t cookie[LIEN_PLAIN_COOKIE];
	/* the same socket once more: kept for when the application has no descriptor left */
	int spare[SPARE];
} offer = {.lock = PTHREAD_MUTEX_INITIALIZER, .socket = -1, .spare = {-1, -1}};

socklen_t lien_plain_socket_name(struct sockaddr_un *name, const uint8_t *cookie)
{
	static const char digits[] = "0123456789abcdef";
	static const char prefix[] = "lien-ipc-";
	char *at = name->sun_path + 1;
	unsigned i;

	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	memcpy(at, prefix, sizeof(prefix) - 1);
	at += sizeof(prefix) - 1;
	for (i = 0; i < LIEN_PLAIN_COOKIE; i++) {
		*at++ = digits[cookie[i] >> 4];
		*at++ = digits[cookie[i] & 15];
	}
	return at - (char *)name;
}

int lien_plain_same_user(int socket)
{
	struct ucred other;
	socklen_t size = sizeof(other);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &size) &&
	       other.uid == geteuid();
}

int lien_plain_offered(const struct lien_plain_handle *handle)
{
	return __atomic_load_n(&offer.listens, __ATOMIC_ACQUIRE) &&
	       !memcmp(handle->cookie, offer.cookie, sizeof(offer.cookie));
}

/* --- descriptors that are kept ------------------------------------------------------------------
 */

static uint64_t inode_of(int fd)
{
	struct stat stat;

	return syscall(SYS_fstat, fd, &stat) ? 0 : stat.st_ino;
}

static void make_spare(int listening)
{
	unsigned i;

	for (i = 0; i < SPARE; i++)
		if (offer.spare[i] < 0)
			offer.spare[i] = fcntl(listening, F_DUPFD_CLOEXEC, FD_FLOOR);
}

/* The application may have closed them. Returns whether there were any. */
static int close_spare(void)
{
	unsigned i;
	int any = 0;

	for (i = 0; i < SPARE; i++) {
		if (offer.spare[i] >= 0 && inode_of(offer.spare[i]) == offer.inode)
			any |= !close(offer.spare[i]);
		offer.spare[i] = -1;
	}
	return any;
}

/* --- answering -------------------------------------------------------------------------------- */

/* While the memory is away, the agent holds this thread at the first of these calls. */
LIEN_TRANSLATED static CUresult export_chunk(CUdeviceptr address, int *fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = lien_translate_retain(&handle, address);

	if (result)
		return result;
	result = lien_translate_cuMemExportToShareableHandle(
		fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	lien_plain_release(handle);
	return result;
}

LIEN_TRANSLATED static CUresult look_up(
	const struct lien_plain_question *question, struct lien_plain_answer *answer, int *fd)
{
	const struct lien_plain_handle *handle = &question->handle;
	struct lien_heap_block block;
	CUresult result;

	if (memcmp(handle->magic, LIEN_PLAIN_MAGIC, sizeof(handle->magic)) ||
		!lien_plain_offered(handle) || !lien_plain_find(handle->address, &block) ||
		block.id != handle->id)
		return CUDA_ERROR_INVALID_VALUE; /* freed */
	answer->chunk = block.chunk_id;
	answer->chunk_bytes = block.chunk.bytes;
	answer->offset = block.address - block.chunk.base;
	if (!question->export)
		return CUDA_SUCCESS;
	result = export_chunk(block.chunk.base, fd);
	return result && close_spare() ? export_chunk(block.chunk.base, fd) : result;
}

/* Answers the next question. Returns whether there was one. */
LIEN_TRANSLATED static int answer_one(int socket)
{
	struct lien_plain_question question;
	struct lien_plain_answer answer = {0};
	const struct iovec part = {&answer, sizeof(answer)};
	int fd = -1, err;

	if (lien_pass_receive_plain(socket, &question, sizeof(question), 0) != sizeof(question))
		return 0;
	answer.result = look_up(&question, &answer, &fd);
	err = lien_pass_send(socket, &part, 1, &fd, fd >= 0);
	if (fd >= 0)
		close(fd);
	return !err;
}

LIEN_TRANSLATED static void answer_process(int socket)
{
	const struct timeval patience = {.tv_sec = PATIENCE_S};

	setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (lien_plain_same_user(socket) && answer_one(socket))
		answer_one(socket);
}

static int accept_one(int listening)
{
	int socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC);

	if (socket < 0 && (errno == EMFILE || errno == ENFILE) && close_spare())
		socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
	return socket;
}

/* This thread's calls are the application's: libc calls it, and the agent may hold it. */
LIEN_TRANSLATED static void *answer_all(void *arg)
{
	const uint64_t inode = offer.inode;
	int listening = (intptr_t)arg, socket;

	prctl(PR_SET_NAME, "lien-ipc");
	while (inode_of(listening) == inode) {
		make_spare(listening);
		socket = accept_one(listening);
		if (socket >= 0) {
			answer_process(socket);
			close(socket);
		} else if (errno != EINTR && errno != ECONNABORTED) {
			usleep(RETRY_US); /* too many open files */
		}
	}
	close_spare();
	/* The next handle begins anew. */
	__atomic_store_n(&offer.listens, 0, __ATOMIC_RELEASE);
	return NULL;
}

/* --- listening -------------------------------------------------------------------------------- */

static int make_socket(const uint8_t *cookie)
{
	struct sockaddr_un name;
	socklen_t length = lien_plain_socket_name(&name, cookie);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), raised;

	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&name, length) || listen(fd, BACKLOG)) {
		close(fd);
		return -1;
	}
	raised = fcntl(fd, F_DUPFD_CLOEXEC, FD_FLOOR);
	if (raised >= 0)
		close(fd);
	return raised >= 0 ? raised : fd;
}

/* Returns whether this process can be asked for its memory. */
static int listen_once(void)
{
	pthread_mutex_lock(&offer.lock);
	if (!offer.listens && syscall(SYS_getrandom, offer.cookie, sizeof(offer.cookie), 0) ==
				      sizeof(offer.cookie)) {
		offer.socket = make_socket(offer.cookie);
		offer.inode = inode_of(offer.socket);
		if (offer.socket >= 0 &&
			!lien_thread_start(answer_all, (void *)(intptr_t)offer.socket)) {
			__atomic_store_n(&offer.listens, 1, __ATOMIC_RELEASE);
		} else if (offer.socket >= 0) {
			close(offer.socket);
			offer.socket = -1;
		}
	}
	pthread_mutex_unlock(&offer.lock);
	return offer.listens;
}

void lien_plain_offered_forked(void)
{
	close_spare();
	if (offer.socket >= 0 && inode_of(offer.socket) == offer.inode)
		close(offer.socket);
	memset(&offer, 0, sizeof(offer));
	offer.socket = offer.spare[0] = offer.spare[1] = -1;
	pthread_mutex_init(&offer.lock, NULL);
}

LIEN_TRANSLATED CUresult lien_plain_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct lien_plain_handle made = {.magic = LIEN_PLAIN_MAGIC};
	struct lien_heap_block block;

	if (!handle || !lien_plain_find(ptr, &block) || block.key.pool || !lien_plain_current())
		return LIEN_REAL(cuIpcGetMemHandle)(handle, lien_plain_wait_keeps(ptr) ? 0 : ptr);
	if (!listen_once())
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(made.cookie, offer.cookie, sizeof(made.cookie));
	made.id = block.id;
	made.address = block.address;
	made.bytes = block.bytes;
	made.pid = getpid();
	memcpy(handle, &made, sizeof(made));
	return CUDA_SUCCESS;
}

LIEN_EXPORT_AS(cuIpcGetMemHandle, lien_plain_cuIpcGetMemHandle);
