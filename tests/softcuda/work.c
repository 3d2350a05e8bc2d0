/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Work that is not done at once: host functions, and whatever is put into a stream behind one. Each
 * stream that ever has such work gets a queue and a thread that takes from it in order; all others
 * have none, and their work is done by the call that asks for it. The default stream of a context
 * waits for its blocking streams, and they for it.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "softcuda.h"

struct item {
	STAILQ_ENTRY(item) entry;
	uint64_t number; /* among all items of the process; never given out twice */
	void (*run)(void *arg);
	void *arg;
};

struct soft_queue {
	LIST_ENTRY(soft_queue) entry;
	STAILQ_HEAD(, item) items; /* an item leaves when it is done */
	uint64_t number;
	CUcontext context;
	CUstream stream; /* NULL: the context's default stream */
	bool blocking;	 /* by and for the default stream */
	bool gone;	 /* the stream was destroyed */
};

/* Another stream's work that is to be done first. */
struct order {
	uint64_t queue, mark;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* taken last */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static LIST_HEAD(soft_queues, soft_queue) queues = LIST_HEAD_INITIALIZER(queues);
static uint64_t newest; /* the last number of an item */
static uint64_t queue_newest;
static _Atomic bool used; /* spares everybody the lock while there are no queues */

static bool is_default(CUstream handle)
{
	return !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

/* A stream's own, whatever is current. */
static CUcontext context_of(CUstream handle, CUcontext current)
{
	return is_default(handle) ? current : handle->object.context;
}

static struct soft_queue *queue_find(CUstream handle, CUcontext context)
{
	CUstream stream = is_default(handle) ? NULL : handle;
	struct soft_queue *queue;

	LIST_FOREACH (queue, &queues, entry)
		if (!queue->gone && queue->stream == stream &&
			(stream || queue->context == context))
			return queue;
	return NULL;
}

static bool queue_busy(const struct soft_queue *queue, uint64_t mark)
{
	const struct item *first = STAILQ_FIRST(&queue->items);

	return first && first->number <= mark;
}

/* Must work of this queue be done before what is now put into that stream? */
static bool comes_first(const struct soft_queue *queue, CUstream handle, CUcontext context)
{
	if (queue->context != context_of(handle, context))
		return false;
	if (is_default(handle))
		return !queue->stream || queue->blocking;
	if (!queue->stream)
		return !(handle->flags & CU_STREAM_NON_BLOCKING);
	return !queue->gone && queue->stream == handle;
}

static bool busy(CUstream handle, CUcontext context, bool all, uint64_t mark)
{
	struct soft_queue *queue;

	LIST_FOREACH (queue, &queues, entry)
		if ((all ? queue->context == context : comes_first(queue, handle, context)) &&
			queue_busy(queue, mark))
			return true;
	return false;
}

static void *queue_run(void *arg)
{
	struct soft_queue *queue = arg;
	struct item *item;

	pthread_mutex_lock(&lock);
	for (;;) {
		while (!(item = STAILQ_FIRST(&queue->items)) && !queue->gone)
			pthread_cond_wait(&changed, &lock);
		if (!item)
			break;
		pthread_mutex_unlock(&lock);
		item->run(item->arg);
		pthread_mutex_lock(&lock);
		STAILQ_REMOVE_HEAD(&queue->items, entry);
		free(item);
		pthread_cond_broadcast(&changed);
	}
	LIST_REMOVE(queue, entry);
	pthread_mutex_unlock(&lock);
	free(queue);
	return NULL;
}

/* Signals are the application's; what its own fault raises must still kill a thread of ours. */
static int queue_start(struct soft_queue *queue)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, queue_run, queue);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!error)
		pthread_detach(thread);
	return error;
}

static struct soft_queue *queue_make(CUstream handle, CUcontext context)
{
	struct soft_queue *queue = calloc(1, sizeof(*queue));

	if (!queue)
		return NULL;
	STAILQ_INIT(&queue->items);
	queue->number = ++queue_newest;
	queue->context = context_of(handle, context);
	queue->stream = is_default(handle) ? NULL : handle;
	queue->blocking = queue->stream && !(handle->flags & CU_STREAM_NON_BLOCKING);
	if (queue_start(queue)) {
		free(queue);
		return NULL;
	}
	LIST_INSERT_HEAD(&queues, queue, entry);
	atomic_store(&used, true);
	return queue;
}

static bool append(struct soft_queue *queue, void (*run)(void *), void *arg)
{
	struct item *item = malloc(sizeof(*item));

	if (!item)
		return false;
	*item = (struct item){.number = ++newest, .run = run, .arg = arg};
	STAILQ_INSERT_TAIL(&queue->items, item, entry);
	return true;
}

static bool order_pending(const struct order *order)
{
	struct soft_queue *queue;

	LIST_FOREACH (queue, &queues, entry)
		if (queue->number == order->queue)
			return queue_busy(queue, order->mark);
	return false;
}

static void order_wait(void *arg)
{
	struct order *order = arg;

	pthread_mutex_lock(&lock);
	while (order_pending(order))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	free(order);
}

static bool append_order(struct soft_queue *queue, uint64_t other, uint64_t mark)
{
	struct order *order = malloc(sizeof(*order));

	if (!order)
		return false;
	*order = (struct order){.queue = other, .mark = mark};
	if (append(queue, order_wait, order))
		return true;
	free(order);
	return false;
}

/* The queue with all that comes before new work: the lock is held. */
static struct soft_queue *queue_ready(CUstream handle, CUcontext context)
{
	struct soft_queue *queue = queue_find(handle, context), *other;

	if (!queue)
		queue = queue_make(handle, context);
	if (!queue)
		return NULL;
	LIST_FOREACH (other, &queues, entry)
		if (other != queue && comes_first(other, handle, context) &&
			queue_busy(other, newest) && !append_order(queue, other->number, newest))
			return NULL;
	return queue;
}

CUresult soft_work_add(CUstream handle, CUcontext context, void (*run)(void *), void *arg)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	struct soft_queue *queue;

	pthread_mutex_lock(&lock);
	while (context_of(handle, context)->barred)
		pthread_cond_wait(&changed, &lock);
	queue = queue_ready(handle, context);
	if (queue && append(queue, run, arg))
		result = CUDA_SUCCESS;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return result;
}

bool soft_work_pending(CUstream handle, CUcontext context)
{
	bool is;

	if (!atomic_load(&used))
		return false;
	pthread_mutex_lock(&lock);
	is = busy(handle, context, false, newest);
	pthread_mutex_unlock(&lock);
	return is;
}

static void wait_while_busy(CUstream handle, CUcontext context, bool all)
{
	uint64_t mark;

	if (!atomic_load(&used))
		return;
	pthread_mutex_lock(&lock);
	mark = newest;
	while (busy(handle, context, all, mark))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

void soft_work_wait(CUstream handle, CUcontext context)
{
	wait_while_busy(handle, context, false);
}

void soft_work_wait_all(CUcontext context)
{
	wait_while_busy(NULL, context, true);
}

void soft_work_wait_barred(CUcontext context)
{
	if (!atomic_load(&used))
		return;
	pthread_mutex_lock(&lock);
	context->barred++;
	while (busy(NULL, context, true, newest))
		pthread_cond_wait(&changed, &lock);
	context->barred--;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static void nothing(void *arg)
{
	(void)arg;
}

CUresult soft_work_mark(CUstream handle, CUcontext context, struct soft_mark *mark)
{
	CUresult result = CUDA_SUCCESS;
	struct soft_queue *queue;

	*mark = (struct soft_mark){0};
	if (!soft_work_pending(handle, context))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	queue = queue_ready(handle, context);
	if (queue && append(queue, nothing, NULL))
		*mark = (struct soft_mark){.queue = queue->number, .item = newest};
	else
		result = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return result;
}

bool soft_work_marked(const struct soft_mark *mark)
{
	struct order order = {.queue = mark->queue, .mark = mark->item};
	bool pending;

	if (!mark->queue)
		return false;
	pthread_mutex_lock(&lock);
	pending = order_pending(&order);
	pthread_mutex_unlock(&lock);
	return pending;
}

void soft_work_wait_marked(const struct soft_mark *mark)
{
	struct order order = {.queue = mark->queue, .mark = mark->item};

	if (!mark->queue)
		return;
	pthread_mutex_lock(&lock);
	while (order_pending(&order))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

CUresult soft_work_after(CUstream handle, CUcontext context, const struct soft_mark *mark)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	struct soft_queue *queue;

	if (!soft_work_marked(mark))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	queue = queue_ready(handle, context);
	if (queue && append_order(queue, mark->queue, mark->item))
		result = CUDA_SUCCESS;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return result;
}

void soft_work_stream_gone(CUstream stream)
{
	struct soft_queue *queue;

	if (!atomic_load(&used))
		return;
	pthread_mutex_lock(&lock);
	queue = queue_find(stream, NULL);
	if (queue)
		queue->gone = true; /* what is in it is still done */
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Not a stream's handle: what a context waits for although another one does it. */
#define OTHERS ((CUstream)3)

static struct soft_queue *queue_of_others(CUcontext context)
{
	struct soft_queue *queue;

	LIST_FOREACH (queue, &queues, entry)
		if (queue->stream == OTHERS && queue->context == context)
			return queue;
	queue = queue_make(NULL, context);
	if (queue)
		queue->stream = OTHERS;
	return queue;
}

CUresult soft_work_also(CUcontext owner, CUstream handle, CUcontext context)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	struct soft_queue *queue, *others;

	pthread_mutex_lock(&lock);
	queue = queue_find(handle, context);
	others = queue_of_others(owner);
	if (queue && others && append_order(others, queue->number, newest))
		result = CUDA_SUCCESS;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return result;
}

struct host_function {
	CUhostFn function;
	void *data;
};

static void host_function_run(void *arg)
{
	struct host_function host = *(struct host_function *)arg;

	free(arg);
	host.function(host.data);
}

static CUresult launch_host(CUstream stream, CUhostFn function, void *data)
{
	struct host_function *host;
	bool execute = true;
	CUcontext context;
	CUresult result;

	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = soft_context_current(&context);
	if (!result && !function)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = soft_stream_submit(stream, &execute);
	if (result || !execute)
		return result;
	host = malloc(sizeof(*host));
	if (!host)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*host = (struct host_function){function, data};
	result = soft_work_add(stream, context, host_function_run, host);
	if (result)
		free(host);
	return result;
}

SOFT_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
	SOFT_FAULT();
	return launch_host(stream, function, data);
}

SOFT_EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void *data)
{
	SOFT_FAULT();
	return launch_host(stream, function, data);
}
