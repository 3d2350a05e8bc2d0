// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/replay/driver.h"
#include "tools/replay/job.h"

static pid_t start_worker(size_t number, int sock)
{
	char number_text[24], sock_text[24], self[PATH_MAX];
	char *argv[] = {"lien-replay", "--worker", number_text, "--fd", sock_text, NULL};
	ssize_t length;
	pid_t pid;

	length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[length < 0 ? 0 : length] = '\0';
	snprintf(number_text, sizeof(number_text), "%zu", number);
	snprintf(sock_text, sizeof(sock_text), "%d", sock);
	pid = fork();
	if (pid)
		return pid;
	/* All other fds close on exec. */
	fcntl(sock, F_SETFD, 0);
	/* By name, which debuggers and valgrind need; by /proc/self/exe if the name is gone. */
	execv(self, argv);
	execv("/proc/self/exe", argv);
	_exit(127);
}

int lien_job_spawn(struct lien_job *job, size_t number)
{
	struct lien_replay_message message = {.say = LIEN_SAY_START};
	struct lien_job_worker *worker = &job->workers[number];
	int pair[2], fd, err;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	worker->pid = start_worker(number, pair[1]);
	err = worker->pid < 0 ? -errno : 0;
	close(pair[1]);
	if (err) {
		close(pair[0]);
		return err;
	}
	worker->sock = pair[0];
	err = lien_replay_image_make(
		job->script, worker->index, job->timeout_ms, &worker->image, &fd);
	if (err)
		return err;
	err = lien_replay_send(worker->sock, &message, fd, 0);
	close(fd);
	return err;
}

bool lien_job_reap(struct lien_job_worker *worker, int timeout_ms, int *status)
{
	pid_t pid;

	for (;; timeout_ms -= 5) {
		pid = waitpid(worker->pid, status, WNOHANG);
		if (pid == worker->pid || (pid < 0 && errno != EINTR)) {
			worker->reaped = true;
			return true;
		}
		if (timeout_ms <= 0)
			return false;
		usleep(5000);
	}
}
