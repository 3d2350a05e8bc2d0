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
#include "loader/probes/code.h"
#include "loader/probes/uprobe.h"

#define MS     1000000ull
#define S_NS   1000000000ull
#define ALWAYS (UINT64_MAX / 2)

struct lien_making {
	int file_fd;
	unsigned count, links_count;
	struct lien_link_request requests[LIEN_LINK_REQUESTS];
	int *links; /* behind the places */
	int err;
	pthread_t thread;
	bool joined;	   /* or there is no thread */
	bool over;	   /* done, or abandoned; atomic */
	bool waited;	   /* the caller has waited its full time: the thread may be stuck */
	uint64_t places[]; /* offsets and cookies of all requests */
};

static unsigned under_way; /* atomic */
static uint64_t left_ns = ALWAYS;

static unsigned links_of(const struct lien_link_request *request)
{
	return request->each ? request->count : 1;
}

static void discard(struct lien_making *making)
{
	unsigned i;

	for (i = 0; i < making->links_count; i++)
		if (making->links[i] >= 0)
			lien_uprobe_close(making->links[i]);
	close(making->file_fd);
	free(making);
}

static int make_request(
	const struct lien_making *making, const struct lien_link_request *request, int *links)
{
	char path[32];
	unsigned i;

	/* Through the open file: the path may lead elsewhere by now. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", making->file_fd);
	if (request->count && !request->each) {
		links[0] = lien_uprobe_multi_attach(request->program_fd, path, request->offsets,
			request->cookies, request->count, request->at_return, request->pid);
		return links[0] < 0 ? links[0] : 0;
	}
	for (i = 0; i < request->count; i++) {
		if (__atomic_load_n(&making->over, __ATOMIC_ACQUIRE)) /* abandoned */
			return -ECANCELED;
		links[i] = lien_uprobe_single_attach(request->program_fd, path, request->offsets[i],
			request->cookies[i], request->at_return);
		if (links[i] < 0)
			return links[i];
	}
	return 0;
}

static void make_all(struct lien_making *making)
{
	/* The places of one request, at entries, are those of all. */
	const struct lien_link_request *last = &making->requests[making->count - 1];
	int *links = making->links;
	unsigned i;

	making->err = lien_code_check(making->file_fd, last->offsets, last->count, last->pid);
	for (i = 0; i < making->count && !making->err; i++) {
		making->err = make_request(making, &making->requests[i], links);
		links += links_of(&making->requests[i]);
	}
}

static void *run(void *of)
{
	struct lien_making *making = of;

	make_all(making);
	if (__atomic_exchange_n(&making->over, true, __ATOMIC_ACQ_REL)) /* abandoned */
		discard(making);
	__atomic_sub_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
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
	unsigned places = 0, links = 0, i;
	uint64_t *to;

	for (i = 0; i < count; i++) {
		places += requests[i].count;
		links += links_of(&requests[i]);
	}
	making = calloc(1, sizeof(*making) + places * 2 * sizeof(*to) + links * sizeof(int));
	if (!making)
		return NULL;
	making->count = count;
	making->links_count = links;
	to = making->places;
	for (i = 0; i < count; i++) {
		making->requests[i] = requests[i];
		making->requests[i].offsets = to;
		to = copy_places(to, requests[i].offsets, requests[i].count);
		making->requests[i].cookies = to;
		to = copy_places(to, requests[i].cookies, requests[i].count);
	}
	making->links = (int *)to;
	memset(making->links, 0xff, links * sizeof(int));
	return making;
}

int lien_making_begin(struct lien_making **making, int file_fd,
	const struct lien_link_request *requests, unsigned count)
{
	int err;

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
	__atomic_add_fetch(&under_way, 1, __ATOMIC_ACQ_REL);
	(*making)->joined = pthread_create(&(*making)->thread, NULL, run, *making);
	if ((*making)->joined)
		run(*making); /* no thread: run it here */
	return 0;
}

/* Waits for at most what is left of the time. */
bool lien_making_ready(struct lien_making *making)
{
	uint64_t begun = lien_clock_ns(), until = begun + left_ns, waited;
	struct timespec end = {.tv_sec = until / S_NS, .tv_nsec = until % S_NS};
	bool over = __atomic_load_n(&making->over, __ATOMIC_ACQUIRE);

	if (over || !left_ns || making->waited)
		return over;
	making->joined = !pthread_clockjoin_np(making->thread, NULL, CLOCK_MONOTONIC, &end);
	making->waited = !making->joined;
	waited = lien_clock_ns() - begun;
	left_ns -= waited < left_ns ? waited : left_ns;
	return making->joined;
}

/* The thread has made all, and ends now. */
static void end(struct lien_making *making)
{
	if (!making->joined)
		pthread_join(making->thread, NULL);
	discard(making);
}

int lien_making_wait(struct lien_making **making, int *links)
{
	struct lien_making *made = *making;
	unsigned i;
	int err;

	if (!lien_making_ready(made))
		return -EINPROGRESS;
	*making = NULL;
	err = made->err;
	for (i = 0; i < made->links_count && !err; i++) {
		links[i] = made->links[i];
		made->links[i] = -1;
	}
	end(made);
	return err;
}

void lien_making_abandon(struct lien_making **making)
{
	struct lien_making *abandoned = *making;
	pthread_t thread;

	*making = NULL;
	if (!abandoned)
		return;
	thread = abandoned->thread;
	if (__atomic_exchange_n(&abandoned->over, true, __ATOMIC_ACQ_REL))
		end(abandoned);
	else
		pthread_detach(thread); /* it discards what it makes */
}

void lien_making_allow(unsigned ms)
{
	left_ns = ms * MS;
}

bool lien_making_busy(void)
{
	return __atomic_load_n(&under_way, __ATOMIC_ACQUIRE);
}
