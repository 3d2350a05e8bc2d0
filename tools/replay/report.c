// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>

#include "tools/replay/report.h"
#include "tools/text/complain.h"
#include "tools/text/json_text.h"

#define COMMAND "lien replay"

static const struct {
	const char *key, *text;
} skips[LIEN_SKIP_COUNT] = {
	[LIEN_SKIP_IMPORT] = {"imports", "imports of which the recording has no export"},
	[LIEN_SKIP_DEPENDENT] = {"dependent", "calls on what a call left out would have given"},
	[LIEN_SKIP_UNKNOWN] = {"unknown", "calls on names from before the recording"},
	[LIEN_SKIP_PARTIAL] = {"partial", "calls whose arguments could not be read"},
	[LIEN_SKIP_TYPE] = {"type", "exports of a kind that cannot be replayed"},
};

void lien_report_script(const struct lien_script *script, const char *path)
{
	int i;

	if (script->lost)
		lien_warn(
			COMMAND, "%s lost %" PRIu64 " events when it was made", path, script->lost);
	for (i = 0; i < LIEN_SKIP_COUNT; i++) {
		if (script->skipped[i])
			lien_warn(COMMAND, "left out %" PRIu64 " %s", script->skipped[i],
				skips[i].text);
	}
}

void lien_report_ready(const struct lien_job *job, FILE *out)
{
	const struct lien_job_worker *worker;
	uint64_t unverified = 0;
	int devices = 0;
	size_t i;

	for (i = 0; i < job->count; i++) {
		worker = &job->workers[i];
		fprintf(out,
			"recorded pid %u -> pid %d: %" PRIu64 " mappings, %" PRIu64
			" bytes, %" PRIu64 " calls%s\n",
			worker->process->pid, worker->pid, worker->done.mappings,
			worker->done.bytes, worker->done.calls,
			worker->process->ended ? "; ended, as recorded" : "");
		unverified += worker->done.unverified;
		devices = worker->done.devices;
	}
	for (i = 0; i < job->count; i++) {
		if (!job->workers[i].done.direct)
			continue;
		lien_warn(COMMAND, "no stand-in libnccl (replay/libnccl.so.2 beside lien, or "
				   "$LIEN_SOFTNCCL): NCCL's driver calls were made directly, its "
				   "own left out");
		break;
	}
	if (devices && job->script->last_device >= devices)
		lien_warn(COMMAND,
			"the recording names device %d, here are %d: ordinals were taken modulo "
			"%d",
			job->script->last_device, devices, devices);
	if (unverified)
		lien_warn(COMMAND,
			"%" PRIu64 " mappings cannot be verified in full: not readable, or never "
			"writable for the owner",
			unverified);
	fprintf(out, "replay: ready\n");
	fflush(out);
}

static json_t *worker_json(const struct lien_job_worker *worker)
{
	return json_pack("{s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:b}", "recorded_pid",
		(json_int_t)worker->process->pid, "pid", (json_int_t)worker->pid, "comm",
		worker->process->comm, "calls", (json_int_t)worker->done.calls, "mappings",
		(json_int_t)worker->done.mappings, "bytes", (json_int_t)worker->done.bytes,
		"unverified", (json_int_t)worker->done.unverified, "ended", worker->process->ended);
}

int lien_report_json(
	const struct lien_job *job, const char *path, const struct lien_job_totals *verified)
{
	const struct lien_script *script = job->script;
	json_t *workers = json_array(), *skipped = json_object(), *root, *verify;
	size_t i;

	for (i = 0; i < job->count; i++)
		json_array_append_new(workers, worker_json(&job->workers[i]));
	for (i = 0; i < LIEN_SKIP_COUNT; i++)
		json_object_set_new(skipped, skips[i].key, json_integer(script->skipped[i]));
	verify = verified ? json_pack("{s:I, s:I, s:I}", "mappings", (json_int_t)verified->mappings,
				    "failed", (json_int_t)verified->failed, "bytes",
				    (json_int_t)verified->bytes)
			  : json_null();
	root = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:b}", "recording", path,
		"records", (json_int_t)script->records, "lost", (json_int_t)script->lost, "control",
		(json_int_t)script->control, "failed", (json_int_t)script->failed, "inferred",
		(json_int_t)script->inferred, "skipped", skipped, "workers", workers, "verify",
		verify, "ok", !job->failed);
	if (!root)
		return -ENOMEM;
	lien_print_json(stdout, root);
	json_decref(root);
	return 0;
}
