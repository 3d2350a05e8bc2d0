// SPDX-License-Identifier: BSD-2-Clause
/* The GPU's part: data through shared device memory, slot by slot, as far as the peers are. */
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "softnccl_sync.h"

static __thread bool playing;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct bell *bell;
static int bell_fd = -1;

struct bell *sync_bell(int *fd)
{
	pthread_mutex_lock(&lock);
	if (!bell && (bell_fd = memfd_create("bell", MFD_CLOEXEC)) >= 0 &&
		!ftruncate(bell_fd, sizeof(*bell))) {
		bell = mmap(NULL, sizeof(*bell), PROT_READ | PROT_WRITE, MAP_SHARED, bell_fd, 0);
		if (bell == MAP_FAILED)
			bell = NULL;
	}
	*fd = bell_fd;
	pthread_mutex_unlock(&lock);
	return bell;
}

void sync_ring(struct bell *other)
{
	atomic_fetch_add(&other->rings, 1);
	syscall(SYS_futex, &other->rings, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void sync_ring_peer(ncclComm_t comm, const struct peer *peer)
{
	if (peer->bell)
		sync_ring(peer->bell);
	else
		sync_proxy_ring(comm);
}

/* A limit, for peers that die with what they were to ring for. */
static void wait_for_bell(uint32_t seen)
{
	struct timespec limit = {.tv_nsec = 20000000};

	syscall(SYS_futex, &bell->rings, FUTEX_WAIT, seen, &limit, NULL, 0);
}

size_t sync_type_bytes(ncclDataType_t type)
{
	switch (type) {
	case ncclUint8:
		return 1;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	}
	return 0;
}

#define ADD(type)                                                                                  \
	do {                                                                                       \
		for (i = 0; i < bytes / sizeof(type); i++)                                         \
			((type *)sum)[i] += ((const type *)other)[i];                              \
	} while (0)

static void add(void *sum, const void *other, size_t bytes, ncclDataType_t type)
{
	size_t i;

	switch (type) {
	case ncclUint8:
		ADD(uint8_t);
		break;
	case ncclInt32:
	case ncclUint32:
		ADD(uint32_t);
		break;
	case ncclInt64:
	case ncclUint64:
		ADD(uint64_t);
		break;
	case ncclFloat32:
		ADD(float);
		break;
	case ncclFloat64:
		ADD(double);
		break;
	}
}

static enum lane lane_of(const struct task *task)
{
	return task->kind == SEND || task->kind == RECEIVE ? TRANSFERS : COLLECTIVES;
}

static bool reduces(const struct task *task)
{
	return task->kind == ALL_REDUCE || task->kind == REDUCE_SCATTER;
}

/* What of the task's goes to this rank, or NULL. */
static const char *source(const struct task *task, int rank)
{
	switch (task->kind) {
	case ALL_REDUCE:
	case ALL_GATHER:
		return task->src;
	case BROADCAST:
		return task->peer == task->comm->rank ? task->src : NULL;
	case REDUCE_SCATTER:
		return task->src + rank * task->bytes;
	case SEND:
		return task->peer == rank ? task->src : NULL;
	case RECEIVE:
		break;
	}
	return NULL;
}

/* Where what comes from this rank goes, or NULL. */
static char *target(const struct task *task, int rank)
{
	switch (task->kind) {
	case ALL_REDUCE:
	case REDUCE_SCATTER:
		return task->dst;
	case ALL_GATHER:
		return task->dst + rank * task->bytes;
	case BROADCAST:
	case RECEIVE:
		return task->peer == rank ? task->dst : NULL;
	case SEND:
		break;
	}
	return NULL;
}

static size_t chunk(const struct task *task, size_t at)
{
	return task->bytes - at < SLOT_BYTES ? task->bytes - at : SLOT_BYTES;
}

char *sync_slot(const struct buffer *buffer, enum lane lane, uint64_t number)
{
	return (char *)(uintptr_t)buffer->va + (lane * SLOTS + number % SLOTS) * SLOT_BYTES;
}

static struct fifo *fifo_to(const struct task *task, int rank)
{
	return &task->comm->page->to[lane_of(task)][rank];
}

static struct fifo *fifo_from(const struct task *task, int rank)
{
	return &task->comm->peers[rank].page->to[lane_of(task)][task->comm->rank];
}

static bool post(struct task *task, int rank)
{
	const char *src = source(task, rank);
	struct peer *peer = &task->comm->peers[rank];
	struct fifo *fifo = fifo_to(task, rank);
	uint64_t tail = atomic_load(&fifo->tail);
	size_t at = task->sent[rank], bytes = chunk(task, at);

	if (!src || !bytes || tail - atomic_load(&fifo->head) >= SLOTS)
		return false;
	memcpy(sync_slot(&peer->out, lane_of(task), tail), src + at, bytes);
	fifo->bytes[tail % SLOTS] = bytes;
	task->sent[rank] += bytes;
	atomic_store(&fifo->tail, tail + 1);
	sync_ring_peer(task->comm, peer);
	return true;
}

/* The next slot from this rank, or NULL while it has not come. */
static const char *arrived(const struct task *task, int rank)
{
	struct fifo *fifo = fifo_from(task, rank);
	uint64_t head = atomic_load(&fifo->head);

	return atomic_load(&fifo->tail) == head
		       ? NULL
		       : sync_slot(&task->comm->peers[rank].in, lane_of(task), head);
}

static void taken(struct task *task, int rank, size_t bytes)
{
	task->received[rank] += bytes;
	atomic_fetch_add(&fifo_from(task, rank)->head, 1);
	sync_ring_peer(task->comm, &task->comm->peers[rank]);
}

static bool take(struct task *task, int rank)
{
	char *dst = target(task, rank);
	size_t at = task->received[rank], bytes = chunk(task, at);
	const char *from;

	if (!dst || !bytes || !(from = arrived(task, rank)))
		return false;
	memcpy(dst + at, from, bytes);
	taken(task, rank, bytes);
	return true;
}

/* A piece of the sum, in the order of ranks, once all have it and ours, which may lie in the same
 * place, has gone to all. */
static bool reduce(struct task *task)
{
	ncclComm_t comm = task->comm;
	size_t at = task->received[comm->rank], bytes = chunk(task, at);
	const char *own = source(task, comm->rank) + at, *from;
	char *sum;
	int i;

	for (i = 0; i < comm->nranks; i++)
		if (!bytes ||
			(i != comm->rank && (task->sent[i] < at + bytes || !arrived(task, i))))
			return false;
	sum = calloc(1, bytes);
	if (!sum)
		abort();
	for (i = 0; i < comm->nranks; i++) {
		from = i == comm->rank ? own : arrived(task, i);
		add(sum, from, bytes, task->type);
	}
	memcpy(task->dst + at, sum, bytes);
	free(sum);
	for (i = 0; i < comm->nranks; i++)
		if (i != comm->rank)
			taken(task, i, bytes);
	task->received[comm->rank] += bytes;
	return true;
}

/* Have all ranks launched this collective? */
static bool all_there(const struct task *task)
{
	ncclComm_t comm = task->comm;
	int i;

	for (i = 0; lane_of(task) == COLLECTIVES && i < comm->nranks; i++)
		if (i != comm->rank && atomic_load(&comm->peers[i].page->launched) < task->number)
			return false;
	return true;
}

static void start(struct task *task)
{
	const char *src = source(task, task->comm->rank);
	char *dst = target(task, task->comm->rank);

	task->started = true;
	if (!reduces(task) && src && dst && src != dst)
		memcpy(dst, src, task->bytes);
}

/* What the GPU has put there is the proxy's; what a peer reads itself stays until it has. */
static bool is_sent(const struct task *task, int rank)
{
	const struct fifo *fifo = fifo_to(task, rank);

	if (task->sent[rank] < task->bytes)
		return false;
	return task->comm->peers[rank].data >= 0 ||
	       atomic_load(&fifo->head) == atomic_load(&fifo->tail);
}

static bool is_done(const struct task *task)
{
	ncclComm_t comm = task->comm;
	int i;

	for (i = 0; i < comm->nranks; i++) {
		if (reduces(task) && i == comm->rank && task->received[i] < task->bytes)
			return false;
		if (i == comm->rank)
			continue;
		if (source(task, i) && !is_sent(task, i))
			return false;
		if (target(task, i) && task->received[i] < task->bytes)
			return false;
	}
	return true;
}

static bool progress(struct task *task)
{
	bool moved = false;
	int i;

	if (!task->started) {
		if (!all_there(task))
			return false;
		start(task);
	}
	for (i = 0; i < task->comm->nranks; i++) {
		if (i == task->comm->rank)
			continue;
		moved |= post(task, i);
		if (!reduces(task))
			moved |= take(task, i);
	}
	if (reduces(task))
		moved |= reduce(task);
	return moved;
}

/* Is there an earlier one in the group that uses the same slots? */
static bool waits(struct tasks *tasks, const struct task *task)
{
	const struct task *other;

	STAILQ_FOREACH(other, tasks, entry)
	{
		if (other == task)
			break;
		if (!other->done && other->comm == task->comm && lane_of(other) == lane_of(task) &&
			(lane_of(task) == COLLECTIVES ||
				(other->kind == task->kind && other->peer == task->peer)))
			return true;
	}
	return false;
}

void sync_play(void *arg)
{
	struct tasks *tasks = arg;
	struct task *task;
	bool moved, left;
	uint32_t seen;

	playing = true;
	do {
		seen = atomic_load(&bell->rings);
		moved = left = false;
		STAILQ_FOREACH(task, tasks, entry)
		{
			if (task->done || waits(tasks, task))
				continue;
			moved |= progress(task);
			task->done = atomic_load(&task->comm->aborted) ||
				     (task->started && is_done(task));
			moved |= task->done;
		}
		STAILQ_FOREACH(task, tasks, entry)
		left |= !task->done;
		if (left && !moved)
			wait_for_bell(seen);
	} while (left);
	while ((task = STAILQ_FIRST(tasks))) {
		STAILQ_REMOVE_HEAD(tasks, entry);
		atomic_fetch_sub(&task->comm->unfinished, 1);
		free(task);
	}
	free(tasks);
	playing = false;
}

static void fault(int number, siginfo_t *info, void *context)
{
	char text[160];
	int len;

	(void)context;
	len = snprintf(text, sizeof(text), "%s in process %d: %p is not mapped\n",
		playing ? "GPU fault" : "fault", getpid(), info->si_addr);
	if (write(STDERR_FILENO, text, len) < 0)
		_exit(127);
	signal(number, SIG_DFL); /* the instruction is run again */
}

void sync_catch_faults(void)
{
	struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}
