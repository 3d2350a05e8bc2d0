// SPDX-License-Identifier: BSD-2-Clause
/* The owner's side of legacy IPC. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/clock.h>
#include <lien/locked.h>
#include <lien/pass_fds.h>

#include "control/plain/ipc.h"
#include "control/driver/thread.h"

/* Programs count their descriptors from below. */
#define FD_FLOOR 900

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

#define BACKLOG	    128
#define GUESTS	    32		  /* at a time; anybody can connect */
#define PATIENCE_NS 5000000000ull /* for a guest that is silent */
#define RETRY_US    10000
#define SPARE	    2 /* a connection, and the descriptor of a chunk */

/* A connection. The application may close the socket and reuse its number: the inode tells. */
struct guest {
	int socket;
	unsigned answers;
	uint64_t inode;
	uint64_t heard_ns; /* when it connected or got its last answer */
};

static struct {
	pthread_mutex_t lock;
	int listens;
	int socket;
	uint64_t inode; /* of the socket: the application may close it, and reuse its number */
	uint32_t network;
	uint8_t cookie[LIEN_PLAIN_COOKIE];
	/* the same socket once more: kept for when the application has no descriptor left; not
	 * above 0: none */
	int spare[SPARE];
	/* the answering thread's */
	unsigned guests;
	struct guest guest[GUESTS];
} offer LIEN_ZERO_IN_CHILD;

socklen_t lien_plain_socket_name(struct sockaddr_un *name, const uint8_t *cookie)
{
	uint64_t first;
	int n;

	_Static_assert(sizeof(first) == LIEN_PLAIN_NAME, "the bytes of the name");
	memcpy(&first, cookie, sizeof(first));
	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	n = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, LIEN_PLAIN_PREFIX "%016lx",
		be64toh(first));
	return offsetof(struct sockaddr_un, sun_path) + 1 + n;
}

uint32_t lien_plain_network(int socket)
{
	uint64_t number = 0;
	socklen_t size = sizeof(number);

	getsockopt(socket, SOL_SOCKET, SO_NETNS_COOKIE, &number, &size);
	return number;
}

int lien_plain_offered(const struct lien_plain_handle *handle)
{
	return __atomic_load_n(&offer.listens, __ATOMIC_ACQUIRE) &&
	       !memcmp(handle->cookie, offer.cookie, sizeof(offer.cookie));
}

/* --- descriptors that are kept ---------------------------------------------------------------- */

static uint64_t inode_of(int fd)
{
	struct stat stat;

	return syscall(SYS_fstat, fd, &stat) ? 0 : stat.st_ino;
}

static void make_spare(void)
{
	unsigned i;

	for (i = 0; i < SPARE; i++)
		if (offer.spare[i] <= 0)
			offer.spare[i] = fcntl(offer.socket, F_DUPFD_CLOEXEC, FD_FLOOR);
}

/* The application may have closed them. Returns whether there were any. */
static int close_spare(void)
{
	unsigned i;
	int any = 0;

	for (i = 0; i < SPARE; i++) {
		if (offer.spare[i] > 0 && inode_of(offer.spare[i]) == offer.inode)
			any |= !close(offer.spare[i]);
		offer.spare[i] = 0;
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
		!lien_plain_offered(handle) ||
		!lien_heap_find(&lien_plain_heap, handle->address, &block) ||
		block.id != handle->id || !block.secret || block.secret != handle->secret)
		return CUDA_ERROR_INVALID_VALUE; /* freed */
	answer->chunk = block.chunk_id;
	answer->chunk_bytes = block.chunk.bytes;
	answer->offset = block.address - block.chunk.base;
	if (!question->export)
		return CUDA_SUCCESS;
	result = export_chunk(block.chunk.base, fd);
	return result && close_spare() ? export_chunk(block.chunk.base, fd) : result;
}

/* Answers the next question, if it is there. Returns whether another one may follow. */
LIEN_TRANSLATED static int answer_one(struct guest *guest)
{
	struct lien_plain_question question;
	struct lien_plain_answer answer = {0};
	const struct iovec part = {&answer, sizeof(answer)};
	ssize_t n =
		lien_pass_receive_plain(guest->socket, &question, sizeof(question), MSG_DONTWAIT);
	int fd = -1, err;

	if (n != sizeof(question))
		return n == -EAGAIN;
	answer.result = look_up(&question, &answer, &fd);
	err = lien_pass_send(guest->socket, &part, 1, &fd, fd >= 0);
	if (fd >= 0)
		close(fd);
	guest->heard_ns = lien_clock_ns();
	return !err && !question.export && !guest->answers++;
}

static void close_guest(const struct guest *guest, int also_copies)
{
	if (inode_of(guest->socket) != guest->inode)
		return;
	if (also_copies) /* a child that the application has forked has one */
		shutdown(guest->socket, SHUT_RDWR);
	close(guest->socket);
}

static void dismiss(unsigned i)
{
	close_guest(&offer.guest[i], 1);
	offer.guest[i] = offer.guest[--offer.guests];
}

/* Returns the one that has been silent longest. There must be one. */
static unsigned most_silent(void)
{
	unsigned i, at = 0;

	for (i = 1; i < offer.guests; i++)
		if (offer.guest[i].heard_ns < offer.guest[at].heard_ns)
			at = i;
	return at;
}

/* While the application has no descriptor left, there is one guest at a time: a spare one must be
 * left for a chunk. */
static int accept_one(void)
{
	int socket = accept4(offer.socket, NULL, NULL, SOCK_CLOEXEC);

	if (socket < 0 && (errno == EMFILE || errno == ENFILE) && !offer.guests && close_spare())
		socket = accept4(offer.socket, NULL, NULL, SOCK_CLOEXEC);
	return socket;
}

/* Lets in the next guest, in the place of a silent one if need be. */
static void let_in(void)
{
	const int socket = accept_one();

	if (socket < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			usleep(RETRY_US); /* too many open files */
		return;
	}
	if (offer.guests == GUESTS)
		dismiss(most_silent());
	offer.guest[offer.guests++] = (struct guest){
		.socket = socket, .inode = inode_of(socket), .heard_ns = lien_clock_ns()};
}

static int is_listening(void)
{
	return inode_of(offer.socket) == offer.inode;
}

/* Waits until a guest speaks, has been silent for too long, or comes, and does what that takes. */
LIEN_TRANSLATED static void serve(void)
{
	struct pollfd ready[GUESTS + 1] = {{.fd = offer.socket, .events = POLLIN}};
	const uint64_t now = lien_clock_ns();
	const unsigned count = offer.guests;
	struct guest *guest;
	int wait = -1;
	unsigned i;

	for (i = 0; i < count; i++)
		ready[1 + i] = (struct pollfd){offer.guest[i].socket, POLLIN, 0};
	if (count) {
		const uint64_t end = offer.guest[most_silent()].heard_ns + PATIENCE_NS;

		wait = end > now ? (int)((end - now) / 1000000 + 1) : 0;
	}
	if (poll(ready, 1 + count, wait) < 0)
		return;
	/* From the end, because the last one takes the place of one that goes. */
	for (i = count; i--;) {
		guest = &offer.guest[i];
		if (ready[1 + i].revents
				? inode_of(guest->socket) != guest->inode || !answer_one(guest)
				: lien_clock_ns() - guest->heard_ns >= PATIENCE_NS)
			dismiss(i);
	}
	if (ready[0].revents && is_listening())
		let_in();
}

/* This thread's calls are the application's: libc calls it, and the agent may hold it. */
LIEN_TRANSLATED static void *answer_all(void *arg)
{
	prctl(PR_SET_NAME, "lien-ipc");
	while (is_listening()) {
		make_spare();
		serve();
	}
	while (offer.guests)
		dismiss(0);
	close_spare();
	/* The next handle begins anew. */
	__atomic_store_n(&offer.listens, 0, __ATOMIC_RELEASE);
	return arg;
}

/* --- listening -------------------------------------------------------------------------------- */

static int make_socket(const uint8_t *cookie)
{
	struct sockaddr_un name;
	socklen_t length = lien_plain_socket_name(&name, cookie);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), raised;

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
	LIEN_LOCKED(&offer.lock);
	if (offer.listens || syscall(SYS_getrandom, offer.cookie, sizeof(offer.cookie), 0) !=
				     sizeof(offer.cookie))
		return offer.listens;
	offer.socket = make_socket(offer.cookie);
	offer.inode = inode_of(offer.socket);
	offer.network = lien_plain_network(offer.socket);
	if (offer.socket < 0)
		return 0;
	if (lien_thread_start(answer_all, NULL)) {
		close(offer.socket);
		offer.inode = 0;
		return 0;
	}
	__atomic_store_n(&offer.listens, 1, __ATOMIC_RELEASE);
	return 1;
}

void lien_plain_forked(void)
{
	unsigned i;

	close_spare();
	for (i = 0; i < offer.guests; i++)
		close_guest(&offer.guest[i], 0);
	if (offer.inode && inode_of(offer.socket) == offer.inode)
		close(offer.socket);
}

/* Returns whether the block has a secret now. */
static int give_secret(struct lien_heap_block *block)
{
	uint64_t secret = 0;

	return block->secret ||
	       (syscall(SYS_getrandom, &secret, sizeof(secret), 0) == sizeof(secret) && secret &&
		       !lien_heap_offer(&lien_plain_heap, block, secret));
}

static LIEN_PLAIN(cuIpcGetMemHandle, CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct lien_plain_handle made = {.magic = LIEN_PLAIN_MAGIC};
	struct lien_heap_block block;

	if (!handle || !lien_heap_find(&lien_plain_heap, ptr, &block) || block.key.pool ||
		!lien_plain_current())
		return LIEN_REAL(cuIpcGetMemHandle)(handle, lien_plain_wait_keeps(ptr) ? 0 : ptr);
	if (!listen_once() || !give_secret(&block))
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(made.cookie, offer.cookie, sizeof(made.cookie));
	made.id = block.id;
	made.address = block.address;
	made.bytes = block.bytes;
	made.pid = getpid();
	made.network = offer.network;
	made.secret = block.secret;
	memcpy(handle, &made, sizeof(made));
	return CUDA_SUCCESS;
}
