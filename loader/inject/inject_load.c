// SPDX-License-Identifier: BSD-2-Clause
/*
 * Makes a borrowed thread start a new one, which loads the library while the application continues.
 *
 * The code of both runs in the process, never here: it is copied, so it must not contain absolute
 * addresses. The borrowed thread begins at lien_stub_code. It is stopped at its last system call,
 * and its registers are restored from outside. If nobody is left to stop it, it returns as from a
 * signal handler, through the frame in its own stack.
 *
 * The new thread begins at lien_stub_start. It waits for words from outside, about 2 s for each. On
 * exit it unmaps its memory by a jump to munmap(), which returns to the place where the thread was
 * started. It does not unmap unless it was told that the borrowed thread has left that memory.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "loader/inject/inject_internal.h"

#define CLEAR_UP_NS  (1000 * 1000000ull)
#define CHUNK	     65536
#define LISTINGS     8
#define MEMFD_PATH   "/memfd:" LIEN_INJECT_MEMFD
#define LIBRARY_NAME "liblien-control.so"
/* A spelling that no application uses, at least as long as the name that replaces it. */
#define FD_PATH "/proc/self/fd/././"

_Static_assert(sizeof(FD_PATH) >= sizeof(LIBRARY_NAME), "the name fits");

enum stub_step {
	STUB_READY = 1, /* the memfd is open, or err says why not */
	STUB_DONE,	/* dlopen() has returned, or was not called */
};

enum stub_word {
	STUB_GO = 1,   /* load it; at the end: keep it */
	STUB_STOP = 2, /* do not load it; at the end: close it again */
};

struct stub {
	struct lien_inject_calls calls;
	uint64_t frame; /* of the borrowed thread */
	uint64_t start; /* of the new thread's code */
	uint64_t region, region_size;
	uint64_t nap[2]; /* struct timespec */
	uint64_t handle; /* outputs begin here */
	uint64_t error;	 /* text of dlerror() */
	uint64_t thread; /* pthread_t */
	int32_t created; /* result of pthread_create(); -1: not called yet */
	int32_t fd;	 /* memfd, or -errno */
	uint32_t tid;	 /* as the process sees it */
	uint32_t step;	 /* enum stub_step */
	uint32_t word;	 /* from us, after READY: enum stub_word */
	uint32_t last;	 /* from us, after DONE: the same */
	uint32_t left;	 /* from us: the borrowed thread has left this memory */
	uint32_t mode;	 /* for dlopen() */
	char path[48], name[32];
};

/* Bytes of code at the beginning of the region; its data and the stack follow. */
#define STUB_CODE	       4096
#define STUB_REGION	       (STUB_CODE + 65536)
#define STUB_AT(region, field) ((region) + STUB_CODE + offsetof(struct stub, field))
#define STUB_NAP_NS	       200000

/* Offsets of labels in the code. */
#define STUB_LABEL(label) ((uintptr_t)(label) - (uintptr_t)lien_stub_code)

extern const unsigned char lien_stub_code[], lien_stub_start[], lien_stub_created[],
	lien_stub_end[];

/* The public beginning (<link.h>) of glibc's struct link_map; a dlopen() handle points to it. */
struct link_map_head {
	uint64_t address, name;
};

static const struct timespec nap = {.tv_nsec = STUB_NAP_NS};

#define NAPS 8000

#define OFFSET(field) [field] "i"(offsetof(struct stub, field))
#define CALL(field)   [field] "i"(offsetof(struct stub, calls.field))

__attribute__((used, noinline)) static void stub_code(void)
{
	__asm__ volatile(
		".globl lien_stub_code, lien_stub_start, lien_stub_created, lien_stub_end\n"
		"lien_stub_code:\n"
		"	call *%c[errno_location](%%r12)\n"
		"	mov %%rax, %%r13\n"
		"	mov (%%rax), %%r14d\n"
		"	lea %c[thread](%%r12), %%rdi\n"
		"	xor %%esi, %%esi\n"
		"	mov %c[start](%%r12), %%rdx\n"
		"	mov %%r12, %%rcx\n"
		"	call *%c[pthread_create](%%r12)\n"
		"	mov %%r14d, (%%r13)\n"
		"	mov %%eax, %c[created](%%r12)\n"
		"	mov $39, %%eax\n" /* getpid */
		"	syscall\n"
		"lien_stub_created:\n"
		"	mov %c[frame](%%r12), %%rsp\n"
		"	jmp *%c[restore_rt](%%r12)\n"

		"lien_stub_start:\n"
		"	push %%rbx\n"
		"	push %%rbp\n"
		"	sub $24, %%rsp\n"
		"	mov %%rdi, %%rbx\n"
		"	mov $186, %%eax\n" /* gettid */
		"	syscall\n"
		"	mov %%eax, %c[tid](%%rbx)\n"
		"	mov %%fs:0x10, %%rdi\n"
		"	call *%c[pthread_detach](%%rbx)\n"
		"	lea %c[name](%%rbx), %%rdi\n"
		"	mov $1, %%esi\n"   /* MFD_CLOEXEC */
		"	mov $319, %%eax\n" /* memfd_create */
		"	syscall\n"
		"	mov %%eax, %c[fd](%%rbx)\n"
		"	movl $1, %c[step](%%rbx)\n"
		"	test %%eax, %%eax\n"
		"	js 3f\n"
		"	lea %c[word](%%rbx), %%rbp\n"
		"	call 8f\n"
		"	cmpl $1, %c[word](%%rbx)\n"
		"	jne 2f\n"
		"	lea %c[path](%%rbx), %%rdi\n"
		"	mov %c[mode](%%rbx), %%esi\n"
		"	call *%c[dlopen](%%rbx)\n"
		"	mov %%rax, %c[handle](%%rbx)\n"
		"	test %%rax, %%rax\n"
		"	jnz 2f\n"
		"	cmpq $0, %c[dlerror](%%rbx)\n"
		"	je 2f\n"
		"	call *%c[dlerror](%%rbx)\n"
		"	mov %%rax, %c[error](%%rbx)\n"
		"2:	mov %c[fd](%%rbx), %%edi\n"
		"	mov $3, %%eax\n" /* close */
		"	syscall\n"
		"3:	movl $2, %c[step](%%rbx)\n"
		"	lea %c[last](%%rbx), %%rbp\n"
		"	call 8f\n"
		"	cmpl $2, %c[last](%%rbx)\n"
		"	jne 4f\n"
		"	mov %c[handle](%%rbx), %%rdi\n"
		"	test %%rdi, %%rdi\n"
		"	jz 4f\n"
		"	call *%c[dlclose](%%rbx)\n"
		"4:	mov %c[left](%%rbx), %%ecx\n"
		"	mov %c[region](%%rbx), %%rdi\n"
		"	mov %c[region_size](%%rbx), %%rsi\n"
		"	mov %c[munmap](%%rbx), %%rdx\n"
		"	xor %%eax, %%eax\n"
		"	add $24, %%rsp\n"
		"	pop %%rbp\n"
		"	pop %%rbx\n"
		"	test %%ecx, %%ecx\n"
		"	jz 5f\n"
		"	jmp *%%rdx\n"
		"5:	ret\n"

		/* Waits until the word at rbp is not 0. */
		"8:	push %%r12\n"
		"	mov %[naps], %%r12d\n"
		"9:	cmpl $0, (%%rbp)\n"
		"	jne 10f\n"
		"	lea %c[nap](%%rbx), %%rdi\n"
		"	xor %%esi, %%esi\n"
		"	mov $35, %%eax\n" /* nanosleep */
		"	syscall\n"
		"	dec %%r12d\n"
		"	jnz 9b\n"
		"10:	pop %%r12\n"
		"	ret\n"
		"lien_stub_end:\n"
		:
		: CALL(errno_location), OFFSET(thread), OFFSET(start), CALL(pthread_create),
		OFFSET(created), OFFSET(frame), CALL(restore_rt), OFFSET(tid), CALL(pthread_detach),
		OFFSET(name), OFFSET(fd), OFFSET(step), OFFSET(word), OFFSET(path), OFFSET(mode),
		CALL(dlopen), OFFSET(handle), CALL(dlerror), OFFSET(error), OFFSET(last),
		CALL(dlclose), OFFSET(left), OFFSET(region), OFFSET(region_size), CALL(munmap),
		OFFSET(nap), [naps] "i"(NAPS));
}

/* --- the borrowed thread --------------------------------------------------------------------- */

static int fail_region(struct lien_inject *inject, int err, const char *what)
{
	return lien_inject_fail(
		inject, err, "process %u cannot map %s: %s", inject->pid, what, strerror(-err));
}

static int fill_region(struct lien_inject *inject, struct lien_remote *remote, uint64_t region)
{
	const struct stub stub = {
		.calls = inject->calls,
		.mode = inject->dlopen_mode,
		.frame = remote->frame + sizeof(uint64_t),
		.start = region + STUB_LABEL(lien_stub_start),
		.region = region,
		.region_size = STUB_REGION,
		.nap = {0, STUB_NAP_NS},
		.created = -1,
		.name = LIEN_INJECT_MEMFD,
	};

	return lien_remote_write(remote, region, lien_stub_code, STUB_LABEL(lien_stub_end))
		       ?: lien_remote_write(remote, region + STUB_CODE, &stub, sizeof(stub));
}

/* Makes the thread map memory for the code and its data. Returns 0 or -errno. */
static int make_region(
	struct lien_inject *inject, struct lien_remote *remote, uint64_t *region, bool *failed)
{
	long result;
	int err;

	result = lien_remote_syscall(
		remote, failed, SYS_mmap, 0, STUB_REGION, PROT_READ | PROT_WRITE);
	if (result < 0)
		return fail_region(inject, result, "memory");
	*region = result;
	err = fill_region(inject, remote, *region);
	if (!err)
		err = lien_remote_syscall(
			remote, failed, SYS_mprotect, *region, STUB_CODE, PROT_READ | PROT_EXEC);
	if (!err)
		return 0;
	if (!*failed)
		lien_remote_syscall(remote, failed, SYS_munmap, *region, STUB_REGION, 0);
	return fail_region(inject, err, "code");
}

static int fail_create(struct lien_inject *inject, int err, int created)
{
	uint32_t pid = inject->pid;

	if (err == -ETIMEDOUT)
		return lien_inject_fail(
			inject, err, "process %u was too slow to start a thread: try again", pid);
	if (err == -EDEADLK)
		return lien_inject_fail(inject, err,
			"a thread of process %u waits for a lock of its libc: try again", pid);
	if (err)
		return lien_inject_fail(inject, err,
			"process %u could not start a thread: %s; start it with `lien run`", pid,
			strerror(-err));
	return lien_inject_fail(inject, -created,
		"process %u has no room for another thread (%s): raise its limit of processes "
		"(ulimit -u), of memory (ulimit -v) or its cgroup's pids.max",
		pid, strerror(created));
}

static int start_thread(
	struct lien_inject *inject, struct lien_remote *remote, uint64_t *region, bool *failed)
{
	struct stub stub = {.created = -1};
	int err;

	err = make_region(inject, remote, region, failed);
	if (err)
		return err;
	err = lien_remote_run(remote, *region, *region + STUB_REGION, *region + STUB_CODE,
		*region + STUB_LABEL(lien_stub_created));
	*failed = err && err != -EDEADLK && err != -EFAULT;
	if (!*failed && lien_inject_read(inject, *region + STUB_CODE, &stub, sizeof(stub)))
		err = -EFAULT;
	if (!*failed && (stub.tid || !stub.created)) /* the new thread runs: it needs that memory */
		return 0;
	if (!*failed)
		lien_remote_syscall(remote, failed, SYS_munmap, *region, STUB_REGION, 0);
	return fail_create(inject, err, stub.created);
}

int lien_inject_start(struct lien_inject *inject, struct lien_remote *remote, uint64_t *region)
{
	const uint32_t left = 1;
	struct lien_remote_words words = {.from = &left, .size = sizeof(left)};
	bool failed = false;
	int err;

	if (!lien_inject_same(inject))
		err = lien_inject_fail_gone(inject);
	else if ((err = lien_remote_borrow(remote)))
		lien_inject_fail(inject, err,
			"a thread of process %u has no room in its stack: try again", inject->pid);
	else
		err = start_thread(inject, remote, region, &failed);
	words.address = STUB_AT(*region, left);
	if ((failed || lien_remote_release(remote, err ? NULL : &words)) && !err)
		err = lien_inject_fail_gone(inject);
	return err;
}

/* --- the new thread -------------------------------------------------------------------------- */

/* Waits until the new thread has reached that step. -ESRCH, -ETIMEDOUT. */
static int wait_for(struct lien_inject *inject, uint64_t region, uint32_t step, struct stub *stub)
{
	for (;;) {
		if (lien_inject_over(inject))
			return lien_inject_fail_gone(inject);
		if (lien_inject_read(inject, region + STUB_CODE, stub, sizeof(*stub)))
			/* The thread may have stopped waiting for us. */
			return lien_inject_same(inject) ? -ETIMEDOUT
							: lien_inject_fail_gone(inject);
		if (stub->step >= step)
			return 0;
		if (lien_inject_late(inject))
			return -ETIMEDOUT;
		nanosleep(&nap, NULL);
	}
}

/* Finds a thread of the process by its number there; 0: none. A list read while threads before it
 * end leaves threads out. */
static uint32_t thread_of(const struct lien_inject *inject, uint32_t inner)
{
	uint32_t tid = inner;
	struct dirent *entry;
	char path[32];
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%u/task", inject->pid);
	for (int tries = 0; tries <= LISTINGS; tries++) {
		if (lien_status_of(inject->pid, tid, "NSpid", 10) == inner)
			return tid;
		tasks = opendir(path);
		while (tasks && (entry = readdir(tasks))) {
			tid = strtoul(entry->d_name, NULL, 10);
			if (tid && lien_status_of(inject->pid, tid, "NSpid", 10) == inner)
				break;
		}
		if (tasks)
			closedir(tasks);
	}
	return 0;
}

/* Writes these words for the new thread, which must have reported its number. -ESRCH,
 * -ETIMEDOUT. */
static int write_words(struct lien_inject *inject, const struct stub *stub,
	const struct lien_remote_words *words, unsigned count)
{
	int err;

	if (!inject->helper)
		inject->helper = thread_of(inject, stub->tid);
	if (!inject->helper)
		return -ESRCH;
	do {
		err = lien_remote_write_words(inject, inject->helper, stub->tid, words, count);
		if (err == -EBUSY)
			nanosleep(&nap, NULL);
	} while (err == -EBUSY && !lien_inject_late(inject));
	return err == -EBUSY ? -ETIMEDOUT : err;
}

/*
 * Takes the file that the process claims is its memfd. The claim may be false; so the file is not
 * reopened with our privileges but used as the process has it open, and must be a memfd with the
 * name that we gave it.
 */
static int take_memfd(struct lien_inject *inject, int fd)
{
	int taken = syscall(SYS_pidfd_getfd, inject->pidfd, fd, 0);
	char path[64], target[64];
	ssize_t n;

	if (taken < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", taken);
	n = readlink(path, target, sizeof(target) - 1);
	target[n < 0 ? 0 : n] = 0;
	if (!strncmp(target, MEMFD_PATH, strlen(MEMFD_PATH)) && fcntl(taken, F_GET_SEALS) >= 0)
		return taken;
	close(taken);
	return -EBADF;
}

static int copy_library(struct lien_inject *inject, int fd)
{
	ssize_t n = 0, written = 0;
	char *bytes;
	off_t at;
	int to, err;

	to = take_memfd(inject, fd);
	if (to < 0)
		return to;
	bytes = malloc(CHUNK);
	err = bytes ? 0 : -ENOMEM;
	for (at = 0; !err; at += n) {
		n = pread(inject->library_fd, bytes, CHUNK, at);
		if (n <= 0)
			break;
		written = pwrite(to, bytes, n, at);
		if (written != n)
			err = written < 0 ? -errno : -ENOSPC;
	}
	if (n < 0)
		err = -errno;
	free(bytes);
	close(to);
	return err;
}

/* The handle's name was a path that will later lead to another file, or to none. */
static void rename_library(struct lien_inject *inject, const struct stub *stub)
{
	struct lien_remote_words words = {.from = LIBRARY_NAME, .size = sizeof(LIBRARY_NAME)};
	struct link_map_head head;
	char name[sizeof(stub->path)];

	if (lien_inject_read(inject, stub->handle, &head, sizeof(head)) ||
		lien_inject_read(inject, head.name, name, strlen(stub->path) + 1) ||
		strcmp(name, stub->path))
		return;
	words.address = head.name;
	write_words(inject, stub, &words, 1);
}

static int fail_load(struct lien_inject *inject, const struct stub *stub)
{
	char text[200] = "";
	ssize_t n = stub->error ? pread(inject->mem, text, sizeof(text) - 1, stub->error) : 0;

	text[n < 0 ? 0 : n] = 0;
	text[strcspn(text, "\n")] = 0;
	for (char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return lien_inject_fail(inject, -ENOEXEC, "process %u cannot load the control library: %s",
		inject->pid, *text ? text : "its loader does not say why");
}

static int loaded(struct lien_inject *inject, const struct stub *stub, bool again)
{
	int err;

	if (stub->fd < 0)
		return lien_inject_fail(inject, stub->fd == -EMFILE ? -EAGAIN : stub->fd,
			"process %u cannot open another file: %s", inject->pid,
			strerror(-stub->fd));
	if (again)
		return stub->handle
			       ? 0
			       : lien_inject_fail(inject, -EAGAIN,
					 "the control library does not start again in process %u",
					 inject->pid);
	if (!stub->handle)
		return fail_load(inject, stub);
	rename_library(inject, stub);
	err = lien_inject_present(inject);
	if (err > 0)
		return 0;
	if (err == -EBUSY || !err)
		return lien_inject_fail(inject, -EAGAIN,
			"the control library has not started in process %u: its C library is not "
			"glibc",
			inject->pid);
	return err;
}

/* Waits until the new thread has unmapped its memory and ended. */
static void see_off(
	struct lien_inject *inject, uint64_t region, const struct stub *stub, uint32_t last)
{
	struct lien_remote_words words = {STUB_AT(region, last), &last, sizeof(last)};
	uint64_t end = lien_clock_ns() + CLEAR_UP_NS;
	uint32_t tid;
	char byte;

	write_words(inject, stub, &words, 1);
	tid = inject->helper;
	while (!lien_inject_over(inject) && lien_clock_ns() < end &&
		(!lien_inject_read(inject, region, &byte, 1) ||
			(tid && lien_status_of(inject->pid, tid, "NSpid", 10) == stub->tid)))
		nanosleep(&nap, NULL);
}

/* A library that has begun to serve can no longer be removed, nor one whose state is unknown. */
static bool may_serve(int err)
{
	return err == -EPROTO || err == -EMFILE || err == -ENFILE || err == -ENOMEM;
}

/* Gives up on a thread that was too slow: it stops if it has not begun. Returns err. */
static int give_up(struct lien_inject *inject, uint64_t region, const struct stub *stub, int err)
{
	uint32_t go = STUB_GO, stop = STUB_STOP;
	/* It does not close an fd that may be reused by then; it loads nothing if it has not begun.
	 * Even without these words it ends when it has waited long enough. */
	const struct lien_remote_words words[] = {{STUB_AT(region, last), &go, sizeof(go)},
		{STUB_AT(region, word), &stop, sizeof(stop)}};

	if (err == -ESRCH)
		return lien_inject_fail_gone(inject);
	write_words(inject, stub, words, stub->word ? 1 : 2);
	return lien_inject_fail(inject, err,
		"the loader of process %u is busy: the control library may be there when it is "
		"done; look again",
		inject->pid);
}

/* Writes the new thread's instructions and reads its answers. */
int lien_inject_load(struct lien_inject *inject, uint64_t region, bool again)
{
	uint32_t go = STUB_GO, stop = STUB_STOP;
	struct stub stub = {.tid = 0};
	struct lien_remote_words words[] = {{STUB_AT(region, path), stub.path, sizeof(stub.path)},
		{STUB_AT(region, word), &go, sizeof(go)}};
	int err, copied = 0;

	err = wait_for(inject, region, STUB_READY, &stub);
	if (!err && stub.fd >= 0) {
		snprintf(stub.path, sizeof(stub.path), FD_PATH "%d", stub.fd);
		if (!again)
			copied = copy_library(inject, stub.fd);
		if (copied)
			words[1].from = &stop;
		err = write_words(inject, &stub, words, 2)
			      ?: wait_for(inject, region, STUB_DONE, &stub);
	}
	if (err)
		return give_up(inject, region, &stub, err);
	err = copied ? lien_inject_fail(inject, copied,
			       "cannot give the control library to process %u: %s", inject->pid,
			       strerror(-copied))
		     : loaded(inject, &stub, again);
	see_off(inject, region, &stub, err && !may_serve(err) ? STUB_STOP : STUB_GO);
	return err;
}
