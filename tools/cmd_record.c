// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/event_check.h"
#include "agent/recording.h"
#include "tools/child.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/preload.h"
#include "tools/query.h"

#define FORMAT	    1	 /* of the stream, in the agent's reply */
#define QUIET_MS    300	 /* after the end: no event for so long, and it's over */
#define DRAIN_MS    3000 /* after the end: over in any case */
#define SECONDS_MAX 31536000ul

static const char *const examples[] = {"lien record job.lien",
	"everything until Ctrl-C, what is there now included",
	"lien record job.lien --seconds 60 --force", "one minute, over a file that exists",
	"lien record job.lien -- torchrun --nproc-per-node 2 train.py",
	"from a job's beginning to its end (started as by `lien run`)", NULL};

static const struct lien_usage usage = {
	.command = "lien record",
	.arguments = "FILE [-- COMMAND [ARGUMENTS]]",
	.summary =
		"Writes what every GPU process of the node does to a file that `lien replay` runs\n"
		"again: first the present state, then each call as it happens. Ends with Ctrl-C,\n"
		"SIGTERM, after --seconds, or with COMMAND. A command that fails is a warning.",
	.min = 1,
	.max = -1,
	.examples = examples,
};

struct session {
	const char *path;
	struct lien_recording *recording;
	int stream, signals;
	sigset_t old_mask;
	pid_t child; /* 0: none, or it has ended */
	int stopped_by;
	bool over; /* the reason to stop has come; what is on its way is still written */
	uint64_t deadline, over_since, last_event;
	uint64_t events, processes;
	unsigned char *bytes; /* received, not a whole record yet */
	size_t used, capacity;
};

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int take_record(struct session *session, const unsigned char *bytes, uint32_t size)
{
	struct lien_event event;
	int err;

	memset(&event, 0, sizeof(event));
	memcpy(&event, bytes, size);
	if (!lien_event_valid(&event))
		return lien_complain(usage.command,
			"the agent sent a record of type %u that this version does not know",
			event.type);
	err = lien_recording_write(session->recording, &event);
	if (err)
		return lien_complain(
			usage.command, "cannot write %s: %s", session->path, strerror(-err));
	session->events++;
	session->processes += event.type == LIEN_EVENT_PROCESS;
	return 0;
}

static int take_records(struct session *session)
{
	size_t at = 0;
	uint32_t size;
	int code = 0;

	while (!code && session->used - at >= LIEN_EVENT_HEADER) {
		memcpy(&size, session->bytes + at, sizeof(size));
		if (size < LIEN_EVENT_HEADER || size > sizeof(struct lien_event))
			return lien_complain(usage.command,
				"the agent sent a record of %u bytes, which none has", size);
		if (session->used - at < size)
			break;
		code = take_record(session, session->bytes + at, size);
		at += size;
	}
	session->used -= at;
	memmove(session->bytes, session->bytes + at, session->used);
	return code;
}

static int take_stream(struct session *session)
{
	ssize_t n;

	n = read(
		session->stream, session->bytes + session->used, session->capacity - session->used);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n <= 0)
		return lien_complain(usage.command, "the agent ended the connection: see its log");
	session->used += n;
	session->last_event = now_ms();
	return take_records(session);
}

static void stop(struct session *session)
{
	if (!session->over)
		session->over_since = session->last_event = now_ms();
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
		lien_child_warn(usage.command, program, status);
		session->child = 0;
		stop(session);
	}
}

/* Milliseconds until something must be done without any event; 0: it is time to end. */
static int time_left(struct session *session)
{
	uint64_t now = now_ms(), end;

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
	struct pollfd fds[] = {{.fd = session->stream, .events = POLLIN},
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

/* Asks for the stream; false after a message. */
static bool open_stream(struct session *session, const char *socket)
{
	struct lien_client *client = lien_client_new(socket);
	json_t *request = json_pack("{s:s}", "op", "record"), *reply = NULL;
	void *bytes = NULL;
	bool ok = false;

	if (!client || !request) {
		lien_complain(usage.command, "out of memory");
		goto out;
	}
	lien_client_timeout(client, LIEN_QUERY_MS);
	if (lien_client_call(client, request, &reply)) {
		lien_complain(usage.command, "%s", lien_client_error(client));
	} else if (lien_get_number(reply, "format") != FORMAT) {
		lien_complain(usage.command,
			"the agent on %s sends records in another format: it is of another version",
			lien_client_path(client));
	} else if (lien_client_take_stream(client, &session->stream, &bytes, &session->used)) {
		lien_complain(usage.command, "%s", lien_client_error(client));
	} else {
		session->capacity = session->used + (1 << 20);
		session->bytes = realloc(bytes, session->capacity);
		ok = session->bytes;
		if (!ok) {
			free(bytes);
			lien_complain(usage.command, "out of memory");
		}
	}
out:
	json_decref(reply);
	json_decref(request);
	lien_client_free(client);
	return ok;
}

static int create_file(struct session *session, bool force)
{
	int fd, err = 0;

	if (!force) {
		fd = open(session->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd < 0 && errno == EEXIST)
			return lien_complain(
				usage.command, "%s exists: --force overwrites it", session->path);
		if (fd < 0)
			err = -errno;
		else
			close(fd);
	}
	if (!err)
		err = lien_recording_create(session->path, &session->recording);
	if (err)
		return lien_complain(
			usage.command, "cannot write %s: %s", session->path, strerror(-err));
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

static int close_file(struct session *session, int code)
{
	int err = lien_recording_close(session->recording);
	struct stat st;

	if (err && !code)
		code = lien_complain(
			usage.command, "cannot write %s: %s", session->path, strerror(-err));
	if (!code || stat(session->path, &st) || !S_ISREG(st.st_mode))
		return code;
	if (session->events && has_records(session->path))
		lien_complain(usage.command, "%s holds what came before that", session->path);
	else
		unlink(session->path);
	return code;
}

static void print_summary(const struct session *session, bool json)
{
	uint64_t size = 0;
	struct stat st;
	json_t *all;

	if (!stat(session->path, &st))
		size = st.st_size;
	if (!json) {
		printf("%s: %" PRIu64 " %s of ", session->path,
			LIEN_PLURAL(session->events, "event", "events"));
		printf("%" PRIu64 " %s, %s\n",
			LIEN_PLURAL(session->processes, "process", "processes"),
			lien_size(size).text);
		return;
	}
	all = json_pack("{s:I, s:I, s:I}", "events", (json_int_t)session->events, "processes",
		(json_int_t)session->processes, "bytes", (json_int_t)size);
	lien_print_json(stdout, all);
	json_decref(all);
}

/* The recording has ended before its command: that one runs on, and is waited for. */
static void wait_for_child(struct session *session, const char *program)
{
	int status;

	if (!session->child)
		return;
	if (session->stopped_by == SIGTERM)
		kill(session->child, SIGTERM);
	sigprocmask(SIG_SETMASK, &session->old_mask, NULL);
	if (waitpid(session->child, &status, 0) == session->child)
		lien_child_warn(usage.command, program, status);
}

static int record(struct session *session, char **program, bool force, bool json)
{
	int code;

	code = create_file(session, force);
	if (code)
		return code;
	if (*program)
		code = lien_child_start(
			usage.command, program, &session->old_mask, &session->child);
	if (code) {
		session->child = 0;
	} else {
		code = take_records(session); /* what came with the reply */
		if (!code)
			code = follow(session, *program);
	}
	code = close_file(session, code);
	if (!code)
		print_summary(session, json);
	fflush(stdout);
	wait_for_child(session, *program);
	return code;
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

/* A second word needs "--" before it, so that `lien record a b` does not run b. */
static bool has_separator(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--"))
			return true;
	}
	return false;
}

int lien_cmd_record(int argc, char **argv)
{
	struct session session = {.stream = -1};
	bool json = false, force = false, separator = has_separator(argc, argv);
	const char *socket = NULL;
	unsigned long seconds = 0;
	const struct lien_option options[] = {
		{"seconds", LIEN_OPTION_NUMBER, &seconds, "N", "end after this time", SECONDS_MAX},
		{"force", LIEN_OPTION_FLAG, &force, NULL, "overwrite a file that exists", 0},
		{"json", LIEN_OPTION_FLAG, &json, NULL, "print the summary as JSON", 0},
		LIEN_SOCKET_OPTION(&socket), {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	if (argc > 1 && !separator)
		return lien_usage_error(&usage, "'%s' is too much, or lacks -- before", argv[1]);
	session.path = argv[0];
	if (argc > 1 && lien_preload_set(usage.command))
		return LIEN_EXIT_FAILURE;
	catch_signals(&session);
	if (!open_stream(&session, socket))
		return LIEN_EXIT_FAILURE;
	if (seconds)
		session.deadline = now_ms() + seconds * 1000;
	code = record(&session, argv + 1, force, json);
	free(session.bytes);
	close(session.stream);
	close(session.signals);
	return code;
}
