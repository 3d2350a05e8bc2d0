// SPDX-License-Identifier: BSD-2-Clause
/* Preloaded into a program: its disk takes SLOW_DISK_MS for each fsync(). */
#include <stdlib.h>
#include <unistd.h>

#include <sys/syscall.h>

int fsync(int fd)
{
	const char *ms = getenv("SLOW_DISK_MS");

	usleep(ms ? atoi(ms) * 1000 : 0);
	return syscall(SYS_fsync, fd);
}
