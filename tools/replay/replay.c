// SPDX-License-Identifier: BSD-2-Clause
/*
 * lien-replay, which `lien replay` runs: runs a recording again, one process per recorded one, on
 * any CUDA driver. Its worker processes are the same program: lien-replay --worker N --fd FD.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/preload.h"
#include "tools/replay/console.h"
#include "tools/replay/report.h"
#include "tools/replay/worker.h"

#define EXIT_USAGE	2
#define TIMEOUT_MAX	86400
#define TIMEOUT_DEFAULT 60

static const char help[] =
	"Usage: lien replay [OPTION]... FILE\n"
	"\n"
	"Runs a recording again: one process for each recorded one makes the same CUDA\n"
	"driver calls in the same order, shares memory as it did, fills it with patterns,\n"
	"and stops where the recording ends. Needs a CUDA driver (libcuda.so.1): a real\n"
	"one, or softcuda by LD_LIBRARY_PATH.\n"
	"\n"
	"  --verify           at the end, verify every byte of every mapping and quit\n"
	"                     (the default unless standard input is a terminal)\n"
	"  --hold             at the end, take commands from standard input, one a line:\n"
	"                     verify, change SEED (owners rewrite all their memory),\n"
	"                     free (give everything back), quit\n"
	"  --keep-going       with --hold: go on without a worker that dies\n"
	"  --timeout SECONDS  limit of every wait (default 60)\n"
	"  --no-control       do not preload liblien-control.so into the processes (see\n"
	"                     lien run --help for where it is looked for)\n"
	"  --json             print a summary as JSON on standard output at the end; all\n"
	"                     else goes to standard error\n"
	"  --help\n"
	"\n"
	"Examples:\n"
	"  lien replay job.lien\n"
	"  LD_LIBRARY_PATH=build/softcuda lien replay --hold job.lien\n"
	"\n"
	"Exit status: 0 if nothing failed, 1 if something did, 2 for wrong usage.\n";

struct options {
	const char *path;
	bool verify, hold, json, no_control, keep_going;
	int timeout;
	int worker, fd; /* -1: not a worker */
};

static bool number(const char *text, long least, long most, int *out)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (end == text || *end || errno || value < least || value > most)
		return false;
	*out = value;
	return true;
}

/* Returns 0, or an exit status + 1. */
static int parse(int argc, char **argv, struct options *options)
{
	static const struct option names[] = {
		{"verify", no_argument, NULL, 'v'},
		{"hold", no_argument, NULL, 'h'},
		{"keep-going", no_argument, NULL, 'k'},
		{"timeout", required_argument, NULL, 't'},
		{"no-control", no_argument, NULL, 'c'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, '?' + 1},
		{"worker", required_argument, NULL, 'w'},
		{"fd", required_argument, NULL, 'f'},
		{},
	};
	bool right = true;
	int option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) >= 0) {
		switch (option) {
		case 'v':
			options->verify = true;
			break;
		case 'h':
			options->hold = true;
			break;
		case 'k':
			options->keep_going = true;
			break;
		case 't':
			right = number(optarg, 1, TIMEOUT_MAX, &options->timeout);
			if (!right)
				fprintf(stderr,
					"replay: --timeout takes 1 to %d seconds, not '%s'\n",
					TIMEOUT_MAX, optarg);
			break;
		case 'c':
			options->no_control = true;
			break;
		case 'j':
			options->json = true;
			break;
		case '?' + 1:
			fputs(help, stdout);
			return EXIT_SUCCESS + 1;
		case 'w':
			right = number(optarg, 0, LIEN_REPLAY_PROCESSES_MAX, &options->worker);
			break;
		case 'f':
			right = number(optarg, 0, 1 << 20, &options->fd);
			break;
		default:
			right = false;
		}
		if (!right)
			break;
	}
	if (right && options->verify && options->hold) {
		fprintf(stderr, "replay: --verify and --hold exclude each other\n");
		right = false;
	}
	if (right && options->worker < 0 && optind != argc - 1) {
		fprintf(stderr, "replay: give one recording\n");
		right = false;
	}
	if (!right) {
		fprintf(stderr, "Try 'lien replay --help'.\n");
		return EXIT_USAGE + 1;
	}
	options->path = argv[optind];
	return 0;
}

static int load(const char *path, struct lien_script **out)
{
	uint64_t record;
	size_t i;
	int err = lien_script_load(path, out, &record);

	switch (err) {
	case -EBADMSG:
		if (record)
			fprintf(stderr, "replay: %s: damaged at record %" PRIu64 "\n", path,
				record);
		else
			fprintf(stderr,
				"replay: %s: not a recording, or damaged from its beginning\n",
				path);
		return err;
	case -EPROTONOSUPPORT:
		fprintf(stderr, "replay: %s: recorded by another version of lien\n", path);
		return err;
	case -ENODATA:
		if (!record) {
			fprintf(stderr, "replay: %s: cut short, nothing is left of it\n", path);
			return err;
		}
		fprintf(stderr,
			"replay: warning: %s: cut short after record %" PRIu64
			", this is what there was\n",
			path, record - 1);
		break;
	case -E2BIG:
		fprintf(stderr,
			"replay: %s: record %" PRIu64 ": more than %d processes, or %u calls of "
			"one\n",
			path, record, LIEN_REPLAY_PROCESSES_MAX, LIEN_REPLAY_OPS_MAX);
		return err;
	case 0:
		break;
	default:
		fprintf(stderr, "replay: %s: %s\n", path, strerror(-err));
		return err;
	}
	for (i = 0; i < (*out)->process_count; i++) {
		if ((*out)->processes[i]->used)
			return 0;
	}
	fprintf(stderr, "replay: %s: has no call to replay\n", path);
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

int main(int argc, char **argv)
{
	struct options options = {.timeout = TIMEOUT_DEFAULT, .worker = -1, .fd = -1};
	struct lien_script *script;
	struct lien_job job = {};
	int status;

	status = parse(argc, argv, &options);
	if (status)
		return status - 1;
	if (options.worker >= 0)
		return lien_replay_worker_main(options.worker, options.fd);
	if (load(options.path, &script))
		return EXIT_FAILURE;
	lien_report_script(script, options.path);
	if (!options.no_control && lien_preload_set("lien replay", true)) {
		lien_script_free(script);
		return EXIT_FAILURE;
	}
	job.timeout_ms = options.timeout * 1000;
	job.keep_going = options.keep_going;
	status = run(&job, &options, script);
	lien_script_free(script);
	return status;
}
