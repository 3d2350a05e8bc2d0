// SPDX-License-Identifier: BSD-2-Clause
/* The owner's side of legacy IPC. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/clock.h>
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

struct guests {
	int listening;
	uint64_t inode; /* of that */
	unsigned count;
	struct guest guest[GUESTS];
};

static struct {
	pthread_mutex_t lock;
	int listens;
	int socket;
	uint64_t inode; /* of the socket: the application may close it, and reuse its number */
	uint32_t network;
	uint8_t cookie[LIEN_PLAIN_COOKIE];
	/* the same socket once more: kept for when the application has no descriptor left */
	int spare[SPARE];
	struct guests guests; /* the answering thread's */
} offer = {.lock = PTHREAD_MUTEX_INITIALIZER, .socket = -1, .spare = {-1, -1}};

socklen_t lien_plain_socket_name(struct sockaddr_un *name, const uint8_t *cookie)
{
	static const char digits[] = "0123456789abcdef";
	char *at = name->sun_path + 1;
	unsigned i;

	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	memcpy(at, LIEN_PLAIN_PREFIX, strlen(LIEN_PLAIN_PREFIX));
	at += strlen(LIEN_PLAIN_PREFIX);
	for (i = 0; i < LIEN_PLAIN_NAME; i++) {
		*at++ = digits[cookie[i] >> 4];
		*at++ = digits[cookie[i] & 15];
	}
	return at - (char *)name;
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

static void dismiss(struct guests *guests, unsigned i)
{
	close_guest(&guests->guest[i], 1);
	guests->guest[i] = guests->guest[--guests->count];
}

/* Returns the one that has been silent longest. There must be one. */
static unsigned most_silent(const struct guests *guests)
{
	unsigned i, at = 0;

	for (i = 1; i < guests->count; i++)
		if (guests->guest[i].heard_ns < guests->guest[at].heard_ns)
			at = i;
	return at;
}

/* While the application has no descriptor left, there is one guest at a time: a spare one must be
 * left for a chunk. */
static int accept_one(const struct guests *guests)
{
	int socket = accept4(guests->listening, NULL, NULL, SOCK_CLOEXEC);

	if (socket < 0 && (errno == EMFILE || errno == ENFILE) && !guests->count && close_spare())
		socket = accept4(guests->listening, NULL, NULL, SOCK_CLOEXEC);
	return socket;
}

/* Lets in the next guest, in the place of a silent one if need be. */
static void let_in(struct guests *guests)
{
	const int socket = accept_one(guests);

	if (socket < 0) {
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			usleep(RETRY_US); /* too many open files */
		return;
	}
	if (guests->count == GUESTS)
		dismiss(guests, most_silent(guests));
	guests->guest[guests->count++] = (struct guest){
		.socket = socket, .inode = inode_of(socket), .heard_ns = lien_clock_ns()};
}

/* Waits until a guest speaks, has been silent for too long, or comes, and does what that takes. */
LIEN_TRANSLATED static void serve(struct guests *guests)
{
	struct pollfd ready[GUESTS + 1] = {{.fd = guests->listening, .events = POLLIN}};
	const uint64_t now = lien_clock_ns();
	const unsigned count = guests->count;
	int wait = -1;
	unsigned i;

	for (i = 0; i < count; i++)
		ready[1 + i] = (struct pollfd){guests->guest[i].socket, POLLIN, 0};
	if (count) {
		const uint64_t end = guests->guest[most_silent(guests)].heard_ns + PATIENCE_NS;

		wait = end > now ? (int)((end - now) / 1000000 + 1) : 0;
	}
	if (poll(ready, 1 + count, wait) < 0)
		return;
	/* From the end, because the last one takes the place of one that goes. */
	for (i = count; i--;) {
		struct guest *guest = &guests->guest[i];

		if (ready[1 + i].revents
				? inode_of(guest->socket) != guest->inode || !answer_one(guest)
				: lien_clock_ns() - guest->heard_ns >= PATIENCE_NS)
			dismiss(guests, i);
	}
	if (ready[0].revents && inode_of(guests->listening) == guests->inode)
		let_in(guests);
}

/* This thread's calls are the application's: libc calls it, and the agent may hold it. */
LIEN_TRANSLATED static void *answer_all(void *arg)
{
	struct guests *guests = &offer.guests;

	*guests = (struct guests){.listening = (intptr_t)arg, .inode = offer.inode};
	prctl(PR_SET_NAME, "lien-ipc");
	while (inode_of(guests->listening) == guests->inode) {
		make_spare(guests->listening);
		serve(guests);
	}
	while (guests->count)
		dismiss(guests, 0);
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
	pthread_mutex_lock(&offer.lock);
	if (!offer.listens && syscall(SYS_getrandom, offer.cookie, sizeof(offer.cookie), 0) ==
				      sizeof(offer.cookie)) {
		offer.socket = make_socket(offer.cookie);
		offer.inode = inode_of(offer.socket);
		offer.network = lien_plain_network(offer.socket);
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
	unsigned i;

	close_spare();
	for (i = 0; i < offer.guests.count; i++)
		close_guest(&offer.guests.guest[i], 0);
	if (offer.socket >= 0 && inode_of(offer.socket) == offer.inode)
		close(offer.socket);
	memset(&offer, 0, sizeof(offer));
	offer.socket = offer.spare[0] = offer.spare[1] = -1;
	pthread_mutex_init(&offer.lock, NULL);
}

/* Returns whether the block has a secret now. */
static int give_secret(struct lien_heap_block *block)
{
	uint64_t secret = 0;

	return block->secret ||
	       (syscall(SYS_getrandom, &secret, sizeof(secret), 0) == sizeof(secret) && secret &&
		       !lien_plain_offer(block, secret));
}

LIEN_TRANSLATED CUresult lien_plain_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	struct lien_plain_handle made = {.magic = LIEN_PLAIN_MAGIC};
	struct lien_heap_block block;

	if (!handle || !lien_plain_find(ptr, &block) || block.key.pool || !lien_plain_current())
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

LIEN_EXPORT_AS(cuIpcGetMemHandle, lien_plain_cuIpcGetMemHandle);
