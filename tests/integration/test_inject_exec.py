#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A process that starts a set-user-id program in the middle of an injection: nothing is written into
that program, at any of the injection's steps. No agent takes part."""

import os

from lien_test import case, check, equal, main
from inject import Session, compiled, injector, ready

USER = 54324
CALLS_MAX = 400

# A process of a user. One thread starts the program when it gets SIGUSR1; a child has the same
# memory and outlives that, so that what the injector has open of it can still be read.
VICTIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static sigset_t usr1;
static char *program, ranges[400][40], *arguments[402];
static int keeps_memory(void *arg) { (void)arg; prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) pause(); }
static void *waits(void *arg)
{
	int number, n = 1;
	char line[4200], mode[8];
	FILE *maps;
	(void)arg;
	sigwait(&usr1, &number);
	arguments[0] = program;
	maps = fopen("/proc/self/maps", "r");
	while (n < 400 && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%39s %7s", ranges[n], mode) == 2 && mode[0] == 'r' &&
			(!strchr(line, '/') || strstr(line, "libc")))
			arguments[n] = ranges[n], n++;
	execv(program, arguments);
	_exit(99);
}
int main(int argc, char **argv)
{
	static char stack[65536];
	pthread_t thread;
	(void)argc;
	program = argv[1];
	if (setgid(USER) || setuid(USER) || !dlopen("libcuda.so.1", RTLD_NOW))
		return 1;
	prctl(PR_SET_DUMPABLE, 1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, 0);
	clone(keeps_memory, stack + sizeof(stack), CLONE_VM | SIGCHLD, 0);
	pthread_create(&thread, 0, waits, 0);
	puts("ready");
	fflush(stdout);
	for (;;)
		poll(0, 0, -1);
}
"""

# A program of root's, with memory where the one before it had some.
PROGRAM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static struct { char *at; size_t size; } part[400];
int main(int argc, char **argv)
{
	unsigned long first, last;
	int i, n = 0;
	size_t at;
	for (i = 1; i < argc && i < 400; i++) {
		if (sscanf(argv[i], "%lx-%lx", &first, &last) != 2 || last - first > 8 << 20)
			continue;
		part[n].at = mmap((void *)first, last - first, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (part[n].at == MAP_FAILED)
			continue;
		part[n].size = last - first;
		memset(part[n].at, 0xa5, part[n].size);
		n++;
	}
	printf("program %d\n", geteuid());
	fflush(stdout);
	if (getchar() == EOF)
		return 0;
	for (i = 0; i < n; i++)
		for (at = 0; at < part[i].size; at++)
			if (part[i].at[at] != (char)0xa5) {
				printf("changed %p of %d parts\n", part[i].at + at, n);
				return 1;
			}
	printf("ok %d\n", n);
	return 0;
}
"""

# In the injector: before its call number CALL that stops, changes or continues a thread, or writes into
# a process, the victim is told to start its program, and has the time for it.
STARTER = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define PTRACE_POKEDATA 5
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static int has_started(void)
{
	char path[64], exe[512];
	ssize_t n;
	snprintf(path, sizeof(path), "/proc/%s/exe", getenv("WHO"));
	n = readlink(path, exe, sizeof(exe) - 1);
	exe[n < 0 ? 0 : n] = 0;
	return strcmp(exe, getenv("PROGRAM")) == 0;
}
static void before_call(void)
{
	static int count;
	int i;
	if (count++ != atoi(getenv("CALL")))
		return;
	kill(atoi(getenv("WHO")), SIGUSR1);
	/* While a thread is traced it cannot: it waits for that thread's end to be taken notice of. */
	for (i = 0; i < 100 && !has_started(); i++)
		usleep(1000);
}
long ptrace(int request, ...)
{
	static int last = -1;
	long args[3];
	va_list list;

	va_start(list, request);
	for (int i = 0; i < 3; i++)
		args[i] = va_arg(list, long);
	va_end(list);
	if (request != PTRACE_POKEDATA || last != request)
		before_call();
	last = request;
	return syscall(SYS_ptrace, request, args[0], args[1], args[2]);
}
ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals,
	const struct iovec *remote, unsigned long remotes, unsigned long flags)
{
	before_call();
	return syscall(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags);
}
"""


@case(limit=900)
def test_set_user_id_program_at_each_call():
    with Session() as session:
        os.chmod(session.folder, 0o755)
        if os.statvfs(session.folder).f_flag & os.ST_NOSUID:
            print("   skipped: set-user-id programs do not work in %s" % session.folder)
            return
        starter = compiled(session, "libstarter.so", STARTER, "-shared", "-fPIC")
        victim = compiled(session, "victim", VICTIM, "-DUSER=%d" % USER, "-pthread")
        suid = compiled(session, "program", PROGRAM)
        os.chmod(suid, 0o4755)
        started = 0
        for number in range(CALLS_MAX):
            process = ready(session.spawn([victim, suid]))
            with injector(process.pid, env={"LD_PRELOAD": starter, "CALL": str(number),
                                            "WHO": str(process.pid), "PROGRAM": suid}) as other:
                said = other.communicate(timeout=60)[0]
            if said.startswith("ok ") and not pending(process.pid):
                process.end()
                break
            started += 1
            equal(process.line(), "program 0", "the program, at call %d" % number)
            process.send("")
            answer = process.line()
            check(answer.startswith("ok ") and int(answer.split()[1]) > 3,
                  "at call %d the program says: %s; the injector said: %s" % (number, answer, said))
            process.end()
        else:
            check(False, "more than %d calls" % CALLS_MAX)
        check(started > 20, "at %d calls only: %s" % (started, said))
    print("   at each of %d calls" % started)


def pending(pid):
    """Whether it has been told to start its program, or has."""
    with open("/proc/%d/status" % pid) as status:
        text = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
    return int(text["ShdPnd"], 16) & 1 << 9 or text["Name"] == "program"


if __name__ == "__main__":
    raise SystemExit(main())
