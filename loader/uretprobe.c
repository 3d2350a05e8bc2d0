// SPDX-License-Identifier: BSD-2-Clause
#include "loader/uretprobe.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYS_URETPROBE 335
/* No system call returns it: it shows that the filter has answered. */
#define REFUSAL ENOTNAM

/* The kernel's answer to whoever makes the call but its own trampoline. */
static void on_sigill(int number)
{
	(void)number;
	_exit(LIEN_URETPROBE_PASSES);
}

static bool refuse_uretprobe(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_URETPROBE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | REFUSAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {
		.len = sizeof(code) / sizeof(code[0]),
		.filter = code,
	};

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
	       !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static __attribute__((noreturn)) void try_in_child(void)
{
	if (signal(SIGILL, on_sigill) == SIG_ERR || !refuse_uretprobe())
		_exit(LIEN_URETPROBE_UNKNOWN);
	if (syscall(SYS_URETPROBE) == -1 && errno == REFUSAL)
		_exit(LIEN_URETPROBE_FILTERED);
	_exit(LIEN_URETPROBE_UNKNOWN);
}

enum lien_uretprobe lien_uretprobe_under_filter(void)
{
	pid_t child = fork(), ended;
	int status;

	if (!child)
		try_in_child();
	if (child < 0)
		return LIEN_URETPROBE_UNKNOWN;
	do
		ended = waitpid(child, &status, 0);
	while (ended < 0 && errno == EINTR);
	if (ended != child || !WIFEXITED(status))
		return LIEN_URETPROBE_UNKNOWN;
	return WEXITSTATUS(status);
}
