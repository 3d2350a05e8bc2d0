// SPDX-License-Identifier: BSD-2-Clause
/*
 * A process that makes traced calls as no program should, with libraries made of hostile.c: a
 * command a line on standard input, "ok VALUE" or "error WHAT" a line on standard output. Arguments
 * are numbers or the names of places that cannot be read, or only in part.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/calls.h>

#define PAGE	  4096
#define WORDS_MAX 12
#define OPEN_MAX  4

typedef long call_fn(long, long, long, long, long, long);
typedef long hook_fn(int call, const long *arg);

static struct {
	void *handle;
	hook_fn **hook;
} opened[OPEN_MAX];

static char *words[WORDS_MAX];
static unsigned int words_count;
static char *readable;
static long result;

/* --- arguments --- */

static struct {
	const char *name;
	long address;
} places[] = {{"null", 0}, {"unmapped", 0}, {"half", 0}, {"none", 0}, {"eof", 0},
	{"kernel", (long)0xffff888000000000}, {"nowhere", 0x8000000000000000}, {"top", -1},
	{"user", 0x7ffffffff000}, {"good", 0}};

#define PLACES (sizeof(places) / sizeof(places[0]))

static void place(const char *name, void *address)
{
	for (unsigned int i = 0; i < PLACES; i++)
		if (!strcmp(places[i].name, name))
			places[i].address = (long)address;
}

static char *pages(int count, int protection)
{
	char *made = mmap(NULL, count * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (made == MAP_FAILED)
		abort();
	return made;
}

static void make_places(void)
{
	char *half = pages(2, PROT_READ | PROT_WRITE), *gone = pages(1, PROT_READ);
	int empty = memfd_create("empty", 0);

	readable = pages(4, PROT_READ | PROT_WRITE);
	memset(readable, 0x11, 4 * PAGE);
	memset(half, 0x11, PAGE);
	munmap(half + PAGE, PAGE);
	munmap(gone, PAGE);
	place("unmapped", gone);
	place("half", half + PAGE - 4);
	place("none", pages(1, PROT_NONE));
	place("eof", mmap(NULL, PAGE, PROT_READ, MAP_SHARED, empty, 0));
	place("good", readable);
}

static long value_of(const char *word)
{
	for (unsigned int i = 0; i < PLACES; i++)
		if (!strcmp(places[i].name, word))
			return places[i].address;
	return (long)strtoull(word, NULL, 0);
}

/* --- calls --- */

static call_fn *find(const char *symbol)
{
	void *found = NULL;

	for (unsigned int i = 0; i < OPEN_MAX && !found; i++)
		found = opened[i].handle ? dlsym(opened[i].handle, symbol) : NULL;
	if (!found)
		printf("error no %s\n", symbol);
	return (call_fn *)found;
}

static long say_result(int call, const long *arg)
{
	(void)call;
	(void)arg;
	return result;
}

static void hook(hook_fn *fn)
{
	for (unsigned int i = 0; i < OPEN_MAX; i++)
		if (opened[i].hook)
			*opened[i].hook = fn;
}

static void do_open(void)
{
	unsigned int i = 0;

	while (i < OPEN_MAX - 1 && opened[i].handle)
		i++;
	opened[i].handle = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
	if (!opened[i].handle) {
		printf("error %s\n", dlerror());
		return;
	}
	opened[i].hook = dlsym(opened[i].handle, "hostile_hook");
	hook(say_result);
	printf("ok %u\n", i);
}

/* Mapped executable as a loader would; no loader would take such a file. */
static void do_map(void)
{
	int fd = open(words[1], O_RDONLY);
	void *at =
		fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);

	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		printf("error %s\n", strerror(errno));
	else
		printf("ok %p\n", at);
}

/* What the calls return from now on. */
static void do_result(void)
{
	result = value_of(words[1]);
	printf("ok 0\n");
}

static void do_call(void)
{
	call_fn *call = find(words[1]);
	long arg[6] = {0};

	for (unsigned int i = 2; i < words_count && i < 8; i++)
		arg[i - 2] = value_of(words[i]);
	if (call)
		printf("ok %ld\n", call(arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]));
}

static void do_name(void)
{
	char name[16];

	for (unsigned int i = 0; i < sizeof(name); i++)
		name[i] = "\xff\"\\\n\x01)\t\xc3\x7f("[i % 10];
	printf("ok %d\n", prctl(PR_SET_NAME, name));
}

/* --- calls that are not what they seem --- */

static call_fn *inner;
static int nesting;
static sigjmp_buf back;

static long nest(int call, const long *arg)
{
	(void)call;
	if (nesting-- > 0)
		inner(arg[0], nesting + 1, arg[2], 0, 0, 0);
	return result;
}

/* nest DEPTH OUTER INNER: calls inside of calls. */
static void do_nest(void)
{
	call_fn *outer = find(words[2]);

	inner = find(words[3]);
	if (!outer || !inner)
		return;
	nesting = (int)value_of(words[1]);
	hook(nest);
	outer((long)readable, 0, (long)readable, 0, 0, 0);
	hook(say_result);
	printf("ok %d\n", nesting);
}

static long leave(int call, const long *arg)
{
	(void)call;
	(void)arg;
	siglongjmp(back, 1);
}

/* jump TIMES LEFT NEXT: each time, a call is left by a jump and another made from the same place.
 */
static void do_jump(void)
{
	call_fn *left = find(words[2]), *next = find(words[3]);
	volatile long times = value_of(words[1]);

	if (!left || !next)
		return;
	while (times-- > 0) {
		call_fn *volatile call = left;

		hook(leave);
		if (sigsetjmp(back, 1)) {
			hook(say_result);
			call = next;
		}
		call((long)readable, 0x1000, (long)readable, 0, 0, 0);
	}
	printf("ok 0\n");
}

static void on_signal(int number)
{
	(void)number;
	hook(say_result);
	inner((long)readable, 0x2000, (long)readable, 0, 0, 0);
}

static long interrupted(int call, const long *arg)
{
	(void)call;
	(void)arg;
	raise(SIGUSR1);
	return result;
}

/* signal OUTER INNER: the first is interrupted by a handler that makes the second. */
static void do_signal(void)
{
	call_fn *outer = find(words[1]);

	inner = find(words[2]);
	if (!outer || !inner)
		return;
	signal(SIGUSR1, on_signal);
	hook(interrupted);
	outer((long)readable, 0x1000, (long)readable, 0, 0, 0);
	printf("ok 0\n");
}

static long end_thread(int call, const long *arg)
{
	(void)call;
	(void)arg;
	syscall(SYS_exit, 0);
	return 0;
}

static void *die(void *of)
{
	((call_fn *)of)((long)readable, 0x1000, (long)readable, 0, 0, 0);
	return NULL;
}

/* die TIMES SYMBOL: as many threads, each of which ends in the middle of the call. */
static void do_die(void)
{
	call_fn *call = find(words[2]);
	long times = value_of(words[1]);
	pthread_t thread;

	hook(end_thread);
	while (call && times-- > 0 && !pthread_create(&thread, NULL, die, (void *)call))
		pthread_join(thread, NULL);
	hook(say_result);
	printf("ok %ld\n", times);
}

/* --- any call with anything --- */

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % below;
}

static long draw_value(void)
{
	static const long odd[] = {0, 1, 2, 8, 16, 17, 32, 33, 128, 0x7fffffff, 0xffffffff,
		1l << 40, -1, -4096, 0x200000, 0x400000, 0x7f0000000000, 0x7f0000200000};

	return draw(3) ? odd[draw(sizeof(odd) / sizeof(odd[0]))] : places[draw(PLACES)].address;
}

static long say_anything(int call, const long *arg)
{
	static const long results[] = {0, 0, 0, 0, 1, 7, 400, -1};

	(void)call;
	(void)arg;
	for (unsigned int i = 0; i < 32; i++) /* what a call gave out, and its properties */
		((long *)readable)[i] = draw_value();
	return results[draw(8)];
}

/* random SEED COUNT */
static void do_random(void)
{
	static const char *const symbols[] = {
#define SYMBOL(name, number, lib, symbol, flags, kind) symbol,
		LIEN_CALLS(SYMBOL)
#undef SYMBOL
	};
	long count = value_of(words[2]);

	seed = value_of(words[1]);
	hook(say_anything);
	for (long i = 0; i < count; i++) {
		call_fn *call = NULL;
		const char *symbol = symbols[draw(sizeof(symbols) / sizeof(symbols[0]))];

		for (unsigned int j = 0; j < OPEN_MAX && !call; j++)
			if (opened[j].handle)
				call = (call_fn *)dlsym(opened[j].handle, symbol);
		if (call)
			call(draw(2) ? (long)readable : draw_value(), draw_value(), draw_value(),
				draw_value(), draw_value(), draw_value());
	}
	hook(say_result);
	printf("ok %ld\n", count);
}

static const struct {
	const char *name;
	void (*run)(void);
	unsigned int words; /* at least, itself included */
} commands[] = {
	{"open", do_open, 2},	  /* FILE: dlopen() */
	{"map", do_map, 2},	  /* FILE: executable */
	{"result", do_result, 2}, /* NUMBER */
	{"call", do_call, 2},	  /* SYMBOL [ARGUMENT]... */
	{"name", do_name, 1},
	{"nest", do_nest, 4},
	{"jump", do_jump, 4},
	{"signal", do_signal, 3},
	{"die", do_die, 3},
	{"random", do_random, 3},
};

int main(void)
{
	char line[1024], *save;

	setvbuf(stdout, NULL, _IOLBF, 0);
	make_places();
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		unsigned int i;

		words_count = 0;
		for (char *word = strtok_r(line, " \n", &save); word && words_count < WORDS_MAX;
			word = strtok_r(NULL, " \n", &save))
			words[words_count++] = word;
		for (i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
			if (words_count >= commands[i].words && !strcmp(words[0], commands[i].name))
				break;
		if (i < sizeof(commands) / sizeof(commands[0]))
			commands[i].run();
		else
			printf("error no such command\n");
	}
	return 0;
}
