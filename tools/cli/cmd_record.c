// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>

#include "tools/cli/commands.h"
#include "tools/cli/event_stream.h"
#include "tools/cli/options.h"
#include "tools/cli/preload.h"
#include "tools/cli/query.h"
#include "tools/cli/record_file.h"

#define QUIET_MS    300	 /* after the end: stop when no event came for this long */
#define DRAIN_MS    3000 /* after the end: stop in any case */
#define SECONDS_MAX 31536000ul

static const char *const examples[] = {"lien record job.lien",
	"everything until Ctrl-C, what is there now included",
	"lien record job.lien --seconds 60 --force", "one minute, over a file that exists",
	"lien record job.lien -- torchrun --nproc-per-node 2 train.py",
	"from a job's beginning to its end (started as by `lien run --plain`)", NULL};

static const struct lien_usage usage = {
	.command = "lien record",
	.arguments = "FILE [-- COMMAND [ARGUMENTS]]",
	.summary =
		"Writes what every GPU process of the node does to a file that `lien replay` runs "
		"again: first the present state, then each call as it happens. Ends with Ctrl-C, "
		"SIGTERM, after --seconds, or with COMMAND, whose exit code it then passes on.",
	.min = 1,
	.max = -1,
	.examples = examples,
};

#define BY_SIGNAL 128

/*
 * Starts argv with the signal mask `mask`. Returns 0, or, after a message, the exit code for a
 * command that could not be started (127: not found). Call lien_preload_set() before.
 */
static int start_child(const char *command, char **argv, const sigset_t *mask, pid_t *pid)
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

/* Prints a line on stderr unless the wait status is a success. Returns the exit code that passes it
 * on: the program's, or, as shells do, 128 and the signal's number. */
static int code_of_child(const char *command, const char *program, int status)
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

struct session {
	struct lien_record_file file;
	struct lien_event_stream stream;
	int signals;
	sigset_t old_mask;
	pid_t child; /* 0: none, or it has ended */
	int child_code;
	int stopped_by;
	bool over; /* a reason to stop has come; events in flight are still written */
	uint64_t deadline, over_since, last_event;
};

static int take_records(struct session *session)
{
	struct lien_event event;
	int got, code = 0;

	while (!code && (got = lien_event_stream_next(&session->stream, &event)))
		code = got < 0 ? LIEN_EXIT_FAILURE : lien_record_file_write(&session->file, &event);
	return code;
}

static int take_stream(struct session *session)
{
	if (!lien_event_stream_receive(&session->stream))
		return LIEN_EXIT_FAILURE;
	session->last_event = lien_clock_ms();
	return take_records(session);
}

static void stop(struct session *session)
{
	if (!session->over)
		session->over_since = session->last_event = lien_clock_ms();
	session->over = true;
}

static void take_signal(struct session *session, const char *program)
{
	struct signalfd_siginfo info;
	int status;

	if (read(session->signals, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo != SIGCHLD) {
		session->stopped_by = info.ssi_signo;
		stop(session);
	} else if (session->child && waitpid(session->child, &status, WNOHANG) == session->child) {
		session->child_code = code_of_child(usage.command, program, status);
		session->child = 0;
		stop(session);
	}
}

/* Returns the milliseconds until something must be done even without events; 0: time to end. */
static int time_left(struct session *session)
{
	uint64_t now = lien_clock_ms(), end;

	if (!session->over && session->deadline && now >= session->deadline)
		stop(session);
	if (!session->over && !session->deadline)
		return -1;
	end = session->deadline;
	if (session->over) {
		end = session->last_event + QUIET_MS;
		if (end > session->over_since + DRAIN_MS)
			end = session->over_since + DRAIN_MS;
	}
	return now >= end ? 0 : (end - now > INT32_MAX ? INT32_MAX : (int)(end - now));
}

static int follow(struct session *session, const char *program)
{
	struct pollfd fds[] = {{.fd = session->stream.fd, .events = POLLIN},
		{.fd = session->signals, .events = POLLIN}};
	int left, code = 0;

	while (!code && (left = time_left(session))) {
		if (poll(fds, 2, left) <= 0)
			continue;
		if (fds[1].revents)
			take_signal(session, program);
		if (fds[0].revents)
			code = take_stream(session);
	}
	return code;
}

/* The recording has ended before its command; wait for the command. */
static void wait_for_child(struct session *session, const char *program)
{
	int status;

	if (!session->child)
		return;
	if (session->stopped_by == SIGTERM)
		kill(session->child, SIGTERM);
	sigprocmask(SIG_SETMASK, &session->old_mask, NULL);
	if (waitpid(session->child, &status, 0) == session->child)
		session->child_code = code_of_child(usage.command, program, status);
}

static int record(struct session *session, char **program, bool force, bool json)
{
	int code;

	code = lien_record_file_reserve(&session->file, force);
	if (code)
		return code;
	if (*program)
		code = start_child(usage.command, program, &session->old_mask, &session->child);
	if (code) {
		lien_record_file_give_up(&session->file);
		return code;
	}
	code = lien_record_file_create(&session->file);
	if (!code) {
		code = take_records(session); /* records that came with the reply */
		if (!code)
			code = follow(session, *program);
		code = lien_record_file_close(&session->file, code);
	}
	if (!code)
		lien_record_file_print(&session->file, json);
	fflush(stdout);
	wait_for_child(session, *program);
	return code ? code : session->child_code;
}

static void catch_signals(struct session *session)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, &session->old_mask);
	session->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* The words after "--" are the command. */
static int count_command(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--"))
			return argc - i - 1;
	}
	return 0;
}

int lien_cmd_record(int argc, char **argv)
{
	struct session session = {.file.command = usage.command, .stream.command = usage.command};
	bool json = false, force = false;
	int command = count_command(argc, argv), files;
	unsigned long seconds = 0;
	const struct lien_option options[] = {
		{"seconds", LIEN_OPTION_NUMBER, &seconds, "N", "end after this time", SECONDS_MAX},
		{"force", LIEN_OPTION_FLAG, &force, NULL, "overwrite a file that exists", 0},
		{"json", LIEN_OPTION_JSON, &json, NULL, "print the summary as JSON", 0},
		LIEN_SOCKET_OPTION(&session.stream.socket), {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	files = argc - command;
	if (!files)
		return lien_usage_error(&usage, "FILE is missing");
	if (files > 1)
		return lien_usage_error(
			&usage, "unexpected argument '%s': a command comes after --", argv[1]);
	session.file.path = argv[0];
	if (argc > 1 && lien_preload_set(usage.command, argv[1], true, false))
		return LIEN_EXIT_FAILURE;
	catch_signals(&session);
	if (!lien_event_stream_open(&session.stream, LIEN_FOLLOW_UNMARKED))
		return LIEN_EXIT_FAILURE;
	if (seconds)
		session.deadline = lien_clock_ms() + seconds * 1000;
	code = record(&session, argv + 1, force, json);
	lien_event_stream_close(&session.stream);
	close(session.signals);
	return code;
}
