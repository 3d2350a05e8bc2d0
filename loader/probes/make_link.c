// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/make_link.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>
#include "loader/probes/close_later.h"
#include "loader/discover/detached.h"

#define STACK  65536
#define MS     1000000ull
#define S_NS   1000000000ull
#define ALWAYS UINT64_MAX

struct lien_making {
	int file_fd;
	unsigned count;
	struct lien_link_request requests[LIEN_LINKS_AT_ONCE];
	int links[LIEN_LINKS_AT_ONCE];
	int err;
	bool done, abandoned; /* protected by the lock */
	bool waited;	      /* the caller has waited its full time: the thread may be stuck */
	uint64_t places[];    /* offsets and cookies of all requests */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t one_done;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static unsigned under_way;
static uint64_t left_ns = ALWAYS;

static void prepare(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&one_done, &attr);
	pthread_condattr_destroy(&attr);
}

static void discard(struct lien_making *making)
{
	unsigned i;

	for (i = 0; i < making->count; i++)
		if (making->links[i] >= 0)
			lien_close_later(making->links[i]);
	close(making->file_fd);
	free(making);
}

static void make_all(struct lien_making *making)
{
	const struct lien_link_request *request;
	char path[32];
	unsigned i;

	/* Through the open file: the path may lead elsewhere by now. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", making->file_fd);
	for (i = 0; i < making->count && !making->err; i++) {
		request = &making->requests[i];
		if (!request->count)
			continue;
		making->links[i] = lien_uprobe_multi_attach(request->program_fd, path,
			request->offsets, request->cookies, request->count, request->how);
		if (making->links[i] < 0)
			making->err = making->links[i];
	}
}

static void *run(void *of)
{
	struct lien_making *making = of;
	bool abandoned;

	make_all(making);
	pthread_mutex_lock(&lock);
	under_way--;
	making->done = true;
	abandoned = making->abandoned;
	pthread_cond_broadcast(&one_done);
	pthread_mutex_unlock(&lock);
	if (abandoned)
		discard(making);
	return NULL;
}

static uint64_t *copy_places(uint64_t *to, const uint64_t *from, unsigned count)
{
	if (count)
		memcpy(to, from, count * sizeof(*to));
	return to + count;
}

static struct lien_making *copy_of(const struct lien_link_request *requests, unsigned count)
{
	struct lien_making *making;
	unsigned places = 0, i;
	uint64_t *to;

	for (i = 0; i < count; i++)
		places += requests[i].count;
	making = calloc(1, sizeof(*making) + places * 2 * sizeof(making->places[0]));
	if (!making)
		return NULL;
	to = making->places;
	making->count = count;
	for (i = 0; i < count; i++) {
		making->links[i] = -1;
		making->requests[i] = requests[i];
		making->requests[i].offsets = to;
		to = copy_places(to, requests[i].offsets, requests[i].count);
		making->requests[i].cookies = to;
		to = copy_places(to, requests[i].cookies, requests[i].count);
	}
	return making;
}

int lien_making_begin(struct lien_making **making, int file_fd,
	const struct lien_link_request *requests, unsigned count)
{
	int err;

	pthread_once(&once, prepare);
	*making = copy_of(requests, count);
	if (!*making)
		return -ENOMEM;
	(*making)->file_fd = fcntl(file_fd, F_DUPFD_CLOEXEC, 0);
	if ((*making)->file_fd < 0) {
		err = -errno;
		free(*making);
		*making = NULL;
		return err;
	}
	pthread_mutex_lock(&lock);
	under_way++;
	pthread_mutex_unlock(&lock);
	if (lien_detached_start(STACK, run, *making))
		run(*making); /* no thread: run it here */
	return 0;
}

/* The caller holds the lock. */
static void wait_for(struct lien_making *making)
{
	uint64_t begun = lien_clock_ns(), until = begun + left_ns, waited;
	struct timespec end = {.tv_sec = until / S_NS, .tv_nsec = until % S_NS};

	if (left_ns != ALWAYS && (!left_ns || making->waited))
		return;
	while (!making->done) {
		if (left_ns == ALWAYS)
			pthread_cond_wait(&one_done, &lock);
		else if (pthread_cond_timedwait(&one_done, &lock, &end))
			break;
	}
	waited = lien_clock_ns() - begun;
	making->waited = !making->done;
	if (left_ns != ALWAYS)
		left_ns -= waited < left_ns ? waited : left_ns;
}

int lien_making_wait(struct lien_making **making, int *links)
{
	struct lien_making *made = *making;
	unsigned i;
	bool done;
	int err;

	pthread_mutex_lock(&lock);
	wait_for(made);
	done = made->done;
	pthread_mutex_unlock(&lock);
	if (!done)
		return -EINPROGRESS;
	*making = NULL;
	err = made->err;
	for (i = 0; i < made->count && !err; i++) {
		links[i] = made->links[i];
		made->links[i] = -1;
	}
	discard(made);
	return err;
}

void lien_making_abandon(struct lien_making **making)
{
	struct lien_making *abandoned = *making;
	bool done;

	*making = NULL;
	if (!abandoned)
		return;
	pthread_mutex_lock(&lock);
	abandoned->abandoned = true;
	done = abandoned->done;
	pthread_mutex_unlock(&lock);
	if (done)
		discard(abandoned);
}

void lien_making_allow(unsigned ms)
{
	left_ns = ms * MS;
}

bool lien_making_busy(void)
{
	bool busy;

	pthread_mutex_lock(&lock);
	busy = under_way;
	pthread_mutex_unlock(&lock);
	return busy;
}
