// SPDX-License-Identifier: BSD-2-Clause
/*
 * Calls functions of the driver by name, each in a thread of its own, with zeros for arguments:
 * prog_gated DEVICE BYTES. It has that much memory of cuMemCreate's. Commands on standard input:
 *
 *	call NAME	begins; "began TID" once the thread is about to call
 *	count		"ok N": so many calls have returned
 *	at ADDRESS NAME	as call, with the address as first argument and 64 as second and third
 *	address		"ok ADDRESS" of the memory
 *	fill VALUE	"ok 0": all bytes of it are that now, written by cuMemsetD8
 *	check VALUE	"ok WRONG": bytes that are not
 *	block		from now on threads block all signals that programs can block, and the
 *			program handles all that programs can handle
 *	block all	from now on threads block all signals, those of glibc's own, too
 *	idle		a thread that makes no call: "ok TID"
 *	wake		"ok 0": it has ended
 *	setuid		"ok 0": to what it is, in all threads
 *	load PATH	a thread that loads this library, whose constructor may call "at ADDRESS
 *			cuMemsetD8_v2" (fixtures/sets_at_load.c): as "call"
 *	more		"ok 0": it has as much memory again
 *	close		"ok 0": the descriptors of the control library
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

typedef long any_fn(long, long, long, long, long, long);

struct call {
	any_fn *function;
	long address;
};

static _Atomic unsigned returned;
static CUcontext context;
static CUdeviceptr memory;
static size_t bytes;
static enum { BLOCK_NONE, BLOCK, BLOCK_ALL } blocks;

static void say(long value)
{
	printf("ok %ld\n", value);
	fflush(stdout);
}

static void *run(void *arg)
{
	struct call call = *(struct call *)arg;

	free(arg);
	cuCtxSetCurrent(context);
	printf("began %d\n", gettid());
	fflush(stdout);
	if (call.address)
		call.function(call.address, 64, 64, 0, 0, 0);
	else
		call.function(0, 0, 0, 0, 0, 0);
	atomic_fetch_add(&returned, 1);
	return NULL;
}

static pthread_t start(void *(*fn)(void *), void *arg)
{
	const uint64_t every = UINT64_MAX;
	sigset_t all, before;
	pthread_t thread;

	sigfillset(&all);
	pthread_sigmask(blocks ? SIG_BLOCK : SIG_UNBLOCK, &all, &before);
	if (blocks == BLOCK_ALL)
		syscall(SYS_rt_sigprocmask, SIG_BLOCK, &every, NULL, sizeof(every));
	pthread_create(&thread, NULL, fn, arg);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(every));
	return thread;
}

static void ignore(int number)
{
	(void)number;
}

static void handle_all(void)
{
	const struct sigaction action = {.sa_handler = ignore};

	for (int number = 1; number <= SIGRTMAX; number++)
		sigaction(number, &action, NULL);
}

static pthread_mutex_t sleeps = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int idle_tid;

static void *idle(void *arg)
{
	idle_tid = gettid();
	pthread_mutex_lock(&sleeps);
	pthread_mutex_unlock(&sleeps);
	return arg;
}

static void begin(const char *name, long address)
{
	struct call *call = malloc(sizeof(*call));

	*call = (struct call){(any_fn *)dlsym(RTLD_DEFAULT, name), address};
	if (!call->function) {
		say(-1);
		return;
	}
	pthread_detach(start(run, call));
}

/* The constructor that calls this holds the loader's lock. */
static void set_at_load(void)
{
	cuCtxSetCurrent(context);
	cuMemsetD8_v2(memory, 64, 64);
}

static void *load(void *arg)
{
	char *path = arg, where[32];

	snprintf(where, sizeof(where), "%p", (void *)set_at_load);
	setenv("SETS_AT_LOAD", where, 1);
	printf("began %d\n", gettid());
	fflush(stdout);
	if (!dlopen(path, RTLD_NOW))
		abort();
	free(path);
	atomic_fetch_add(&returned, 1);
	return NULL;
}

static int more(CUdeviceptr *at, int device)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;

	return cuMemCreate(&handle, bytes, &prop, 0) || cuMemAddressReserve(at, bytes, 0, 0, 0) ||
	       cuMemMap(*at, bytes, 0, handle, 0) || cuMemSetAccess(*at, bytes, &access, 1);
}

static int make(int device)
{
	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, device) ||
	       cuCtxSetCurrent(context) || more(&memory, device);
}

static long wrong(int value)
{
	unsigned char *copy = malloc(bytes);
	long n = 0;

	cuMemcpyDtoH_v2(copy, memory, bytes);
	for (size_t i = 0; i < bytes; i++)
		n += copy[i] != value;
	free(copy);
	return n;
}

int main(int argc, char **argv)
{
	char line[200], name[100];
	unsigned long address;
	pthread_t sleeper;
	CUdeviceptr other;

	bytes = argc == 3 ? strtoul(argv[2], NULL, 0) : 0;
	if (argc != 3 || make(atoi(argv[1])))
		return 2;
	printf("ready %d\n", getpid());
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "call %99s", name) == 1)
			begin(name, 0);
		else if (sscanf(line, "at %lu %99s", &address, name) == 2)
			begin(name, address);
		else if (sscanf(line, "load %99s", name) == 1)
			pthread_detach(start(load, strdup(name)));
		else if (!strcmp(line, "more\n"))
			say(more(&other, atoi(argv[1])));
		else if (!strcmp(line, "count\n"))
			say(atomic_load(&returned));
		else if (!strcmp(line, "address\n"))
			say(memory);
		else if (!strncmp(line, "fill ", 5))
			say(cuMemsetD8_v2(memory, atoi(line + 5), bytes));
		else if (!strncmp(line, "check ", 6))
			say(wrong(atoi(line + 6)));
		else if (!strcmp(line, "close\n"))
			say(syscall(SYS_close_range, 900u, ~0u, 0u)); /* control/start.c */
		else if (!strcmp(line, "block\n")) {
			blocks = BLOCK;
			handle_all();
			say(0);
		} else if (!strcmp(line, "block all\n")) {
			blocks = BLOCK_ALL;
			say(0);
		} else if (!strcmp(line, "idle\n")) {
			pthread_mutex_lock(&sleeps);
			sleeper = start(idle, NULL);
			while (!idle_tid)
				usleep(1000);
			say(idle_tid);
		} else if (!strcmp(line, "wake\n")) {
			pthread_mutex_unlock(&sleeps);
			say(pthread_join(sleeper, NULL));
		} else if (!strcmp(line, "setuid\n"))
			say(setuid(getuid()));
		else
			say(-2);
	}
	return 0;
}
