// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_same SEED STEPS [DEVICES [CONTEXTS]]: a random program of driver calls, and a log of what it
 * saw (same.h). CONTEXTS: how many besides the primary ones it may have at a time. The log goes to
 * the file that SAME_LOG names, else to the output. With SAME_PAUSE=1 it prints "pause" at some
 * steps ("all": behind each) and goes on when it has read a line. It needs libc only: libcuda it
 * opens itself.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "same.h"

#define PAUSES 60 /* one in so many steps */

unsigned thread_now;
int devices = DEVICES;
unsigned contexts_max = 4;

static uint64_t state;
static FILE *out;
static char line[4096];
static size_t line_at;

unsigned below(unsigned n)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % n;
}

bool one_in(unsigned n)
{
	return !below(n);
}

void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line_at += vsnprintf(line + line_at, sizeof(line) - line_at, format, args);
	va_end(args);
	if (line_at >= sizeof(line))
		line_at = sizeof(line) - 1;
}

CUresult say_result(CUresult result)
{
	say(" = %d", result);
	return result;
}

bool known(const char *defect)
{
	const char *all = getenv("SAME_ALL");

	(void)defect;
	return !all || strcmp(all, "1");
}

/* --- steps --- */

static const struct op *const subjects[] = {memory_ops, copy_ops, row_ops, context_ops, stream_ops,
	capture_ops, pool_ops, pointer_ops, ipc_ops, virtual_ops};

static const struct op *op_any(void)
{
	const struct op *op;
	unsigned total = 0, left;

	for (unsigned i = 0; i < COUNT(subjects); i++)
		for (op = subjects[i]; op->make; op++)
			total += op->weight;
	left = below(total);
	for (unsigned i = 0; i < COUNT(subjects); i++)
		for (op = subjects[i]; op->make; op++) {
			if (left < op->weight)
				return op;
			left -= op->weight;
		}
	abort();
}

/* Nothing else is printed. */
static void pause_maybe(void)
{
	const char *wanted = getenv("SAME_PAUSE");
	bool now = one_in(PAUSES);
	char answer[64];

	if (wanted && !strcmp(wanted, "all"))
		now = true;
	/* An offload waits for the end of a capture. */
	if (!now || capture.stream || !wanted)
		return;
	puts("pause");
	fflush(stdout);
	if (!fgets(answer, sizeof(answer), stdin))
		exit(1);
}

static void step(void)
{
	if (!current() && one_in(4))
		context_enter();
	while (!line_at) /* there was nothing for it */
		op_any()->make();
}

/* --- threads, which take turns --- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum { MAIN, WORKER } turn = MAIN;
static bool ends;

static void *worker(void *arg)
{
	unsigned number = (uintptr_t)arg;

	pthread_mutex_lock(&lock);
	while (!ends) {
		if (turn == WORKER && thread_now == number) {
			step();
			turn = MAIN;
			pthread_cond_broadcast(&changed);
		}
		if (!ends)
			pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* One step, by a thread that mostly is the one of the step before. */
static void make_step(unsigned number)
{
	if (one_in(5))
		thread_now = below(THREADS);
	line_at = 0;
	turn = WORKER;
	pthread_cond_broadcast(&changed);
	while (turn == WORKER)
		pthread_cond_wait(&changed, &lock);
	fprintf(out, "%u t%u %s\n", number, thread_now, line);
	fflush(out);
	pause_maybe();
}

static void open_log(void)
{
	const char *path = getenv("SAME_LOG");

	out = path ? fopen(path, "w") : stdout;
	if (!out) {
		perror(path);
		exit(2);
	}
}

static void begin(void)
{
	int count = 0;

	((__typeof__(&cuInit))names_find("cuInit"))(0);
	((__typeof__(&cuDeviceGetCount))names_find("cuDeviceGetCount"))(&count);
	if (devices > count)
		devices = count;
	if (devices)
		return;
	fprintf(stderr, "prog_same: no device\n");
	exit(2);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	unsigned steps;

	if (argc == 3 && !strcmp(argv[1], "peer"))
		return peer_main(atoi(argv[2]));
	if (argc < 3) {
		fprintf(stderr, "usage: prog_same SEED STEPS [DEVICES [CONTEXTS]]\n");
		return 2;
	}
	state = strtoull(argv[1], NULL, 0);
	steps = strtoul(argv[2], NULL, 0);
	if (argc > 3 && atoi(argv[3]) < DEVICES)
		devices = atoi(argv[3]);
	if (argc > 4)
		contexts_max = atoi(argv[4]);
	peer_start(one_in(2));
	open_log();
	names_open(state);
	begin();
	model_open();
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, worker, (void *)(uintptr_t)i);
	for (unsigned i = 1; i <= steps; i++)
		make_step(i);
	ends = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	peer_end();
	fprintf(out, "end\n");
	return 0;
}
