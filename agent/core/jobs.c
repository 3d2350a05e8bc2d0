// SPDX-License-Identifier: BSD-2-Clause
#include "agent/core/jobs.h"

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

TAILQ_HEAD(job_list, lien_job);

struct lien_jobs {
	struct lien_agent *agent;
	struct lien_source finished;
	unsigned pending[LIEN_JOB_KINDS]; /* the agent's thread's */
	pthread_mutex_t lock;		  /* protects the members below */
	pthread_cond_t thread_ends;
	struct job_list todo; /* the first one of each kind and user is under way */
	struct job_list done;
	unsigned threads;
	bool stopping;
};

/* Returns the first job of the same kind and user; NULL: there is none. */
static struct lien_job *first_like(const struct lien_jobs *jobs, const struct lien_job *job)
{
	struct lien_job *first;

	TAILQ_FOREACH (first, &jobs->todo, next)
		if (first->kind == job->kind && first->user == job->user)
			break;
	return first;
}

/* Returns the next job for the thread; NULL: it ends. */
static struct lien_job *finish(struct lien_jobs *jobs, struct lien_job *job)
{
	const uint64_t one = 1;
	struct lien_job *next;
	ssize_t n;

	pthread_mutex_lock(&jobs->lock);
	TAILQ_REMOVE(&jobs->todo, job, next);
	next = jobs->stopping ? NULL : first_like(jobs, job);
	TAILQ_INSERT_TAIL(&jobs->done, job, next);
	n = write(jobs->finished.fd, &one, sizeof(one));
	(void)n; /* the eventfd's counter overflows only at 2^64 */
	jobs->threads -= !next;
	pthread_cond_signal(&jobs->thread_ends);
	pthread_mutex_unlock(&jobs->lock);
	return next;
}

static void *work(void *first)
{
	struct lien_job *job = first;
	struct lien_jobs *jobs = job->jobs;

	pthread_detach(pthread_self());
	lien_privileges_drop(); /* each thread has its own rights */
	setpriority(PRIO_PROCESS, 0, 0);
	while (job) {
		job->work(job);
		job = finish(jobs, job);
	}
	return NULL;
}

static void drop(struct lien_job *job)
{
	if (job->drop)
		job->drop(job);
	else
		free(job);
}

static void finished_ready(struct lien_source *source, uint32_t events)
{
	struct lien_jobs *jobs =
		(void *)((char *)source - __builtin_offsetof(struct lien_jobs, finished));
	struct lien_job *job;
	uint64_t one;

	(void)events;
	if (read(source->fd, &one, sizeof(one)) < 0)
		return;
	pthread_mutex_lock(&jobs->lock);
	job = TAILQ_FIRST(&jobs->done);
	TAILQ_REMOVE(&jobs->done, job, next);
	pthread_mutex_unlock(&jobs->lock);
	jobs->pending[job->kind]--;
	job->done(jobs->agent, job);
	drop(job);
}

int lien_jobs_start(struct lien_agent *agent)
{
	struct lien_jobs *jobs = calloc(1, sizeof(*jobs));

	if (!jobs)
		return -ENOMEM;
	agent->jobs = jobs;
	jobs->agent = agent;
	TAILQ_INIT(&jobs->todo);
	TAILQ_INIT(&jobs->done);
	pthread_mutex_init(&jobs->lock, NULL);
	pthread_cond_init(&jobs->thread_ends, NULL);
	jobs->finished = (struct lien_source){
		.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE),
		.ready = finished_ready,
		.name = "worker",
		.reacts = true,
	};
	return jobs->finished.fd < 0 ? -errno : lien_agent_watch(agent, &jobs->finished, EPOLLIN);
}

static void drop_all(struct job_list *list)
{
	struct lien_job *job;

	while ((job = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, job, next);
		drop(job);
	}
}

void lien_jobs_stop(struct lien_agent *agent)
{
	struct lien_jobs *jobs = agent->jobs;
	struct timespec limit;
	bool under_way;

	if (!jobs)
		return;
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += STOP_LIMIT_S;
	pthread_mutex_lock(&jobs->lock);
	jobs->stopping = true;
	while (jobs->threads && !pthread_cond_timedwait(&jobs->thread_ends, &jobs->lock, &limit))
		;
	under_way = jobs->threads;
	pthread_mutex_unlock(&jobs->lock);
	if (under_way)
		return;
	drop_all(&jobs->todo);
	drop_all(&jobs->done);
	if (jobs->finished.fd >= 0)
		close(jobs->finished.fd);
	free(jobs);
}

int lien_job_start(struct lien_agent *agent, struct lien_job *job)
{
	struct lien_jobs *jobs = job->jobs = agent->jobs;
	pthread_t thread;
	bool begins;
	int err = 0;

	pthread_mutex_lock(&jobs->lock);
	begins = !first_like(jobs, job);
	TAILQ_INSERT_TAIL(&jobs->todo, job, next);
	if (begins)
		err = pthread_create(&thread, NULL, work, job);
	if (err)
		TAILQ_REMOVE(&jobs->todo, job, next);
	jobs->threads += begins && !err;
	pthread_mutex_unlock(&jobs->lock);
	if (err)
		drop(job);
	else
		jobs->pending[job->kind]++;
	return -err;
}

unsigned lien_jobs_pending(const struct lien_agent *agent, enum lien_job_kind kind)
{
	return agent->jobs->pending[kind];
}
