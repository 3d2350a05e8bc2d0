// SPDX-License-Identifier: BSD-2-Clause
/* agent/core/jobs.c: slow work in threads. */
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "agent/core/agent.h"
#include "agent/core/jobs.h"
#include "agent/core/privileges.h"

#define MAX 64

static struct lien_agent agent;
static struct lien_source *source;
static unsigned dropped, done[MAX], done_count;

int lien_agent_watch(struct lien_agent *of, struct lien_source *watched, uint32_t events)
{
	assert_ptr_equal(of, &agent);
	assert_int_equal(events, EPOLLIN);
	source = watched;
	return 0;
}

int lien_privileges_drop(void)
{
	return 0;
}

struct work {
	struct lien_job job;
	unsigned number, takes_ms;
	sem_t *begun, *may_end;	   /* NULL: it does not wait */
	unsigned *under_way, most; /* of those that share the counter */
};

static void work(struct lien_job *job)
{
	struct work *mine = (struct work *)job;

	if (mine->under_way)
		mine->most = __atomic_add_fetch(mine->under_way, 1, __ATOMIC_SEQ_CST);
	if (mine->begun)
		sem_post(mine->begun);
	if (mine->may_end)
		sem_wait(mine->may_end);
	usleep(mine->takes_ms * 1000);
	if (mine->under_way)
		__atomic_sub_fetch(mine->under_way, 1, __ATOMIC_SEQ_CST);
}

static void on_done(struct lien_agent *of, struct lien_job *job)
{
	struct work *mine = (struct work *)job;

	assert_ptr_equal(of, &agent);
	if (mine->under_way)
		assert_int_equal(mine->most, 1);
	done[done_count++] = mine->number;
}

static void drop(struct lien_job *job)
{
	dropped++;
	free(job);
}

static void start(enum lien_job_kind kind, uint32_t user, struct work like)
{
	struct work *mine = malloc(sizeof(*mine));

	assert_non_null(mine);
	*mine = like;
	mine->job = (struct lien_job){
		.kind = kind, .user = user, .work = work, .done = on_done, .drop = drop};
	assert_int_equal(lien_job_start(&agent, &mine->job), 0);
}

/* As the agent's loop does. */
static void run_until_done(unsigned count)
{
	struct pollfd readable = {.fd = source->fd, .events = POLLIN};

	while (done_count < count) {
		assert_int_equal(poll(&readable, 1, 10000), 1);
		source->ready(source, EPOLLIN);
	}
	assert_int_equal(poll(&readable, 1, 0), 0);
}

static int setup(void **state)
{
	(void)state;
	dropped = done_count = 0;
	return lien_jobs_start(&agent);
}

static void test_one_after_the_other(void **state)
{
	unsigned under_way = 0, i;

	(void)state;
	for (i = 0; i < MAX; i++)
		start(LIEN_JOB_SYMBOLS, 0, (struct work){.number = i, .under_way = &under_way});
	assert_int_equal(lien_jobs_pending(&agent, LIEN_JOB_SYMBOLS), MAX);
	assert_int_equal(lien_jobs_pending(&agent, LIEN_JOB_NVML), 0);
	run_until_done(MAX);
	for (i = 0; i < MAX; i++)
		assert_int_equal(done[i], i);
	assert_int_equal(dropped, MAX);
	assert_int_equal(lien_jobs_pending(&agent, LIEN_JOB_SYMBOLS), 0);
	lien_jobs_stop(&agent);
}

/* Another kind, and another user of the same kind, do not wait for one that hangs. */
static void test_side_by_side(void **state)
{
	sem_t may_end;

	(void)state;
	sem_init(&may_end, 0, 0);
	start(LIEN_JOB_INJECT, 1, (struct work){.number = 1, .may_end = &may_end});
	start(LIEN_JOB_INJECT, 1, (struct work){.number = 2});
	start(LIEN_JOB_INJECT, 2, (struct work){.number = 3});
	run_until_done(1);
	assert_int_equal(done[0], 3);
	start(LIEN_JOB_NVML, 0, (struct work){.number = 4});
	run_until_done(2);
	assert_int_equal(done[1], 4);
	assert_int_equal(lien_jobs_pending(&agent, LIEN_JOB_INJECT), 2);
	sem_post(&may_end);
	run_until_done(4);
	assert_int_equal(done[2], 1);
	assert_int_equal(done[3], 2);
	lien_jobs_stop(&agent);
}

/* The end drops what has not begun and what is done, after the one under way. */
static void test_stopped(void **state)
{
	sem_t begun;
	unsigned i;

	(void)state;
	sem_init(&begun, 0, 0);
	for (i = 0; i < 5; i++)
		start(LIEN_JOB_RAS, 0, (struct work){.begun = &begun, .takes_ms = 50});
	sem_wait(&begun);
	sem_wait(&begun);
	lien_jobs_stop(&agent);
	assert_int_equal(dropped, 5);
	assert_int_equal(done_count, 0);
}

/* It does not wait for ever: one that hangs, and all else, stays. */
static void test_abandoned(void **state)
{
	static sem_t begun, may_end;

	(void)state;
	sem_init(&begun, 0, 0);
	sem_init(&may_end, 0, 0);
	start(LIEN_JOB_NVML, 0, (struct work){.begun = &begun, .may_end = &may_end});
	start(LIEN_JOB_NVML, 0, (struct work){.number = 1});
	sem_wait(&begun);
	lien_jobs_stop(&agent);
	assert_int_equal(dropped, 0);
	sem_post(&may_end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_one_after_the_other, setup),
		cmocka_unit_test_setup(test_side_by_side, setup),
		cmocka_unit_test_setup(test_stopped, setup),
		cmocka_unit_test_setup(test_abandoned, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
