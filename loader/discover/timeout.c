// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/timeout.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include <lien/clock.h>
#include "loader/discover/status.h"

#define USUAL_MS     1000
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

/* A process that was too slow. */
struct slow {
	uint32_t pid;
	uint32_t user;
	unsigned stuck;	   /* threads that were left behind and still exist */
	unsigned times;	   /* slow operations, not more than WINDOW_NS apart */
	uint64_t t, delay; /* time of the last one, and how long the process is left alone */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
/* A helper is a thread with a table of files of its own; here, its socket's other end. It ends when
 * that is closed. */
static int idle[IDLE_MAX];
static unsigned idle_count;
static int door[2] = {-1, -1}; /* a new thread receives its socket from [0], sent through [1] */
static struct slow slow[SLOW_MAX];
static unsigned slow_count;

static _Thread_local unsigned limit_ms = USUAL_MS;
static _Thread_local uint64_t left_ns = UINT64_MAX; /* total time that this thread may still wait */
static _Thread_local bool is_helper;

void lien_timeout_limit(unsigned ms, unsigned all_ms)
{
	limit_ms = ms;
	left_ns = all_ms * (S_NS / 1000);
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

/* Does one piece of work. Returns false if the thread ends then. */
static bool do_work(int socket)
{
	struct lien_timeout_work *work;
	struct iovec byte = {"", 1};
	int fds[LIEN_PASS_FDS_MAX];
	bool ends, abandoned;
	unsigned count;

	if (lien_pass_receive(socket, &work, sizeof(work), fds, &count, 0) != sizeof(work))
		return false;
	ends = work->ends_thread;
	memcpy(work->fds, fds, count * sizeof(fds[0]));
	work->fds_count = count;
	__atomic_store_n(&work->tid, gettid(), __ATOMIC_RELEASE);
	work->run(work);
	count = work->fds_count;
	memcpy(fds, work->fds, count * sizeof(fds[0]));
	abandoned = __atomic_exchange_n(&work->over, true, __ATOMIC_ACQ_REL);
	if (!abandoned) /* the work may be gone once the reply is sent */
		ends |= lien_pass_send(socket, &byte, 1, fds, count) != 0;
	while (count)
		close(fds[--count]);
	if (!abandoned)
		return !ends;
	pthread_mutex_lock(&lock);
	note_returned(work->pid);
	pthread_mutex_unlock(&lock);
	work->drop(work); /* last: whoever hears of it may look at the process again */
	return false;
}

static void *help(void *arg)
{
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count;
	char byte;

	(void)arg;
	pthread_detach(pthread_self());
	is_helper = true;
	leave_files();
	if (lien_pass_receive(door[0], &byte, 1, fds, &count, 0) != 1 || count != 1)
		return NULL;
	while (do_work(fds[0]))
		;
	close(fds[0]);
	return NULL;
}

void lien_timeout_dismiss(void)
{
	pthread_mutex_lock(&lock);
	while (idle_count)
		close(idle[--idle_count]);
	pthread_mutex_unlock(&lock);
}

/* For the child of a fork(), which has none of the threads. */
static void forget_threads(void)
{
	pthread_mutex_init(&lock, NULL);
	lien_timeout_dismiss();
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

static int helper_new(void)
{
	struct iovec byte = {"", 1};
	pthread_t thread;
	int ends[2];
	bool begun;

	if (!open_door() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -1;
	/* A thread that is sent nothing stays at the door, and serves the next helper. */
	begun = !pthread_create(&thread, NULL, help, NULL) &&
		!lien_pass_send(door[1], &byte, 1, &ends[1], 1);
	close(ends[1]);
	if (begun)
		return ends[0];
	close(ends[0]);
	return -1;
}

/* --- the caller ------------------------------------------------------------------------------- */

/* Returns -1 if there is none, or the process is not worth waiting for, for `ms` at least. */
static int helper_get(uint32_t pid, unsigned ms)
{
	const uint64_t end = lien_clock_ns() + ms * 1000000ull;
	const struct timespec pause = {0, AWAIT_NS};
	int helper = -1;
	bool welcome;

	do {
		pthread_mutex_lock(&lock);
		welcome = is_welcome(pid);
		if (welcome && idle_count)
			helper = idle[--idle_count];
		pthread_mutex_unlock(&lock);
	} while (!welcome && lien_clock_ns() < end && !nanosleep(&pause, NULL));
	return welcome && helper < 0 ? helper_new() : helper;
}

static bool replies_in(int helper, unsigned ms)
{
	struct pollfd readable = {.fd = helper, .events = POLLIN};
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

/* Returns true if its thread waits for a processor or has one: nothing blocks it. */
static bool is_runnable(const struct lien_timeout_work *work)
{
	pid_t tid = __atomic_load_n(&work->tid, __ATOMIC_ACQUIRE);
	char text[LIEN_STATUS_SIZE];
	const char *state;

	if (!tid)
		return true; /* not begun yet */
	state = lien_status_read(getpid(), tid, text) ? NULL : lien_status_field(text, "State");
	return state && *state == 'R';
}

static bool wait_for_reply(int helper, const struct lien_timeout_work *work)
{
	for (unsigned i = 0; i < STARVED; i++) {
		if (replies_in(helper, limit_ms + work->more_ms))
			return true;
		if (!left_ns || !is_runnable(work))
			return false;
	}
	return false;
}

/* Leaves the work to its thread. Returns false if it has just been done. */
static bool abandon(struct lien_timeout_work *work)
{
	uint32_t pid = work->pid;
	bool done;

	pthread_mutex_lock(&lock);
	note_slow(pid, left_ns != 0); /* before it can end */
	done = __atomic_exchange_n(&work->over, true, __ATOMIC_ACQ_REL);
	if (done)
		note_returned(pid);
	pthread_mutex_unlock(&lock);
	return !done;
}

/* Returns false if the helper ended before it did the work. */
static bool take_reply(int helper, struct lien_timeout_work *work)
{
	int fds[LIEN_PASS_FDS_MAX];
	unsigned count = 0;
	bool again;
	char byte;

	again = lien_pass_receive(helper, &byte, 1, fds, &count, 0) == 1 && !work->ends_thread;
	memcpy(work->fds, fds, count * sizeof(fds[0]));
	work->fds_count = count;
	pthread_mutex_lock(&lock);
	if (again && idle_count < IDLE_MAX)
		idle[idle_count++] = helper;
	else
		close(helper);
	pthread_mutex_unlock(&lock);
	return __atomic_load_n(&work->over, __ATOMIC_ACQUIRE);
}

bool lien_timeout_run(struct lien_timeout_work *work, uint32_t pid)
{
	struct iovec pointer = {&work, sizeof(work)};
	int helper;

	/* A helper can be left behind together with its work. */
	if (!pid || is_helper) {
		for (unsigned i = 0; i < work->fds_count; i++)
			work->fds[i] = fcntl(work->fds[i], F_DUPFD_CLOEXEC, 0);
		work->run(work);
		return true;
	}
	work->over = false;
	work->pid = pid;
	work->tid = 0;
	helper = left_ns ? helper_get(pid, work->await_ms) : -1;
	if (helper < 0 || lien_pass_send(helper, &pointer, 1, work->fds, work->fds_count)) {
		if (helper >= 0)
			close(helper);
		work->drop(work);
		return false;
	}
	if (!wait_for_reply(helper, work) && abandon(work)) {
		close(helper);
		return false;
	}
	if (take_reply(helper, work))
		return true;
	work->drop(work);
	return false;
}
