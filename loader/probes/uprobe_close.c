// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/uprobe_close.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/mount.h of 5.2 */
#define CLOEXEC 1
#define CREATE	6

static int folder = -1; /* a mount that no path leads to: it ends with the process */
static unsigned names;

void lien_uprobe_close_prepare(void)
{
	int fs = folder < 0 ? syscall(SYS_fsopen, "bpf", CLOEXEC) : -1;

	if (fs < 0)
		return;
	if (!syscall(SYS_fsconfig, fs, CREATE, NULL, NULL, 0))
		folder = syscall(SYS_fsmount, fs, CLOEXEC, 0);
	close(fs);
}

/* The kernel leaves it to a thread of its own when the last reference to a link is a name. A child
 * of the process has the same folder. */
void lien_uprobe_close(int fd)
{
	char path[64];
	unsigned name = __atomic_add_fetch(&names, 1, __ATOMIC_RELAXED);
	int named;

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%d-%u", folder, getpid(), name);
	named = folder >= 0 && !bpf_obj_pin(fd, path);
	close(fd);
	if (named)
		unlink(path);
}

/* Iterators delay nobody, and the child reads them. */
static bool is_link(int fds, const char *name)
{
	struct bpf_link_info link = {};
	unsigned size = sizeof(link);
	char to[32] = ""; /* "anon_inode:bpf_link" */

	return readlinkat(fds, name, to, sizeof(to) - 1) > 0 && strstr(to, "bpf_link") &&
	       (bpf_obj_get_info_by_fd(atoi(name), &link, &size) ||
		       link.type != BPF_LINK_TYPE_ITER);
}

void lien_uprobe_close_inherited(void)
{
	DIR *fds = opendir("/proc/self/fd");
	struct dirent *entry;

	while (fds && (entry = readdir(fds)))
		if (is_link(dirfd(fds), entry->d_name))
			lien_uprobe_close(atoi(entry->d_name));
	if (fds)
		closedir(fds);
}
