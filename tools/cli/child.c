// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cli/options.h"
#include "tools/cli/preload.h"
#include "tools/cli/query.h"

#define BY_SIGNAL 128

int lien_child_start(const char *command, char **argv, const sigset_t *mask, pid_t *pid)
{
	int ends[2], err = 0;

	/* The pipe closes when the program starts; what is in it is why it did not. */
	if (pipe2(ends, O_CLOEXEC))
		return lien_complain(command, "cannot make a pipe: %s", strerror(errno));
	fflush(stdout);
	*pid = fork();
	if (!*pid) {
		sigprocmask(SIG_SETMASK, mask, NULL);
		execvp(argv[0], argv);
		err = errno;
		_exit(write(ends[1], &err, sizeof(err)) != sizeof(err));
	}
	close(ends[1]);
	if (*pid < 0) {
		close(ends[0]);
		return lien_complain(command, "cannot fork: %s", strerror(errno));
	}
	while (read(ends[0], &err, sizeof(err)) < 0 && errno == EINTR)
		;
	close(ends[0]);
	if (!err)
		return 0;
	waitpid(*pid, NULL, 0);
	return lien_preload_failed(command, argv[0], err);
}

int lien_child_code(const char *command, const char *program, int status)
{
	if (WIFSIGNALED(status)) {
		lien_warn(command, "%s was killed by signal %d (%s)", program, WTERMSIG(status),
			strsignal(WTERMSIG(status)));
		return BY_SIGNAL + WTERMSIG(status);
	}
	if (WEXITSTATUS(status))
		lien_warn(command, "%s ended with exit code %d", program, WEXITSTATUS(status));
	return WEXITSTATUS(status);
}
