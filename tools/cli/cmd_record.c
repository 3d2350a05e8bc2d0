// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>
#include <lien/event.h>

#include "agent/journal/recording.h"
#include "tools/cli/commands.h"
#include "tools/cli/event_stream.h"
#include "tools/cli/options.h"
#include "tools/cli/preload.h"
#include "tools/cli/query.h"
#include "tools/text/output.h"

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

/* --- the command that is recorded ------------------------------------------------------------- */

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

/* --- the file that both write ----------------------------------------------------------------- */

struct record_file {
	const char *command, *path; /* owned by the caller */
	struct lien_recording *recording;
	uint64_t events, processes; /* written so far */
	int reserved;		    /* fd */
	bool made;		    /* there was no such file */
};

static int cannot_write(const struct record_file *file, int err)
{
	return lien_complain(file->command, "cannot write %s: %s", file->path, strerror(-err));
}

/*
 * Makes sure that the file can be written, and makes it if there is none. One that exists is
 * refused, or with `force` left as it is until create_file(), which must follow, or
 * give_up_file().
 */
static int reserve_file(struct record_file *file, bool force)
{
	file->reserved = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	file->made = file->reserved >= 0;
	if (!file->made && errno == EEXIST && !force)
		return lien_complain(file->command, "%s exists: --force overwrites it", file->path);
	if (!file->made && errno == EEXIST)
		file->reserved = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	return file->reserved < 0 ? cannot_write(file, -errno) : 0;
}

/* Begins the file anew. */
static int create_file(struct record_file *file)
{
	int err = lien_recording_create(file->path, &file->recording);

	close(file->reserved);
	return err ? cannot_write(file, err) : 0;
}

/* Nothing will be written. */
static void give_up_file(struct record_file *file)
{
	close(file->reserved);
	if (file->made)
		unlink(file->path);
}

static int write_record(struct record_file *file, const struct lien_event *event)
{
	int err = lien_recording_write(file->recording, event);

	if (err)
		return cannot_write(file, err);
	file->events++;
	file->processes += event->type == LIEN_EVENT_PROCESS ||
			   (event->type == LIEN_STATE_process && event->state.process.cuda);
	return 0;
}

static bool has_records(const char *path)
{
	struct lien_recording *recording;
	struct lien_event event;
	bool some;

	if (lien_recording_open(path, &recording))
		return false;
	some = lien_recording_read(recording, &event) == 1;
	return !lien_recording_close(recording) && some;
}

/* code: the command's result so far; returned unless closing fails. After a failure, a file with
 * records stays and an empty one is removed. */
static int close_file(struct record_file *file, int code)
{
	int err = lien_recording_close(file->recording);
	struct stat st;

	if (err && !code)
		code = cannot_write(file, err);
	if (!code || stat(file->path, &st) || !S_ISREG(st.st_mode))
		return code;
	if (file->events && has_records(file->path))
		lien_warn(file->command, "%s has what was recorded before that", file->path);
	else
		unlink(file->path);
	return code;
}

/* Prints the size of the recording, as a line or as JSON. */
static void print_file(const struct record_file *file, bool json)
{
	uint64_t size = 0;
	struct stat st;
	json_t *all;

	if (!stat(file->path, &st))
		size = st.st_size;
	if (!json) {
		printf("%s: %" PRIu64 " %s of ", file->path,
			LIEN_PLURAL(file->events, "event", "events"));
		printf("%" PRIu64 " %s, %s\n", LIEN_PLURAL(file->processes, "process", "processes"),
			lien_bytes(size).text);
		return;
	}
	all = json_pack("{s:I, s:I, s:I}", "events", (json_int_t)file->events, "processes",
		(json_int_t)file->processes, "bytes", (json_int_t)size);
	lien_print_json(stdout, all);
	json_decref(all);
}

/* --- lien record ------------------------------------------------------------------------------ */

struct session {
	struct record_file file;
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
		code = got < 0 ? LIEN_EXIT_FAILURE : write_record(&session->file, &event);
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

	code = reserve_file(&session->file, force);
	if (code)
		return code;
	if (*program)
		code = start_child(usage.command, program, &session->old_mask, &session->child);
	if (code) {
		give_up_file(&session->file);
		return code;
	}
	code = create_file(&session->file);
	if (!code) {
		code = take_records(session); /* records that came with the reply */
		if (!code)
			code = follow(session, *program);
		code = close_file(&session->file, code);
	}
	if (!code)
		print_file(&session->file, json);
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

/* --- lien snapshot ---------------------------------------------------------------------------- */

static const char *const snapshot_examples[] = {"lien snapshot now.lien",
	"the state of all GPU processes", "lien mem --from now.lien",
	"who owned how much then; so can ps, comms, holders, graph, check and events", NULL};

static const struct lien_usage snapshot_usage = {
	.command = "lien snapshot",
	.arguments = "FILE",
	.summary = "Writes what every GPU process of the node holds now to a file that the views "
		   "read "
		   "with --from FILE, on any machine and without an agent. It is a recording that "
		   "ends "
		   "where `lien record` begins to follow, and is read by the same commands.",
	.min = 1,
	.max = 1,
	.examples = snapshot_examples,
};

/* Writes records up to the one that ends the present state. */
static int take_state(struct lien_event_stream *stream, struct record_file *file)
{
	struct lien_event event;
	int got, code;

	for (;;) {
		got = lien_event_stream_next(stream, &event);
		if (got < 0 || (!got && !lien_event_stream_receive(stream)))
			return LIEN_EXIT_FAILURE;
		if (!got)
			continue;
		if (event.type == LIEN_EVENT_END)
			return LIEN_EXIT_OK;
		code = write_record(file, &event);
		if (code)
			return code;
	}
}

int lien_cmd_snapshot(int argc, char **argv)
{
	struct lien_event_stream stream = {.command = snapshot_usage.command};
	struct record_file file = {.command = snapshot_usage.command};
	bool json = false, force = false;
	const struct lien_option options[] = {
		{"force", LIEN_OPTION_FLAG, &force, NULL, "overwrite a file that exists", 0},
		{"json", LIEN_OPTION_JSON, &json, NULL, "print the summary as JSON", 0},
		LIEN_SOCKET_OPTION(&stream.socket), {}};
	int code;

	if (!lien_options_read(&snapshot_usage, options, &argc, &argv, &code))
		return code;
	file.path = argv[0];
	if (!lien_event_stream_open(&stream, LIEN_FOLLOW_NOT))
		return LIEN_EXIT_FAILURE;
	code = reserve_file(&file, force);
	if (!code)
		code = create_file(&file);
	if (!code)
		code = close_file(&file, take_state(&stream, &file));
	if (!code)
		print_file(&file, json);
	lien_event_stream_close(&stream);
	return code;
}
