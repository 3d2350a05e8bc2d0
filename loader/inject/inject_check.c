// SPDX-License-Identifier: BSD-2-Clause
/* The process, without touching it: is it still the same, and is it one to leave alone, and why? */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/inject/inject_internal.h"
#include "loader/discover/untrusted.h"

#define AUXV_SIZE 1024
#define KCMP_VM	  1

int lien_inject_fail(struct lien_inject *inject, int err, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(inject->why, sizeof(inject->why), format, args);
	va_end(args);
	return err;
}

int lien_inject_read(const struct lien_inject *inject, uint64_t address, void *to, size_t size)
{
	ssize_t n = pread(inject->mem, to, size, address);

	return n == (ssize_t)size ? 0 : -EFAULT;
}

/* A process does not count as ended before its tracer has waited for each of its threads that
 * ended. */
static void note_ends(void)
{
	siginfo_t ended;

	do
		ended.si_pid = 0;
	while (!waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | __WALL | __WNOTHREAD) && ended.si_pid);
}

bool lien_inject_over(const struct lien_inject *inject)
{
	struct pollfd ended = {.fd = inject->pidfd, .events = POLLIN};

	note_ends();
	return poll(&ended, 1, 0) != 0;
}

int lien_inject_fail_gone(struct lien_inject *inject)
{
	return lien_inject_fail(
		inject, -ESRCH, "process %u has ended, or started another program", inject->pid);
}

/* Hashes the kernel's auxiliary vector of the program, whose random addresses distinguish it from
 * other programs. */
static uint64_t auxv_of(uint32_t pid)
{
	uint64_t words[AUXV_SIZE / sizeof(uint64_t)] = {}, sum = 0;
	char path[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/auxv", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, words, sizeof(words));
	close(fd);
	for (ssize_t i = 0; i < n / (ssize_t)sizeof(words[0]); i++)
		sum = sum * 31 + words[i];
	return n > 0 ? sum | 1 : 0;
}

bool lien_inject_same(const struct lien_inject *inject)
{
	return !lien_inject_over(inject) && auxv_of(inject->pid) == inject->auxv;
}

static int check_state(struct lien_inject *inject, const char *text)
{
	const char *state = lien_status_field(text, "State");
	uint32_t pid = inject->pid;
	long long number;

	if (state && *state == 'Z' && lien_status_last(text, "Threads", 10) > 1)
		return lien_inject_fail(inject, -EPERM,
			"the first thread of process %u has ended, others run: start it with `lien "
			"run`",
			pid);
	if (state && strchr("ZX", *state))
		return lien_inject_fail(inject, -ESRCH,
			"process %u has ended; its parent has not taken notice yet", pid);
	if (!lien_status_field(text, "VmSize"))
		return lien_inject_fail(inject, -EINVAL,
			"process %u is a thread of the kernel or about to end", pid);
	number = lien_status_last(text, "TracerPid", 10);
	if (number > 0)
		return lien_inject_fail(inject, -EBUSY,
			"process %u is traced by process %lld (a debugger?): end that first", pid,
			number);
	if (state && strchr("Tt", *state))
		return lien_inject_fail(inject, -EBUSY,
			"process %u is stopped: let it go on first (kill -CONT %u)", pid, pid);
	return 0;
}

static int check_rights(struct lien_inject *inject, const char *text)
{
	const char *uids = lien_status_field(text, "Uid"),
		   *shadow = lien_status_field(text, "x86_Thread_features");
	uint32_t pid = inject->pid;
	long long confined;

	if (geteuid() && (!uids || strtoul(uids, NULL, 10) != geteuid()))
		return lien_inject_fail(inject, -EPERM,
			"process %u is another user's (uid %lu): only root may do this", pid,
			uids ? strtoul(uids, NULL, 10) : 0);
	confined = lien_status_last(text, "Seccomp", 10);
	if (confined > 0)
		return lien_inject_fail(inject, -EPERM,
			"process %u is confined by seccomp, which could kill it for lien's system "
			"calls: start it with `lien run` (a container: with LD_PRELOAD), or "
			"without the filter (seccomp=unconfined)",
			pid);
	if (shadow && !strncmp(shadow, "shstk", 5))
		return lien_inject_fail(inject, -EPERM,
			"process %u has a shadow stack: start it with `lien run`", pid);
	return 0;
}

static int check_class(struct lien_inject *inject)
{
	char path[32], head[EI_NIDENT + 1];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%u/exe", inject->pid);
	n = lien_untrusted_read(path, head, sizeof(head));
	if (n < 0)
		return lien_inject_fail(inject, n, "cannot open %s: %s", path, strerror(-n));
	if (n == EI_NIDENT && !memcmp(head, ELFMAG, SELFMAG) && head[EI_CLASS] == ELFCLASS64)
		return 0;
	return lien_inject_fail(
		inject, -ENOEXEC, "process %u is a 32-bit process: CUDA has none", inject->pid);
}

/* The child of a vfork() runs in its parent's memory and on its stack. */
static int check_vfork(struct lien_inject *inject, const char *text)
{
	long long parent = lien_status_last(text, "PPid", 10);

	if (parent > 0 && !syscall(SYS_kcmp, (pid_t)parent, inject->pid, KCMP_VM, 0, 0))
		return lien_inject_fail(inject, -EBUSY,
			"process %u still has the memory of its parent %lld (vfork): try again "
			"when it has started its program",
			inject->pid, parent);
	return 0;
}

/* The library is opened by a path in /proc. */
static int check_proc(struct lien_inject *inject)
{
	struct stat st;
	char path[48];

	snprintf(path, sizeof(path), "/proc/%u/root/proc/self", inject->pid);
	if (lien_untrusted_stat(path, &st) != -ENOENT)
		return 0;
	return lien_inject_fail(inject, -ENOENT,
		"process %u sees no /proc, through which the control library is loaded: mount it "
		"in its container",
		inject->pid);
}

/* An injection that could not finish in time still waits for the loader, with the library open. */
static int check_other(struct lien_inject *inject)
{
	char path[64], target[64];
	struct dirent *entry;
	bool found = false;
	ssize_t n;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%u/fd", inject->pid);
	fds = opendir(path);
	while (fds && !found && (entry = readdir(fds))) {
		n = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);
		target[n < 0 ? 0 : n] = 0;
		found = !strncmp(
			target, "/memfd:" LIEN_INJECT_MEMFD, strlen("/memfd:" LIEN_INJECT_MEMFD));
	}
	if (fds)
		closedir(fds);
	return found ? lien_inject_fail(inject, -EBUSY,
			       "another injection into process %u is not over: try again",
			       inject->pid)
		     : 0;
}

static int check(struct lien_inject *inject)
{
	char text[LIEN_STATUS_SIZE];
	int err;

	err = lien_status_read(inject->pid, 0, text);
	if (err)
		return lien_inject_fail(inject, err == -ENOENT ? -ESRCH : err,
			"there is no process %u", inject->pid);
	return check_state(inject, text)
		       ?: check_rights(inject, text)
		       ?: check_class(inject)
		       ?: check_vfork(inject, text)
		       ?: check_proc(inject)
		       ?: check_other(inject);
}

int lien_inject_open(struct lien_inject *inject)
{
	char path[32];
	int err;

	if (lien_inject_over(inject))
		return lien_inject_fail_gone(inject);
	err = check(inject);
	if (err)
		return err;
	inject->auxv = auxv_of(inject->pid);
	snprintf(path, sizeof(path), "/proc/%u/mem", inject->pid);
	inject->mem = open(path, O_RDONLY | O_CLOEXEC);
	if (inject->mem >= 0)
		return 0;
	err = -errno;
	if (lien_inject_over(inject))
		return lien_inject_fail_gone(inject);
	return lien_inject_fail(inject, err,
		"may not open the memory of process %u: %s; run as root, or with CAP_SYS_PTRACE "
		"(and see kernel.yama.ptrace_scope)",
		inject->pid, strerror(-err));
}
