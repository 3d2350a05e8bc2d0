// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/uprobe_close.h"

#include <bpf/bpf.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/mount.h of 5.2 */
#define CLOEXEC 1
#define CREATE	6

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int folder = -1; /* a mount that no path leads to: it ends with the process */
static unsigned names;

static void make_folder(void)
{
	int fs = syscall(SYS_fsopen, "bpf", CLOEXEC);

	if (fs < 0)
		return;
	if (!syscall(SYS_fsconfig, fs, CREATE, NULL, NULL, 0))
		folder = syscall(SYS_fsmount, fs, CLOEXEC, 0);
	close(fs);
}

void lien_uprobe_close_prepare(void)
{
	pthread_once(&once, make_folder);
}

/* The kernel leaves it to a thread of its own when the last reference to a link is a name. */
void lien_uprobe_close(int fd)
{
	char path[64];
	unsigned name = __atomic_add_fetch(&names, 1, __ATOMIC_RELAXED);
	int named;

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%u", folder, name);
	named = folder >= 0 && !bpf_obj_pin(fd, path);
	close(fd);
	if (named)
		unlink(path);
}
