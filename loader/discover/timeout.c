// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/timeout.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include <lien/clock.h>
#include "loader/discover/detached.h"
#include "loader/discover/user.h"

#define USUAL_MS     1000
#define STACK	     (1 << 20)
#define S_NS	     1000000000ull
#define WINDOW_NS    (10 * S_NS) /* the period for counting slow operations of a process or user */
#define PROCESS_MAX  2		 /* slow ones allowed: any process is slow on a busy machine */
#define USER_MAX     12
#define ROOT_MAX     48
#define AGAIN_NS     S_NS	 /* a process with more of them is left alone for so long, then */
#define AGAIN_NS_MAX (60 * S_NS) /* for twice as long each time */
#define SLOW_MAX     64		 /* processes remembered; when full, no others are waited for */
#define FORGET_NS    (120 * S_NS)
#define AWAIT_NS     20000000
#define IDLE_MAX     2 /* idle threads kept */
#define STARVED	     5 /* times the limit, for a thread that has work and no processor */

enum state {
	STATE_RUNS,
	STATE_ABANDONED,
	STATE_DONE,
};

/* A worker thread. `theirs` is an fd number in its own table of files. */
struct helper {
	struct helper *next;
	int ours, theirs;
	unsigned users; /* the thread, and the caller whose work it does */
	uint32_t pid;	/* process that it works on */
	pid_t tid;
};

/* A process that was too slow. */
struct slow {
	uint32_t pid;
	uint32_t user;
	unsigned stuck;	   /* threads that were left behind and still exist */
	unsigned times;	   /* slow operations, not more than WINDOW_NS apart */
	uint64_t t, delay; /* time of the last one, and how long the process is left alone */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static struct helper *idle;
static unsigned idle_count;
static int door[2] = {-1, -1}; /* a new thread receives its socket from [0], sent through [1] */
static struct slow slow[SLOW_MAX];
static unsigned slow_count;

static _Thread_local unsigned limit_ms = USUAL_MS;
static _Thread_local uint64_t left_ns = UINT64_MAX; /* total time that this thread may still wait */
static _Thread_local bool is_helper;

void lien_timeout_set(unsigned ms)
{
	limit_ms = ms;
}

void lien_timeout_allow(unsigned ms)
{
	left_ns = ms * (S_NS / 1000);
}

static void helper_put(struct helper *helper)
{
	if (!__atomic_sub_fetch(&helper->users, 1, __ATOMIC_ACQ_REL))
		free(helper);
}

/* Drops a reference. The thread ends when it has no work left. */
static void helper_let_go(struct helper *helper)
{
	close(helper->ours);
	helper_put(helper);
}

/* --- slow processes --------------------------------------------------------------------------- */

static struct slow *find(uint32_t pid)
{
	unsigned i;

	for (i = 0; i < slow_count; i++)
		if (slow[i].pid == pid)
			return &slow[i];
	return NULL;
}

static void forget_old(uint64_t now)
{
	unsigned i;

	for (i = 0; i < slow_count; i++)
		if (!slow[i].stuck && now - slow[i].t > FORGET_NS)
			slow[i--] = slow[--slow_count];
}

/* Returns true if this process is worth waiting for. */
static bool is_welcome(uint32_t pid)
{
	uint64_t now = lien_clock_ns();
	unsigned i, of_user = 0;
	const struct slow *known;
	uint32_t user;

	forget_old(now);
	if (!slow_count)
		return true;
	known = find(pid);
	if (slow_count == SLOW_MAX || (known && (known->stuck || now - known->t < known->delay)))
		return false;
	user = lien_user_of(pid);
	for (i = 0; i < slow_count; i++)
		if (slow[i].user == user && (slow[i].stuck || now - slow[i].t < WINDOW_NS))
			of_user += slow[i].times;
	return of_user < (user ? USER_MAX : ROOT_MAX);
}

static void note_returned(uint32_t pid)
{
	struct slow *known = find(pid);

	if (known && known->stuck)
		known->stuck--;
}

/* `fault`: the process had its full time. */
static void note_slow(uint32_t pid, bool fault)
{
	struct slow *known = find(pid);
	uint64_t now = lien_clock_ns();

	if (!known && slow_count == SLOW_MAX)
		return; /* several callers at the same time */
	if (!known) {
		known = &slow[slow_count++];
		*known = (struct slow){.pid = pid, .user = lien_user_of(pid), .t = now};
	}
	if (!known->stuck && now - known->t > WINDOW_NS + known->delay)
		known->times = known->delay = 0;
	known->stuck++;
	known->t = now;
	known->times += fault;
	if (fault && known->times > PROCESS_MAX)
		known->delay = known->delay ? 2 * known->delay : AGAIN_NS;
	if (known->delay > AGAIN_NS_MAX)
		known->delay = AGAIN_NS_MAX;
}

/* --- the thread ------------------------------------------------------------------------------- */

/*
 * Unshares the file table, so that a thread that cannot end does not keep the caller's files open.
 * Copies no descriptors above the door: the thread would have the last descriptor of a link that
 * the caller closes meanwhile, and would wait for the kernel before it did any work.
 */
static void leave_files(void)
{
	if (!syscall(SYS_close_range, door[0] + 1, ~0u, CLOSE_RANGE_UNSHARE) && door[0])
		syscall(SYS_close_range, 0, door[0] - 1, 0);
}

/* Receives the thread's own socket, and its helper. */
static struct helper *enter(void)
{
	struct helper *helper;
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count;

	if (lien_pass_receive(door[0], &helper, sizeof(helper), fds, &count, 0) != sizeof(helper) ||
		count != 1)
		return NULL;
	helper->theirs = fds[0];
	__atomic_store_n(&helper->tid, gettid(), __ATOMIC_RELEASE);
	return helper;
}

static void close_fds(struct lien_timeout_work *work)
{
	while (work->fds_count)
		close(work->fds[--work->fds_count]);
}

/* Passes the work's files along; the work may be gone once the reply is sent. */
static int reply(struct helper *helper, const struct lien_timeout_work *work)
{
	unsigned count = work->fds_count;
	struct iovec byte = {"", 1};
	int fds[LIEN_TIMEOUT_FDS] = {-1, -1}, err;

	if (count)
		memcpy(fds, work->fds, count * sizeof(fds[0]));
	err = lien_pass_send(helper->theirs, &byte, 1, fds, count);
	while (count)
		close(fds[--count]);
	return err;
}

/* Returns false when nobody waits for it any more. */
static bool do_work(struct helper *helper, struct lien_timeout_work *work)
{
	work->run(work);
	if (__atomic_exchange_n(&work->state, STATE_DONE, __ATOMIC_ACQ_REL) != STATE_ABANDONED)
		return !reply(helper, work);
	close_fds(work);
	pthread_mutex_lock(&lock);
	note_returned(helper->pid);
	pthread_mutex_unlock(&lock);
	work->drop(work); /* last: whoever hears of it may look at the process again */
	return false;
}

static void *help(void *arg)
{
	struct lien_timeout_work *work;
	struct helper *helper;
	bool ends = false;

	(void)arg;
	is_helper = true;
	leave_files();
	helper = enter();
	if (!helper)
		return NULL;
	while (!ends) {
		int fds[LIEN_PASS_FDS_MAX];
		unsigned count;

		if (lien_pass_receive(helper->theirs, &work, sizeof(work), fds, &count, 0) !=
			sizeof(work))
			break;
		memcpy(work->fds, fds, count * sizeof(fds[0]));
		work->fds_count = count;
		ends = work->ends_thread;
		if (!do_work(helper, work))
			break;
	}
	close(helper->theirs);
	helper_put(helper);
	return NULL;
}

/* For the child of a fork(), which has none of the threads. */
static void forget_threads(void)
{
	pthread_mutex_init(&lock, NULL);
	idle = NULL;
	idle_count = 0;
	close(door[0]);
	close(door[1]);
	door[0] = door[1] = -1;
}

static void prepare_fork(void)
{
	pthread_atfork(NULL, NULL, forget_threads);
}

/* Made before anything is probed, so that links have higher numbers. */
static bool open_door(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	bool made;

	pthread_once(&once, prepare_fork);
	pthread_mutex_lock(&lock);
	made = door[0] >= 0 || !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, door);
	pthread_mutex_unlock(&lock);
	return made;
}

static struct helper *helper_new(void)
{
	struct helper *helper = calloc(1, sizeof(*helper));
	struct iovec pointer = {&helper, sizeof(helper)};
	int ends[2];
	bool begun;

	if (!helper || !open_door() ||
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		free(helper);
		return NULL;
	}
	helper->ours = ends[0];
	helper->users = 2;
	/* A thread that is sent nothing stays at the door, and serves the next helper. */
	begun = !lien_detached_start(STACK, help, NULL) &&
		!lien_pass_send(door[1], &pointer, 1, &ends[1], 1);
	close(ends[1]);
	if (begun)
		return helper;
	close(ends[0]);
	free(helper);
	return NULL;
}

/* --- the caller ------------------------------------------------------------------------------- */

static struct helper *helper_get(uint32_t pid)
{
	struct helper *helper = NULL;
	bool welcome;

	pthread_mutex_lock(&lock);
	welcome = is_welcome(pid);
	if (welcome && idle) {
		helper = idle;
		idle = helper->next;
		idle_count--;
	}
	pthread_mutex_unlock(&lock);
	if (welcome && !helper)
		helper = helper_new();
	if (helper)
		helper->pid = pid;
	return helper;
}

void lien_timeout_await(uint32_t pid, unsigned ms)
{
	const uint64_t end = lien_clock_ns() + ms * 1000000ull;
	const struct timespec pause = {0, AWAIT_NS};
	bool welcome;

	do {
		pthread_mutex_lock(&lock);
		welcome = is_welcome(pid);
		pthread_mutex_unlock(&lock);
	} while (!welcome && lien_clock_ns() < end && !nanosleep(&pause, NULL));
}

static bool replies_in(struct helper *helper, unsigned ms)
{
	struct pollfd readable = {.fd = helper->ours, .events = POLLIN};
	uint64_t begun = lien_clock_ns(), wait = ms * 1000000ull, took = 0;
	struct timespec left;
	int n;

	if (wait > left_ns)
		wait = left_ns;
	do {
		left = (struct timespec){(wait - took) / S_NS, (wait - took) % S_NS};
		n = ppoll(&readable, 1, &left, NULL);
		took = lien_clock_ns() - begun;
	} while (n < 0 && errno == EINTR && took < wait);
	if (left_ns != UINT64_MAX)
		left_ns -= took < left_ns ? took : left_ns;
	return n > 0;
}

/* Returns true if it waits for a processor or has one: nothing blocks it. */
static bool is_runnable(const struct helper *helper)
{
	pid_t tid = __atomic_load_n(&helper->tid, __ATOMIC_ACQUIRE);
	char path[48], line[64] = "", state = 0;
	FILE *file;

	if (!tid)
		return true; /* not started yet */
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	file = fopen(path, "re");
	if (!file)
		return false;
	if (fgets(line, sizeof(line), file))
		sscanf(line, "%*d (%*[^)]) %c", &state);
	fclose(file);
	return state == 'R';
}

static bool wait_for_reply(struct helper *helper, unsigned ms)
{
	unsigned i;

	for (i = 0; i < STARVED; i++) {
		if (replies_in(helper, ms))
			return true;
		if (!left_ns || !is_runnable(helper))
			return false;
	}
	return false;
}

static void take_reply(struct helper *helper, struct lien_timeout_work *work)
{
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count = 0;
	char byte;

	lien_pass_receive(helper->ours, &byte, 1, fds, &count, 0);
	memcpy(work->fds, fds, count * sizeof(fds[0]));
	work->fds_count = count;
	pthread_mutex_lock(&lock);
	if (!work->ends_thread && idle_count < IDLE_MAX) {
		helper->next = idle;
		idle = helper;
		idle_count++;
		helper = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (helper)
		helper_let_go(helper);
}

static void run_here(struct lien_timeout_work *work)
{
	unsigned i;

	for (i = 0; i < work->fds_count; i++)
		work->fds[i] = fcntl(work->fds[i], F_DUPFD_CLOEXEC, 0);
	work->run(work);
}

void lien_timeout_dismiss(void)
{
	struct helper *helper;

	pthread_mutex_lock(&lock);
	while ((helper = idle)) {
		idle = helper->next;
		idle_count--;
		helper_let_go(helper);
	}
	pthread_mutex_unlock(&lock);
}

bool lien_timeout_run(struct lien_timeout_work *work, uint32_t pid)
{
	struct iovec pointer = {&work, sizeof(work)};
	struct helper *helper;

	/* A helper can be left behind together with its work. */
	if (!pid || is_helper) {
		run_here(work);
		return true;
	}
	helper = left_ns ? helper_get(pid) : NULL;
	work->state = STATE_RUNS;
	if (!helper || lien_pass_send(helper->ours, &pointer, 1, work->fds, work->fds_count)) {
		if (helper)
			helper_let_go(helper);
		work->drop(work);
		return false;
	}
	if (!wait_for_reply(helper, limit_ms + work->more_ms)) {
		/* Counted before it can end. */
		pthread_mutex_lock(&lock);
		note_slow(pid, left_ns != 0);
		if (__atomic_exchange_n(&work->state, STATE_ABANDONED, __ATOMIC_ACQ_REL) !=
			STATE_DONE) {
			pthread_mutex_unlock(&lock);
			helper_let_go(helper);
			return false;
		}
		note_returned(pid);
		pthread_mutex_unlock(&lock);
	}
	take_reply(helper, work);
	return true;
}
