// SPDX-License-Identifier: BSD-2-Clause
/* Commands of prog_driver: who makes the calls, descriptors, threads, processes. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lien/pass_fds.h>
#include <lien/tag.h>

#include "driver.h"

/* --- a library that makes the calls --- */

static long (*through)(void *fn, long a0, long a1, long a2, long a3, long a4, long a5);
bool through_nccl;

CUresult call_through_nccl(const char *function, const long args[6])
{
	return (CUresult)through(dlsym(RTLD_DEFAULT, function), args[0], args[1], args[2], args[3],
		args[4], args[5]);
}

static void do_nccl(void)
{
	void *library = dlopen(words[0], RTLD_NOW);

	through = library ? (__typeof__(through))dlsym(library, "lien_softnccl_call") : NULL;
	through_nccl = through;
	if (through)
		say(0, (uintptr_t)through);
	else
		printf("error 0 %s\n", dlerror());
}

static void do_tag(void)
{
	say(LIEN_TAG_PUSH(words[0]), 0);
}

static void do_untag(void)
{
	say(LIEN_TAG_POP(), 0);
}

/* Unloads it, and takes its place: when it is loaded again, it is elsewhere. */
static void do_nccl_close(void)
{
	void *library = dlopen(words[0], RTLD_NOW | RTLD_NOLOAD);
	Dl_info where = {0};

	if (!library || !dladdr((void *)through, &where)) {
		printf("error 0 not loaded\n");
		return;
	}
	through_nccl = false;
	dlclose(library);
	dlclose(library);
	say_errno(mmap(where.dli_fbase, 4096, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
			  0) == where.dli_fbase,
		0);
}

static void do_nccl_drop(void)
{
	void *library = dlopen(words[0], RTLD_NOW | RTLD_NOLOAD);
	Dl_info where = {0};

	dladdr((void *)through, &where);
	through_nccl = false;
	if (library)
		dlclose(library);
	say_errno(library && !dlclose(library), (uintptr_t)where.dli_fbase);
}

/* --- descriptors --- */

static void do_send(void)
{
	struct iovec part = {"", 1};
	int fd = arg[1], err = lien_pass_send(arg[0], &part, 1, &fd, 1);

	errno = -err;
	say_errno(!err, 0);
}

static void do_receive(void)
{
	unsigned count = 0;
	char byte;
	int fd = -1;
	ssize_t n = lien_pass_receive(arg[0], &byte, 1, &fd, &count, 0);

	errno = n < 0 ? -n : ENODATA;
	say_errno(count, fd);
}

static void do_closeall(void)
{
	say_errno(!syscall(SYS_close_range, 3u, ~0u, 0u), 0);
}

/* --- threads and processes --- */

static void *go_on(void *unused)
{
	(void)unused;
	printf("ok 0\n");
	read_commands();
	exit(0);
}

static void *call_and_stay(void *arg)
{
	sem_t *called = arg;

	cuInit(0);
	sem_post(called);
	for (;;)
		pause();
	return NULL;
}

static void do_thread(void)
{
	pthread_t thread;
	sem_t called;

	sem_init(&called, 0, 0);
	if (pthread_create(&thread, NULL, call_and_stay, &called)) {
		printf("error 0 no thread\n");
		return;
	}
	while (sem_wait(&called)) /* for a signal, perhaps */
		;
	say(0, 0);
}

static void *reserve_and_free(void *poked)
{
	CUdeviceptr at;

	if (!cuMemAddressReserve(&at, 2 << 20, 0, 0, 0))
		cuMemAddressFree(at, 2 << 20);
	atomic_store((atomic_int *)poked, 0);
	return NULL;
}

/* Traced calls in another thread, unless one is at them: they may be held. */
static void do_poke(void)
{
	static atomic_int poked;
	pthread_t thread;

	if (!atomic_exchange(&poked, 1)) {
		if (pthread_create(&thread, NULL, reserve_and_free, &poked)) {
			printf("error 0 no thread\n");
			return;
		}
		pthread_detach(thread);
	}
	say(0, 0);
}

/* Another thread goes on, and the first one ends. */
static void do_leave(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, go_on, NULL))
		printf("error 0 no thread\n");
	else
		pthread_exit(NULL);
}

static void *become(void *path)
{
	char *argv[] = {path, NULL};

	execv(argv[0], argv);
	return NULL;
}

/* Another thread becomes the program. */
static void do_become(void)
{
	pthread_t thread;

	if (!pthread_create(&thread, NULL, become, words[0]))
		pthread_join(thread, NULL);
	printf("error 0 not this one\n");
}

/* A child that holds what it inherited, uses nothing, and ends with its parent's input. */
static void do_fork(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid) {
		while (getppid() != 1)
			usleep(50000);
		_exit(0);
	}
	say_errno(pid >= 0, pid);
}

static void do_exec(void)
{
	char *argv[] = {"/bin/cat", NULL};

	printf("ok 0\n");
	fflush(stdout);
	execv(argv[0], argv);
	_exit(127);
}

/* Without our environment, and so without the control library. */
static void do_exec_bare(void)
{
	clearenv();
	do_exec();
}

/* --- functions that are rewritten in memory, as UCX does it --- */

/* Rewritten functions return this error, and no other function does. */
static CUresult hooked(void)
{
	return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* movabs $hooked, %r11; jmp *%r11 */
static void write_far(unsigned char code[13])
{
	const unsigned char jump[] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
	CUresult (*const to)(void) = hooked;

	memcpy(code, jump, sizeof(jump));
	memcpy(code + 2, &to, sizeof(to));
}

/* jmp to a page nearby, from which it is far. Returns false if there is no room. */
static bool write_near(unsigned char code[5])
{
	unsigned char *page;
	int32_t distance;

	for (uintptr_t at = ((uintptr_t)code | 0xffff) + 1; at < (uintptr_t)code + (1u << 30);
		at += 0x10000) {
		page = mmap((void *)at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (page == MAP_FAILED)
			continue;
		write_far(page);
		distance = page - (code + 5);
		code[0] = 0xe9;
		memcpy(code + 1, &distance, sizeof(distance));
		return true;
	}
	return false;
}

static void do_rewrite(void)
{
	unsigned char *page = (unsigned char *)(uintptr_t)(arg[0] & ~0xfffull);
	unsigned char *code = (unsigned char *)(uintptr_t)arg[0];
	bool good = !mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);

	if (good && arg[1] == 5)
		good = write_near(code);
	else if (good)
		write_far(code);
	say_errno(good && !mprotect(page, 8192, PROT_READ | PROT_EXEC), 0);
}

static void do_mask(void)
{
	const uint64_t all = UINT64_MAX;

	/* glibc would leave out its own */
	say_errno(!syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof(all)), 0);
}

static void do_unmask(void)
{
	const uint64_t none = 0;

	say_errno(!syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof(none)), 0);
}

static void do_limit(void)
{
	struct rlimit limit = {arg[1], arg[1]};

	say_errno(!setrlimit((__rlimit_resource_t)arg[0], &limit), 0);
}

static void do_exit(void)
{
	printf("ok 0\n");
	fflush(stdout);
	_exit(arg[0]);
}

static void do_pid(void)
{
	say_errno(true, getpid());
}

const struct command process_commands[] = {
	C("nccl", nccl, 1),		/* FILE */
	C("nccl-close", nccl_close, 1), /* FILE */
	C("nccl-drop", nccl_drop, 1),	/* FILE: unloads it; where it was */
	C("tag", tag, 1),		/* NAME: of what is allocated from now on */
	C("untag", untag, 0),
	C("send", send, 2),	    /* SOCKET FD: hands a copy to who has the other end */
	C("receive", receive, 1),   /* SOCKET: what was sent */
	C("closeall", closeall, 0), /* every descriptor above standard error's */
	C("thread", thread, 0),	    /* that has made a traced call, and stays */
	C("poke", poke, 0),	    /* traced calls, now or when the gate opens */
	C("leave", leave, 0),
	C("become", become, 1), /* PROGRAM */
	C("fork", fork, 0),
	C("exec", exec, 0),
	C("exec-bare", exec_bare, 0),
	C("rewrite", rewrite, 2), /* ADDRESS BYTES: so many, 5 or 13 */
	C("mask", mask, 0),	  /* blocks all signals */
	C("unmask", unmask, 0),
	C("limit", limit, 2), /* RESOURCE VALUE */
	C("exit", exit, 1),
	C("pid", pid, 0),
	{NULL, NULL, 0},
};
