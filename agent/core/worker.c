// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/worker.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "agent/core/agent.h"
#include "agent/core/privileges.h"

#define STOP_LIMIT_S 1

STAILQ_HEAD(jobs, lien_job);

struct lien_worker {
	struct lien_agent *agent;
	struct lien_source finished;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* protects the members below */
	pthread_cond_t more;
	bool stopping;
	struct jobs todo, done;
};

static void *work(void *arg)
{
	struct lien_worker *worker = arg;
	const uint64_t one = 1;
	struct lien_job *job;

	lien_privileges_drop(); /* each thread has its own rights */
	setpriority(PRIO_PROCESS, 0, 0);
	pthread_mutex_lock(&worker->lock);
	while (!worker->stopping) {
		job = STAILQ_FIRST(&worker->todo);
		if (!job) {
			pthread_cond_wait(&worker->more, &worker->lock);
			continue;
		}
		STAILQ_REMOVE_HEAD(&worker->todo, next);
		pthread_mutex_unlock(&worker->lock);
		job->work(job);
		pthread_mutex_lock(&worker->lock);
		STAILQ_INSERT_TAIL(&worker->done, job, next);
		if (write(worker->finished.fd, &one, sizeof(one)) < 0)
			break; /* the eventfd's counter overflows only at 2^64 */
	}
	pthread_mutex_unlock(&worker->lock);
	return NULL;
}

static void finished_ready(struct lien_source *source, uint32_t events)
{
	struct lien_worker *worker =
		(void *)((char *)source - __builtin_offsetof(struct lien_worker, finished));
	struct lien_job *job;
	uint64_t one;

	(void)events;
	if (read(source->fd, &one, sizeof(one)) < 0)
		return;
	pthread_mutex_lock(&worker->lock);
	job = STAILQ_FIRST(&worker->done);
	STAILQ_REMOVE_HEAD(&worker->done, next);
	pthread_mutex_unlock(&worker->lock);
	job->done(worker->agent, job);
}

int lien_worker_new(struct lien_agent *agent, struct lien_worker **out)
{
	struct lien_worker *worker = calloc(1, sizeof(*worker));
	int err;

	if (!worker)
		return -ENOMEM;
	worker->agent = agent;
	STAILQ_INIT(&worker->todo);
	STAILQ_INIT(&worker->done);
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->more, NULL);
	worker->finished.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
	worker->finished.ready = finished_ready;
	worker->finished.name = "worker";
	worker->finished.reacts = true;
	err = worker->finished.fd < 0 ? -errno
				      : lien_agent_watch(agent, &worker->finished, EPOLLIN);
	if (err)
		lien_worker_free(worker);
	else
		*out = worker;
	return err;
}

static void drop_all(struct jobs *jobs)
{
	struct lien_job *job;

	while ((job = STAILQ_FIRST(jobs))) {
		STAILQ_REMOVE_HEAD(jobs, next);
		job->drop(job);
	}
}

void lien_worker_free(struct lien_worker *worker)
{
	struct timespec limit;

	if (!worker)
		return;
	if (worker->started) {
		pthread_mutex_lock(&worker->lock);
		worker->stopping = true;
		pthread_cond_signal(&worker->more);
		pthread_mutex_unlock(&worker->lock);
		clock_gettime(CLOCK_REALTIME, &limit);
		limit.tv_sec += STOP_LIMIT_S;
		if (pthread_timedjoin_np(worker->thread, NULL, &limit))
			return;
	}
	drop_all(&worker->todo);
	drop_all(&worker->done);
	if (worker->finished.fd >= 0)
		close(worker->finished.fd);
	pthread_mutex_destroy(&worker->lock);
	pthread_cond_destroy(&worker->more);
	free(worker);
}

int lien_worker_submit(struct lien_worker *worker, struct lien_job *job)
{
	int err;

	if (!worker->started) {
		err = pthread_create(&worker->thread, NULL, work, worker);
		if (err)
			return -err;
		worker->started = true;
	}
	pthread_mutex_lock(&worker->lock);
	STAILQ_INSERT_TAIL(&worker->todo, job, next);
	pthread_cond_signal(&worker->more);
	pthread_mutex_unlock(&worker->lock);
	return 0;
}
