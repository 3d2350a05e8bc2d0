// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/console.h"
#include "tools/text/complain.h"

/* Returns 1 if the user wants to stop. */
typedef int (*command)(
	struct lien_job *job, const char *argument, FILE *out, struct lien_job_totals *totals);

static void report_mismatch(const struct lien_job_worker *worker, FILE *out)
{
	const struct lien_replay_checked *checked = &worker->checked;

	fprintf(out,
		"verify: recorded pid %u (pid %d): mapping 0x%" PRIx64 " (recorded 0x%" PRIx64
		") offset 0x%" PRIx64 ": ",
		worker->process->pid, worker->pid, checked->actual, checked->va, checked->offset);
	if (checked->result)
		fprintf(out,
			"cannot be read (CUresult %" PRIu64
			"): if it is offloaded, run `lien restore` first\n",
			checked->result);
	else
		fprintf(out, "expected 0x%016" PRIx64 ", found 0x%016" PRIx64 "\n",
			checked->expected, checked->found);
}

/* Makes all workers verify everything; prints each worker's first mismatch. Mismatches are no
 * error. */
static int verify_all(struct lien_job *job, struct lien_job_totals *totals, FILE *out)
{
	struct lien_replay_message message = {.say = LIEN_SAY_VERIFY};
	const struct lien_replay_checked *checked;
	const struct lien_job_worker *worker;
	size_t i;
	int err;

	memset(totals, 0, sizeof(*totals));
	err = lien_job_tell(job, &message);
	if (err)
		return err;
	for (i = 0; i < job->count; i++) {
		worker = &job->workers[i];
		checked = &worker->checked;
		if (worker->state == LIEN_JOB_GONE)
			continue;
		totals->mappings += checked->mappings;
		totals->failed += checked->failed;
		totals->bytes += checked->bytes;
		if (checked->failed)
			report_mismatch(worker, out);
	}
	job->failed |= totals->failed > 0;
	return 0;
}

int lien_console_verify(struct lien_job *job, FILE *out, struct lien_job_totals *totals)
{
	int err = verify_all(job, totals, out);

	if (err)
		return err;
	if (totals->failed)
		fprintf(out, "verify: failed %" PRIu64 " of %" PRIu64 " mappings\n", totals->failed,
			totals->mappings);
	else
		fprintf(out, "verify: ok %" PRIu64 " mappings, %" PRIu64 " bytes\n",
			totals->mappings, totals->bytes);
	return 0;
}

static int verify(
	struct lien_job *job, const char *argument, FILE *out, struct lien_job_totals *totals)
{
	(void)argument;
	return lien_console_verify(job, out, totals);
}

static int change(
	struct lien_job *job, const char *argument, FILE *out, struct lien_job_totals *totals)
{
	struct lien_replay_message message = {.say = LIEN_SAY_CHANGE};
	char *end;
	int err;

	(void)totals;
	errno = 0;
	message.change = strtoull(argument, &end, 0);
	if (end == argument || *end || errno || *argument == '-') {
		lien_complain("lien replay", "change: '%s' is not a number", argument);
		job->failed = true;
		return 0;
	}
	err = lien_job_tell(job, &message);
	if (!err)
		fprintf(out, "change: ok %" PRIu64 "\n", message.change);
	return err;
}

static int release(
	struct lien_job *job, const char *argument, FILE *out, struct lien_job_totals *totals)
{
	struct lien_replay_message message = {.say = LIEN_SAY_FREE};
	int err = lien_job_tell(job, &message);

	(void)argument;
	(void)totals;
	if (!err)
		fprintf(out, "free: ok\n");
	return err;
}

static int quit(
	struct lien_job *job, const char *argument, FILE *out, struct lien_job_totals *totals)
{
	(void)job;
	(void)argument;
	(void)out;
	(void)totals;
	return 1;
}

static const struct {
	const char *name;
	command run;
	bool has_argument;
} commands[] = {
	{"verify", verify, false},
	{"change", change, true},
	{"free", release, false},
	{"quit", quit, false},
};

static int obey(struct lien_job *job, char *line, FILE *out, struct lien_job_totals *totals)
{
	char *save = NULL;
	const char *name = strtok_r(line, " \t\r", &save);
	const char *argument = strtok_r(NULL, " \t\r", &save);
	size_t i;
	int err;

	if (!name)
		return 0;
	for (i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(commands[i].name, name) || commands[i].has_argument != !!argument ||
			strtok_r(NULL, " \t\r", &save))
			continue;
		err = commands[i].run(job, argument, out, totals);
		fflush(out);
		return err;
	}
	lien_complain("lien replay",
		"unknown command '%s': the commands are " LIEN_CONSOLE_COMMANDS, name);
	job->failed = true;
	return 0;
}

int lien_console_run(struct lien_job *job, int fd, FILE *out, struct lien_job_totals *last)
{
	char line[256], *end;
	size_t have = 0;
	ssize_t n;
	int err;

	for (;;) {
		err = lien_job_wait_input(job, fd);
		if (err)
			return err;
		n = read(fd, line + have, sizeof(line) - 1 - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		have += n;
		while ((end = memchr(line, '\n', have))) {
			*end++ = '\0';
			err = obey(job, line, out, last);
			if (err)
				return err < 0 ? err : 0;
			have -= end - line;
			memmove(line, end, have);
		}
		/* No command is this long. */
		if (have == sizeof(line) - 1)
			have = 0;
	}
}
