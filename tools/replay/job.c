// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/graph/event_check.h"
#include "tools/replay/job.h"
#include "tools/text/complain.h"
#include "tools/text/output.h"

#include <lien/clock.h>

/* Interval for checking silent workers. */
#define TICK_MS 250
#define EXIT_MS 5000

static int __attribute__((__format__(__printf__, 2, 3)))
complain(const struct lien_job_worker *worker, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	lien_complain("lien replay", "recorded pid %u (pid %d): %s", worker->process->pid,
		worker->pid, text);
	free(text);
	return -EIO;
}

static const char *current_call(const struct lien_job_worker *worker, uint64_t *calls)
{
	*calls = worker->image ? atomic_load(&worker->image->calls) : 0;
	if (*calls >= worker->process->count)
		return "after its last call";
	return lien_call_name(worker->process->ops[*calls].event.type);
}

static void forget(struct lien_job_worker *worker)
{
	if (worker->sock >= 0)
		close(worker->sock);
	worker->sock = -1;
	worker->state = LIEN_JOB_GONE;
}

static int died(struct lien_job *job, struct lien_job_worker *worker)
{
	int status = 0, err;
	uint64_t calls;
	const char *call = current_call(worker, &calls);
	bool gone = lien_job_reap(worker, EXIT_MS, &status);

	if (gone && WIFSIGNALED(status))
		err = complain(worker, "died of signal %d (%s), %" PRIu64 " of %zu calls made, %s",
			WTERMSIG(status), strsignal(WTERMSIG(status)), calls,
			worker->process->count, call);
	else if (gone)
		err = complain(worker, "exited with status %d, %" PRIu64 " of %zu calls made, %s",
			WEXITSTATUS(status), calls, worker->process->count, call);
	else
		err = complain(worker, "hung up and does not exit");
	forget(worker);
	job->failed = true;
	return job->keep_going && job->ready ? 0 : err;
}

/* --- shares, from the worker that exports to those that import -----------------------------------
 */

static int serve(
	struct lien_job *job, struct lien_job_worker *worker, struct lien_replay_share *share)
{
	struct lien_replay_message message = {.say = LIEN_SAY_SHARE};
	int err;

	message.share.number = share->number;
	memcpy(message.share.fabric, share->fabric, sizeof(share->fabric));
	err = lien_replay_send(worker->sock, &message, share->fd, 0);
	if (err == -EPIPE)
		return died(job, worker);
	if (err)
		return complain(worker, "cannot be sent share %" PRIu64 ": %s", share->number,
			strerror(-err));
	worker->state = LIEN_JOB_BUSY;
	worker->moved = lien_clock_ms();
	/* An open fd keeps the memory alive, so close it as early as possible. */
	if (++share->served == share->imports && share->fd >= 0) {
		close(share->fd);
		share->fd = -1;
	}
	return 0;
}

static int take_export(struct lien_job *job, const struct lien_replay_message *message, int fd)
{
	struct lien_replay_share *share =
		lien_replay_share_find(&job->script->shares, message->share.number);
	size_t i;
	int err;

	/* A second export under the same number: the first one serves. */
	if (!share || share->arrived) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	share->arrived = true;
	share->fd = fd;
	memcpy(share->fabric, message->share.fabric, sizeof(share->fabric));
	for (i = 0; i < job->count; i++) {
		if (job->workers[i].state != LIEN_JOB_WAITING ||
			job->workers[i].share != share->number)
			continue;
		err = serve(job, &job->workers[i], share);
		if (err)
			return err;
	}
	return 0;
}

static int take_import(struct lien_job *job, struct lien_job_worker *worker, uint64_t number)
{
	struct lien_replay_share *share = lien_replay_share_find(&job->script->shares, number);

	if (share && share->arrived)
		return serve(job, worker, share);
	worker->state = LIEN_JOB_WAITING;
	worker->share = number;
	worker->moved = lien_clock_ms();
	return 0;
}

/* --- messages --------------------------------------------------------------------------------- */

static int take_done(struct lien_job_worker *worker, const struct lien_replay_message *message)
{
	struct lien_replay_message quit = {.say = LIEN_SAY_QUIT};
	int status;

	worker->state = LIEN_JOB_IDLE;
	worker->done = message->done;
	if (!worker->process->ended)
		return 0;
	/* It ended in the recording, so it ends here. */
	if (!lien_replay_send(worker->sock, &quit, -1, 0) &&
		lien_job_reap(worker, EXIT_MS, &status)) {
		forget(worker);
		return 0;
	}
	return complain(worker, "does not exit");
}

static int hear(struct lien_job *job, struct lien_job_worker *worker)
{
	struct lien_replay_message message;
	int fd, err;

	err = lien_replay_receive(worker->sock, &message, &fd, 0);
	if (err == -EPIPE)
		return died(job, worker);
	if (err == -EMFILE)
		return complain(worker, "its export does not fit: out of file descriptors, "
					"raise the limit (ulimit -n)");
	if (err)
		return complain(worker, "receiving from it: %s", strerror(-err));
	worker->moved = lien_clock_ms();
	switch (message.say) {
	case LIEN_SAY_EXPORT:
		return take_export(job, &message, fd);
	case LIEN_SAY_IMPORT:
		return take_import(job, worker, message.share.number);
	case LIEN_SAY_DONE:
		return take_done(worker, &message);
	case LIEN_SAY_CHECKED:
		worker->checked = message.checked;
		worker->state = LIEN_JOB_IDLE;
		return 0;
	case LIEN_SAY_FAILED:
		message.text[sizeof(message.text) - 1] = '\0';
		return complain(worker, "%s", message.text);
	default:
		return complain(worker, "says %u, which means nothing", message.say);
	}
}

static int timed_out(const struct lien_job *job, const struct lien_job_worker *worker)
{
	const struct lien_job_worker *exporter = job->workers;
	struct lien_replay_share *share;
	uint64_t calls;
	const char *call = current_call(worker, &calls);

	if (worker->state == LIEN_JOB_BUSY)
		return complain(worker,
			"no progress for %d s, %" PRIu64 " of %zu calls made, now %s",
			job->timeout_ms / 1000, calls, worker->process->count, call);
	share = lien_replay_share_find(&job->script->shares, worker->share);
	while (exporter->index != share->exporter)
		exporter++;
	current_call(exporter, &calls);
	return complain(worker,
		"waited %d s for share %" PRIu64
		", call %u of recorded pid %u, which has made %" PRIu64 " of %zu",
		job->timeout_ms / 1000, worker->share, share->op + 1, exporter->process->pid, calls,
		exporter->process->count);
}

/* Finds stuck workers. */
static int check_progress(struct lien_job *job)
{
	struct lien_job_worker *worker;
	uint64_t position, now = lien_clock_ms();
	size_t i;

	for (i = 0; i < job->count; i++) {
		worker = &job->workers[i];
		if (worker->state != LIEN_JOB_BUSY && worker->state != LIEN_JOB_WAITING)
			continue;
		position = atomic_load(&worker->image->position);
		if (position != worker->position) {
			worker->position = position;
			worker->moved = now;
		}
		if (now - worker->moved >= (uint64_t)job->timeout_ms)
			return timed_out(job, worker);
	}
	return 0;
}

/* Handles all pending messages. input: another fd to wait for, or -1. Returns 1: input is
 * readable. */
static int pump(struct lien_job *job, int input, int timeout_ms)
{
	struct pollfd pfds[LIEN_REPLAY_PROCESSES_MAX + 1];
	size_t i;
	int err;

	for (i = 0; i < job->count; i++)
		pfds[i] = (struct pollfd){.fd = job->workers[i].sock, .events = POLLIN};
	pfds[i] = (struct pollfd){.fd = input, .events = POLLIN};
	if (poll(pfds, job->count + 1, timeout_ms) < 0)
		return errno == EINTR ? 0 : -errno;
	for (i = 0; i < job->count; i++) {
		/* Serving another worker may have ended this one. */
		if (!pfds[i].revents || job->workers[i].sock < 0)
			continue;
		err = hear(job, &job->workers[i]);
		if (err)
			return err;
	}
	return pfds[job->count].revents ? 1 : 0;
}

static bool busy(const struct lien_job *job)
{
	size_t i;

	for (i = 0; i < job->count; i++) {
		if (job->workers[i].state == LIEN_JOB_BUSY ||
			job->workers[i].state == LIEN_JOB_WAITING)
			return true;
	}
	return false;
}

int lien_job_wait(struct lien_job *job)
{
	int err = 0;

	while (!err && busy(job)) {
		err = pump(job, -1, TICK_MS);
		if (!err)
			err = check_progress(job);
	}
	return err;
}

int lien_job_wait_input(struct lien_job *job, int fd)
{
	int got;

	do
		got = pump(job, fd, -1);
	while (!got);
	return got < 0 ? got : 0;
}

int lien_job_tell(struct lien_job *job, const struct lien_replay_message *message)
{
	struct lien_job_worker *worker;
	size_t i;
	int err;

	for (i = 0; i < job->count; i++) {
		worker = &job->workers[i];
		if (worker->state == LIEN_JOB_GONE)
			continue;
		memset(&worker->checked, 0, sizeof(worker->checked));
		err = lien_replay_send(worker->sock, message, -1, 0);
		if (err == -EPIPE)
			err = died(job, worker);
		else if (err)
			return complain(worker, "no order reaches it: %s", strerror(-err));
		else
			worker->state = LIEN_JOB_BUSY;
		if (err)
			return err;
		worker->moved = lien_clock_ms();
	}
	return lien_job_wait(job);
}

int lien_job_start(struct lien_job *job, struct lien_script *script)
{
	struct lien_job_worker *worker;
	struct rlimit files;
	size_t i;
	int err;

	job->script = script;
	job->workers = calloc(script->process_count + 1, sizeof(*job->workers));
	if (!job->workers)
		return -ENOMEM;
	/* Exports wait here for their imports: thousands of fds when ranks run at their own
	 * speed. */
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	for (i = 0; i < script->process_count; i++) {
		if (!script->processes[i]->used)
			continue;
		worker = &job->workers[job->count++];
		worker->process = script->processes[i];
		worker->index = i;
		worker->sock = -1;
		worker->moved = lien_clock_ms();
		err = lien_job_spawn(job, job->count - 1);
		if (err)
			return complain(worker, "starting a worker: %s", strerror(-err));
	}
	return 0;
}

/* Reports how it ended, unless that is known already. */
static void bury(struct lien_job *job, struct lien_job_worker *worker, bool orderly)
{
	int status = 0;

	while (!lien_job_reap(worker, EXIT_MS, &status)) {
		complain(worker, "does not exit: killed");
		kill(worker->pid, SIGKILL);
		job->failed = true;
		orderly = false;
	}
	if (!orderly || !status)
		return;
	if (WIFSIGNALED(status))
		complain(worker, "died of signal %d (%s)", WTERMSIG(status),
			strsignal(WTERMSIG(status)));
	else
		complain(worker, "exited with status %d", WEXITSTATUS(status));
	job->failed = true;
}

void lien_job_end(struct lien_job *job, bool orderly)
{
	struct lien_replay_message quit = {.say = LIEN_SAY_QUIT};
	struct lien_job_worker *worker;
	size_t i;

	for (i = 0; i < job->count; i++) {
		worker = &job->workers[i];
		if (!orderly && worker->image)
			atomic_store(&worker->image->stop, 1);
		if (orderly && worker->sock >= 0)
			lien_replay_send(worker->sock, &quit, -1, 0);
		forget(worker);
	}
	for (i = 0; i < job->count; i++) {
		if (job->workers[i].pid > 0 && !job->workers[i].reaped)
			bury(job, &job->workers[i], orderly);
	}
}

void lien_job_free(struct lien_job *job)
{
	size_t i;

	for (i = 0; i < job->count; i++)
		lien_replay_image_close(job->workers[i].image);
	free(job->workers);
	job->workers = NULL;
	job->count = 0;
}
