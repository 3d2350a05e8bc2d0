// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_waits KIND... : a thread for each kind that waits, again and again, and looks whether it
 * came back when it should have, with what it should have; and threads that keep glibc busy. Says
 * "ready", at each line of input "ok ROUNDS" or "bad WHAT", and ends with its input.
 *
 * Waits: nanosleep, clock, poll, ppoll, select, futex, cond, read, epoll, wait (for a child),
 * handler (signals come, and each must end a ppoll), errno (which stays, as registers do). To keep
 * it busy: malloc, fork, vfork, load, start (threads), spin. slow-load: has the loader's lock while
 * $SLOW_LIBRARY's constructor runs; in-handler: waits in a
 * signal handler for 0.3 s; slow-vfork: has a child in its memory for 2 s; exec: starts the
 * program anew. A wait takes $WAIT_MS (40), and $LATE_MS more at most.
 */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <linux/futex.h>
#include <time.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#define MS     1000000ll
#define BLOCKS 64

static unsigned long rounds;
static long long wait_ms = 40, late_ms = 2000; /* the machine is shared */
static char bad[256];
static char **arguments;

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	va_list args;

	va_start(args, format);
	pthread_mutex_lock(&lock);
	if (!bad[0])
		vsnprintf(bad, sizeof(bad), format, args);
	pthread_mutex_unlock(&lock);
	va_end(args);
}

/* A wait of wait_ms that nothing ended before its time. */
static void check(const char *kind, long result, long expected, int error, long long begun)
{
	long long took = (now_ns() - begun) / 1000;

	if (result != expected || (result < 0 && error != errno))
		complain("%s returned %ld, errno %d", kind, result, errno);
	if (took < wait_ms * 1000 - 100)
		complain("%s took %lld us, not %lld ms", kind, took, wait_ms);
	if (took > (wait_ms + late_ms) * 1000ll)
		complain("%s took %lld us, much more than %lld ms", kind, took, wait_ms);
	__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
}

static void *wait_nanosleep(void *arg)
{
	const struct timespec time = {wait_ms / 1000, wait_ms % 1000 * MS};

	for (;;) {
		long long begun = now_ns();

		check(arg, nanosleep(&time, NULL), 0, 0, begun);
	}
	return NULL;
}

static void *wait_clock(void *arg)
{
	for (;;) {
		long long begun = now_ns(), end = begun + wait_ms * MS;
		struct timespec time = {end / 1000000000, end % 1000000000};

		check(arg, clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL), 0, 0,
			begun);
	}
	return NULL;
}

static void *wait_poll(void *arg)
{
	for (;;) {
		long long begun = now_ns();

		check(arg, poll(NULL, 0, wait_ms), 0, 0, begun);
	}
	return NULL;
}

static void *wait_ppoll(void *arg)
{
	const struct timespec time = {wait_ms / 1000, wait_ms % 1000 * MS};
	sigset_t none;

	sigemptyset(&none);
	for (;;) {
		long long begun = now_ns();

		check(arg, ppoll(NULL, 0, &time, &none), 0, 0, begun);
	}
	return NULL;
}

static void *wait_select(void *arg)
{
	for (;;) {
		struct timeval time = {wait_ms / 1000, wait_ms % 1000 * 1000};
		long long begun = now_ns();

		check(arg, select(0, NULL, NULL, NULL, &time), 0, 0, begun);
	}
	return NULL;
}

static void *wait_futex(void *arg)
{
	const struct timespec time = {wait_ms / 1000, wait_ms % 1000 * MS};
	int word = 1;

	for (;;) {
		long long begun = now_ns();

		check(arg, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &time, NULL, 0), -1,
			ETIMEDOUT, begun);
	}
	return NULL;
}

static void *wait_cond(void *arg)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	pthread_condattr_t attr;
	pthread_cond_t cond;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&cond, &attr);
	pthread_mutex_lock(&lock);
	for (;;) {
		long long begun = now_ns(), end = begun + wait_ms * MS;
		struct timespec time = {end / 1000000000, end % 1000000000};

		check(arg, pthread_cond_timedwait(&cond, &lock, &time), ETIMEDOUT, 0, begun);
	}
	return NULL;
}

/* Becomes readable now and then, and no thread is needed for that. */
static int ticks(void)
{
	const struct timespec each = {wait_ms / 1000, wait_ms % 1000 * MS};
	const struct itimerspec times = {each, each};
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

	timerfd_settime(fd, 0, &times, NULL);
	return fd;
}

static void *wait_read(void *arg)
{
	int fd = ticks();
	uint64_t count;

	for (;;) {
		ssize_t n = read(fd, &count, sizeof(count));

		if (n != sizeof(count))
			complain("%s returned %zd, errno %d", (char *)arg, n, errno);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *wait_epoll(void *arg)
{
	struct epoll_event event = {.events = EPOLLIN};
	int fd = ticks(), set = epoll_create1(EPOLL_CLOEXEC);
	uint64_t count;

	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	for (;;) {
		int n = epoll_wait(set, &event, 1, -1);

		if (n != 1 || read(fd, &count, sizeof(count)) != sizeof(count))
			complain("%s returned %d, errno %d", (char *)arg, n, errno);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *wait_child(void *arg)
{
	for (;;) {
		int status = 1;
		pid_t pid = fork(), found;

		if (!pid) {
			poll(NULL, 0, wait_ms);
			_exit(0);
		}
		found = waitpid(pid, &status, 0);
		if (found != pid || status)
			complain("%s returned %d, status %d, errno %d", (char *)arg, found, status,
				errno);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static volatile int handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

/* A signal with a handler ends poll(), wherever it comes in between. */
static void *send_signals(void *thread)
{
	for (;;) {
		poll(NULL, 0, 7);
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	}
	return NULL;
}

static void *wait_handler(void *arg)
{
	const struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
	pthread_t self = pthread_self(), thread;
	sigset_t usr1, inside;

	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, &inside);
	sigdelset(&inside, SIGUSR1);
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&thread, NULL, send_signals, &self);
	for (;;) {
		int before = handled, result;
		struct timespec time = {.tv_sec = 3};

		errno = 0;
		result = ppoll(NULL, 0, &time, &inside);
		if (result != -1 || errno != EINTR || handled == before)
			complain("%s: ppoll returned %d, errno %d, after %d signals", (char *)arg,
				result, errno, handled - before);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* What must not be mixed up: errno, and registers that calls may not change. */
static void *keep_errno(void *arg)
{
	const struct timespec time = {.tv_nsec = 3 * MS};

	for (;;) {
		register double a __asm__("xmm0") = 1.25;
		long result = SYS_nanosleep;

		errno = 77;
		__asm__ volatile("syscall"
				 : "+a"(result), "+x"(a)
				 : "D"(&time), "S"(0l)
				 : "rcx", "r11", "memory");
		if (result || errno != 77 || a != 1.25)
			complain("%s: %ld, errno %d, xmm0 %g", (char *)arg, result, errno, a);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void *busy_malloc(void *arg)
{
	unsigned seed = (unsigned)(long)arg;
	char *blocks[BLOCKS] = {};

	for (;;) {
		unsigned i = rand_r(&seed) % BLOCKS;
		size_t size =
			1 + (rand_r(&seed) % 16 ? rand_r(&seed) % 3000 : rand_r(&seed) % 400000);

		if (blocks[i] && blocks[i][0] != (char)i)
			complain("a block was overwritten");
		free(blocks[i]);
		blocks[i] = malloc(size);
		if (blocks[i])
			memset(blocks[i], i, size);
		if (i == 0)
			poll(NULL, 0, 1);
	}
	return NULL;
}

static void *busy_fork(void *arg)
{
	for (;;) {
		pid_t pid = fork();
		int status;

		if (!pid) {
			free(malloc(100));
			_exit(0);
		}
		if (pid > 0)
			waitpid(pid, &status, 0);
		poll(NULL, 0, 2);
	}
	return arg;
}

static void *busy_vfork(void *arg)
{
	for (;;) {
		if (system(":"))
			complain("system() failed");
		poll(NULL, 0, 3);
	}
	return arg;
}

static void *busy_load(void *arg)
{
	for (;;) {
		void *handle = dlopen("libutil.so.1", RTLD_NOW), *other;

		other = dlopen("libm.so.6", RTLD_LAZY);
		if (!handle || !other || !dlsym(other, "cos"))
			complain("dlopen: %s", dlerror());
		dlclose(handle);
		dlclose(other);
		poll(NULL, 0, 1);
	}
	return arg;
}

static void *short_life(void *arg)
{
	free(malloc(1000));
	return arg;
}

static void *busy_start(void *arg)
{
	pthread_t threads[4];

	for (;;) {
		for (int i = 0; i < 4; i++)
			if (pthread_create(&threads[i], NULL, short_life, arg)) {
				complain("pthread_create");
				return NULL;
			}
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
		poll(NULL, 0, 1);
	}
	return NULL;
}

static void *busy_spin(void *arg)
{
	volatile int on = 1;

	while (on)
		__asm__ volatile("pause");
	return arg;
}

static void wait_in_handler(int signal)
{
	(void)signal;
	poll(NULL, 0, 300);
}

/* Waits in a handler that came in the middle of malloc(), as likely as not with its lock. */
static void *handle_in_malloc(void *arg)
{
	const struct sigaction action = {.sa_handler = wait_in_handler, .sa_flags = SA_RESTART};
	const struct itimerspec soon = {.it_value = {.tv_nsec = 20 * MS}};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR2};
	long long begun = now_ns();
	timer_t timer;

	event._sigev_un._tid = gettid();
	sigaction(SIGUSR2, &action, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &soon, NULL);
	while (now_ns() < begun + 200 * MS)
		for (int i = 0; i < 1000; i++) {
			void *volatile block = malloc(2000 + i);

			free(block);
		}
	for (;;)
		poll(NULL, 0, 10);
	return arg;
}

/* Has the loader's lock until the library's constructor returns. */
static void *load_slowly(void *arg)
{
	return dlopen(getenv("SLOW_LIBRARY"), RTLD_NOW) ? arg : NULL;
}

/* Stays in vfork() while its child does. */
static void *fork_slowly(void *arg)
{
	if (!vfork()) {
		poll(NULL, 0, 2000);
		_exit(0);
	}
	return arg;
}

/* The same program anew; its output goes on. */
static void *start_anew(void *arg)
{
	poll(NULL, 0, 30);
	execv("/proc/self/exe", arguments);
	return arg;
}

static const struct kind {
	const char *name;
	void *(*run)(void *);
} kinds[] = {
	{"nanosleep", wait_nanosleep},
	{"clock", wait_clock},
	{"poll", wait_poll},
	{"ppoll", wait_ppoll},
	{"select", wait_select},
	{"futex", wait_futex},
	{"cond", wait_cond},
	{"read", wait_read},
	{"epoll", wait_epoll},
	{"wait", wait_child},
	{"handler", wait_handler},
	{"errno", keep_errno},
	{"malloc", busy_malloc},
	{"fork", busy_fork},
	{"vfork", busy_vfork},
	{"load", busy_load},
	{"start", busy_start},
	{"spin", busy_spin},
	{"exec", start_anew},
	{"in-handler", handle_in_malloc},
	{"slow-load", load_slowly},
	{"slow-vfork", fork_slowly},
};

/* Waits so that this thread is never the one that is borrowed, if there are others. It gets the
 * signals of children, which the kernel wakes somebody for though they are ignored. */
static bool input(char *line, size_t size, int set)
{
	struct epoll_event event;
	ssize_t n;

	while (set >= 0 && epoll_wait(set, &event, 1, 1 << 30) != 1)
		;
	n = read(0, line, size);
	if (n < 0)
		complain("read of the first thread: %s", strerror(errno));
	return n != 0;
}

int main(int argc, char **argv)
{
	struct epoll_event event = {.events = EPOLLIN};
	int set = argc > 1 ? epoll_create1(EPOLL_CLOEXEC) : -1;
	char line[64];
	sigset_t blocked;

	if (set >= 0)
		epoll_ctl(set, EPOLL_CTL_ADD, 0, &event);
	cuInit(0);
	arguments = argv;
	if (getenv("WAIT_MS"))
		wait_ms = atoi(getenv("WAIT_MS"));
	if (getenv("LATE_MS"))
		late_ms = atoi(getenv("LATE_MS"));
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGCHLD);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	for (int i = 1; i < argc; i++) {
		pthread_t thread;
		unsigned k = 0;

		while (k < sizeof(kinds) / sizeof(kinds[0]) && strcmp(kinds[k].name, argv[i]))
			k++;
		if (k == sizeof(kinds) / sizeof(kinds[0]) ||
			pthread_create(&thread, NULL, kinds[k].run, argv[i])) {
			fprintf(stderr, "prog_waits: %s?\n", argv[i]);
			return 2;
		}
	}
	sigdelset(&blocked, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
	printf("ready\n");
	fflush(stdout);
	while (input(line, sizeof(line), set)) {
		if (bad[0])
			printf("bad %s\n", bad);
		else
			printf("ok %lu\n", __atomic_load_n(&rounds, __ATOMIC_RELAXED));
		fflush(stdout);
	}
	_exit(0);
}
