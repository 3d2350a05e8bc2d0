// SPDX-License-Identifier: BSD-2-Clause
/*
 * lien-replay, which `lien replay` runs: runs a recording again, one process per recorded one, on
 * any CUDA driver. Its worker processes are the same program: lien-replay --worker N --fd FD.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

#include "tools/cli/options.h"
#include "tools/cli/preload.h"
#include "tools/replay/console.h"
#include "tools/replay/report.h"
#include "tools/replay/software.h"
#include "tools/replay/worker.h"
#include "tools/text/complain.h"
#include "tools/text/json_text.h"

#define TIMEOUT_MAX	86400
#define TIMEOUT_DEFAULT 60

static const char *const examples[] = {"lien replay job.lien", "run it, verify every byte, and end",
	"lien replay --software --hold job.lien",
	"without a GPU; then take commands: verify, change SEED (owners rewrite all their "
	"memory), free (give everything back), quit",
	NULL};

static const struct lien_usage usage = {
	.command = "lien replay",
	.arguments = "FILE",
	.summary =
		"Runs a recording again: one process for each recorded one makes the same CUDA "
		"driver calls in the same order, shares memory as it did, fills it with patterns, "
		"and stops where the recording ends. Needs a CUDA driver (libcuda.so.1), or "
		"--software. Exit code 1: something failed.",
	.min = 1,
	.max = 1,
	.apart = (const char *const[]){"verify", "hold", NULL},
	.needs = (const char *const[]){"keep-going", "hold", NULL},
	.examples = examples,
};

struct options {
	const char *path;
	bool verify, hold, json, no_control, keep_going, software;
	unsigned long timeout;
};

/* Returns false: the program ends here, with *code. */
static bool parse(int argc, char **argv, struct options *options, int *code)
{
	const struct lien_option table[] = {{"verify", LIEN_OPTION_FLAG, &options->verify, NULL,
						    "at the end, verify every byte of every "
						    "mapping and quit (the default unless "
						    "standard input is a terminal)",
						    0},
		{"hold", LIEN_OPTION_FLAG, &options->hold, NULL,
			"at the end, take commands from standard input, one a line", 0},
		{"keep-going", LIEN_OPTION_FLAG, &options->keep_going, NULL,
			"with --hold: go on without a worker that dies", 0},
		{"software", LIEN_OPTION_FLAG, &options->software, NULL,
			"without a GPU, as root: use the software driver, which keeps the GPUs' "
			"memory in host memory",
			0},
		{"timeout", LIEN_OPTION_NUMBER, &options->timeout, "SECONDS",
			"limit of every wait (default 60)", TIMEOUT_MAX},
		{"no-control", LIEN_OPTION_FLAG, &options->no_control, NULL,
			"do not preload liblien-control.so into the processes (see lien run --help "
			"for where it is looked for)",
			0},
		{"json", LIEN_OPTION_JSON, &options->json, NULL,
			"print a summary as JSON on standard output at the end; all else goes to "
			"standard error",
			0},
		{}};

	if (!lien_options_read(&usage, table, &argc, &argv, code))
		return false;
	options->path = argv[0];
	return true;
}

static int load(const char *path, struct lien_script **out)
{
	uint64_t record;
	size_t i;
	int err = lien_script_load(path, out, &record);

	switch (err) {
	case -EBADMSG:
		if (record)
			lien_complain(
				usage.command, "%s: damaged at record %" PRIu64, path, record);
		else
			lien_complain(usage.command,
				"%s: not a recording, or damaged from its beginning", path);
		return err;
	case -EPROTONOSUPPORT:
		lien_complain(usage.command, "%s: recorded by another version of lien", path);
		return err;
	case -ENODATA:
		if (!record) {
			lien_complain(usage.command, "%s: cut short before its first record", path);
			return err;
		}
		lien_warn(usage.command,
			"%s: cut short after record %" PRIu64 ", this is what there was", path,
			record - 1);
		break;
	case -E2BIG:
		lien_complain(usage.command,
			"%s: record %" PRIu64 ": more than %d processes, or %u calls of one", path,
			record, LIEN_REPLAY_PROCESSES_MAX, LIEN_REPLAY_OPS_MAX);
		return err;
	case 0:
		break;
	default:
		lien_complain(usage.command, "%s: %s", path, strerror(-err));
		return err;
	}
	for (i = 0; i < (*out)->process_count; i++) {
		if ((*out)->processes[i]->used)
			return 0;
	}
	lien_complain(usage.command, "%s: has no call to replay", path);
	lien_script_free(*out);
	return -ENODATA;
}

static int run(struct lien_job *job, const struct options *options, struct lien_script *script)
{
	FILE *out = options->json ? stderr : stdout;
	bool hold = options->hold || (!options->verify && isatty(STDIN_FILENO));
	struct lien_job_totals totals = {};
	int err;

	err = lien_job_start(job, script);
	if (!err)
		err = lien_job_wait(job);
	if (err)
		goto out;
	job->ready = true;
	lien_report_ready(job, out);
	if (hold && isatty(STDIN_FILENO))
		fprintf(out, "commands: " LIEN_CONSOLE_COMMANDS "\n");
	if (hold)
		err = lien_console_run(job, STDIN_FILENO, out, &totals);
	else
		err = lien_console_verify(job, out, &totals);
out:
	job->failed |= err != 0;
	lien_job_end(job, !err);
	if (options->json)
		lien_report_json(job, options->path, totals.mappings ? &totals : NULL);
	lien_job_free(job);
	return job->failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int replay(const struct options *options)
{
	struct lien_script *script;
	struct lien_job job = {};
	int status;

	if (load(options->path, &script))
		return EXIT_FAILURE;
	lien_report_script(script, options->path);
	if ((options->software &&
		    lien_replay_software(usage.command, MAX(script->last_device + 1, 1))) ||
		(!options->no_control && !lien_preload_is_set() &&
			lien_preload_set(usage.command, NULL, true, false))) {
		lien_script_free(script);
		return EXIT_FAILURE;
	}
	job.timeout_ms = options->timeout * 1000;
	job.keep_going = options->keep_going;
	status = run(&job, options, script);
	lien_script_free(script);
	return status;
}

int main(int argc, char **argv)
{
	struct options options = {.timeout = TIMEOUT_DEFAULT};
	int status;

	/* As start_worker() calls it. */
	if (argc == 5 && !strcmp(argv[1], "--worker"))
		return lien_replay_worker_main(atoi(argv[2]), atoi(argv[4]));
	if (parse(argc, argv, &options, &status))
		status = replay(&options);
	lien_json_end();
	return status;
}
