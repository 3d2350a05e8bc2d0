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

int lien_child_start(const char *command, char **argv, const sigset_t *mask, pid_t *pid)
{
	unsigned char code = 0;
	int ends[2];

	/* The pipe closes when the program starts; bytes in it are the exit code of a failure. */
	if (pipe2(ends, O_CLOEXEC))
		return lien_complain(command, "cannot make a pipe: %s", strerror(errno));
	fflush(stdout);
	*pid = fork();
	if (!*pid) {
		sigprocmask(SIG_SETMASK, mask, NULL);
		code = lien_preload_exec(command, argv);
		_exit(write(ends[1], &code, 1) == 1 ? code : LIEN_EXIT_FAILURE);
	}
	close(ends[1]);
	if (*pid < 0) {
		close(ends[0]);
		return lien_complain(command, "cannot fork: %s", strerror(errno));
	}
	while (read(ends[0], &code, 1) < 0 && errno == EINTR)
		;
	close(ends[0]);
	if (code)
		waitpid(*pid, NULL, 0);
	return code;
}

void lien_child_warn(const char *command, const char *program, int status)
{
	if (WIFSIGNALED(status))
		lien_complain(command, "warning: %s was killed by signal %d (%s)", program,
			WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		lien_complain(command, "warning: %s ended with exit code %d", program,
			WEXITSTATUS(status));
}
