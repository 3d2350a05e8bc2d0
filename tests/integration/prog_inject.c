// SPDX-License-Identifier: BSD-2-Clause
/*
 * prog_inject PID LIBRARY [LIMIT_MS]: puts the library into the process, without an agent. Prints
 * "ok PRESENT ATTEMPTS PAUSE_US TOTAL_US", or "error NUMBER WHY".
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loader/inject/inject.h"

#define LIMIT_MS 5000

int main(int argc, char **argv)
{
	struct lien_inject_result result;
	char why[512];
	int pid, pidfd, fd, err;

	if (argc < 3) {
		fprintf(stderr, "usage: prog_inject PID LIBRARY [LIMIT_MS]\n");
		return 2;
	}
	fd = open(argv[2], O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		fprintf(stderr, "%s: %s\n", argv[2], strerror(errno));
		return 2;
	}
	pid = atoi(argv[1]);
	pidfd = syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		printf("error %d pidfd_open(%d): %s\n", errno, pid, strerror(errno));
		return 1;
	}
	err = lien_inject(
		pid, pidfd, fd, argc > 3 ? atoi(argv[3]) : LIMIT_MS, &result, why, sizeof(why));
	if (err) {
		printf("error %d %s\n", -err, why);
		return 1;
	}
	printf("ok %d %u %.0f %.0f\n", result.present, result.attempts, result.pause_ns / 1e3,
		result.total_ns / 1e3);
	return 0;
}
