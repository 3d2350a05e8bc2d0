// SPDX-License-Identifier: BSD-2-Clause
#include "tools/text/openmetrics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

struct page {
	FILE *out;
	enum lien_metrics_format format;
};

enum type { GAUGE, COUNTER, HISTOGRAM, INFO };

/* The two formats differ in the names of counters, in units, and at the end. */
struct family {
	const char *name; /* without _total */
	enum type type;
	const char *unit; /* the end of the name; NULL: none */
	const char *help;
};

static void begin(const struct page *page, const struct family *family)
{
	static const char *const types[] = {"gauge", "counter", "histogram", "info"};
	const bool open = page->format == LIEN_METRICS_OPEN;
	const char *suffix = open		       ? ""
			     : family->type == COUNTER ? "_total"
			     : family->type == INFO    ? "_info"
						       : "";
	const enum type type = family->type == INFO && !open ? GAUGE : family->type;

	fprintf(page->out, "# TYPE %s%s %s\n", family->name, suffix, types[type]);
	if (open && family->unit)
		fprintf(page->out, "# UNIT %s %s\n", family->name, family->unit);
	fprintf(page->out, "# HELP %s%s %s\n", family->name, suffix, family->help);
}

/*
 * Names of processes and libraries are their own choice. Control characters are written as %XX, and
 * so is %: two names never become one.
 */
static void print_value(FILE *out, const char *text)
{
	const unsigned char *c;

	for (c = (const unsigned char *)text; *c; c++) {
		if (*c < 0x20 || *c == 0x7f || *c == '%')
			fprintf(out, "%%%02X", *c);
		else if (*c == '\\' || *c == '"')
			fprintf(out, "\\%c", *c);
		else
			fputc(*c, out);
	}
}

/* Labels are pairs of name and value; one without a value is left out. NULL ends them. */
static void print_labels(FILE *out, const char *const *labels)
{
	const char *separator = "{";

	for (; labels && labels[0]; labels += 2) {
		if (!labels[1] || !labels[1][0])
			continue;
		fprintf(out, "%s%s=\"", separator, labels[0]);
		print_value(out, labels[1]);
		fputc('"', out);
		separator = ",";
	}
	if (*separator == ',')
		fputc('}', out);
}

static void sample(const struct page *page, const char *name, const char *suffix,
	const char *const *labels, uint64_t value)
{
	fprintf(page->out, "%s%s", name, suffix);
	print_labels(page->out, labels);
	fprintf(page->out, " %" PRIu64 "\n", value);
}

#define LABELS(...) ((const char *const[]){__VA_ARGS__, NULL, NULL})

/* A family of one number. */
static void single(const struct page *page, const struct family *family, const json_t *object,
	const char *member)
{
	const json_t *value = json_object_get(object, member);

	if (!json_is_number(value))
		return; /* no limit, for example */
	begin(page, family);
	sample(page, family->name, family->type == COUNTER ? "_total" : "", NULL,
		lien_get_number(object, member));
}

static void seconds(const struct page *page, const struct family *family, double value)
{
	begin(page, family);
	fprintf(page->out, "%s %.9g\n", family->name, value);
}

/* --- memory ----------------------------------------------------------------------------------- */

static const struct family memory[] = {
	{"lien_memory_bytes", GAUGE, "bytes",
		"Device memory by the process that owns it; kind exported: handed out to others, "
		"dead: its owner has exited and importers keep it; state offloaded: in host memory "
		"now."},
	{"lien_imported_bytes", GAUGE, "bytes",
		"Memory of other processes that a process maps; it is also in lien_memory_bytes of "
		"its owner."},
	{"lien_host_memory_bytes", GAUGE, "bytes",
		"Host memory that a process has allocated or registered by CUDA."},
};

enum { OWNED, IMPORTED, HOST };

static unsigned family_of(const char *kind)
{
	if (!strncmp(kind, "imported", strlen("imported")))
		return IMPORTED;
	return !strcmp(kind, "local") || !strcmp(kind, "exported") || !strcmp(kind, "dead") ? OWNED
											    : HOST;
}

static void print_row(const struct page *page, unsigned family, const json_t *row)
{
	char *pid = lien_format("%" PRIu64, lien_get_number(row, "pid"));
	char *device = json_is_integer(json_object_get(row, "device"))
			       ? lien_format("%" PRIu64, lien_get_number(row, "device"))
			       : NULL;
	static const struct {
		const char *name, *member;
	} states[] = {{"device", "bytes"}, {"offloaded", "offloaded_bytes"}};
	unsigned i;

	for (i = 0; i < (family == HOST ? 1 : 2); i++)
		sample(page, memory[family].name, "",
			LABELS("pid", pid, "command", lien_get_text(row, "command"), "gpu",
				lien_get_text(row, "gpu"), "device", device, "owner",
				lien_get_text(row, "owner"), "inferred",
				lien_get_true(row, "owner_inferred") ? "true" : NULL, "kind",
				lien_get_text(row, "kind"), "tag", lien_get_text(row, "tag"),
				"state", family == HOST ? NULL : states[i].name),
			lien_get_number(row, states[i].member));
	free(pid);
	free(device);
}

static void print_memory(const struct page *page, const json_t *rows)
{
	const json_t *row;
	unsigned i;
	size_t j;

	for (i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
		begin(page, &memory[i]);
		json_array_foreach (rows, j, row)
			if (family_of(lien_get_text(row, "kind")) == i)
				print_row(page, i, row);
	}
}

static void print_node(const struct page *page, const json_t *list)
{
	static const struct family family = {"lien_node_memory_bytes", GAUGE, "bytes",
		"Device memory of all processes of the node together, by GPU."};
	const json_t *entry;
	size_t i;

	begin(page, &family);
	json_array_foreach (list, i, entry) {
		const char *gpu = lien_get_text(entry, "gpu");

		sample(page, family.name, "", LABELS("gpu", gpu, "state", "device"),
			lien_get_number(entry, "bytes"));
		sample(page, family.name, "", LABELS("gpu", gpu, "state", "offloaded"),
			lien_get_number(entry, "offloaded_bytes"));
	}
}

static void print_gpus(const struct page *page, const json_t *gpus)
{
	static const struct {
		struct family family;
		const char *member;
	} figures[] = {
		{{"lien_gpu_size_bytes", GAUGE, "bytes", "Memory that a GPU has, from NVML."},
			"total_bytes"},
		{{"lien_gpu_used_bytes", GAUGE, "bytes",
			 "Memory of a GPU in use, whoever uses it, from NVML."},
			"used_bytes"},
		{{"lien_gpu_free_bytes", GAUGE, "bytes", "Free memory of a GPU, from NVML."},
			"free_bytes"},
	};
	const json_t *gpu;
	unsigned i;
	size_t j;

	for (i = 0; i < sizeof(figures) / sizeof(figures[0]); i++) {
		begin(page, &figures[i].family);
		json_array_foreach (gpus, j, gpu)
			if (json_is_integer(json_object_get(gpu, figures[i].member)))
				sample(page, figures[i].family.name, "",
					LABELS("gpu", lien_get_text(gpu, "uuid")),
					lien_get_number(gpu, figures[i].member));
	}
}

/* --- transactions ----------------------------------------------------------------------------- */

static const struct family outcomes = {"lien_transactions", COUNTER, NULL,
	"Transactions that have ended, and requests for one that were refused."};
static const struct family refusals = {
	"lien_refusals", COUNTER, NULL, "Transactions that were refused, by the reason."};
static const struct family moved = {"lien_moved_bytes", COUNTER, "bytes",
	"Bytes that offloads and restores have moved, and that releases of host memory have given "
	"back."};
static const struct family duration = {"lien_transaction_duration_seconds", HISTOGRAM, "seconds",
	"Wall time of transactions that were done."};
static const struct family phase = {"lien_phase_duration_seconds", HISTOGRAM, "seconds",
	"Time of one phase of a transaction that was done, in the process that took the longest."};
static const struct family rest = {"lien_rest_duration_seconds", HISTOGRAM, "seconds",
	"Time from the start of an offload until the job was at rest."};

static void count_by(const struct page *page, const struct family *family, const json_t *list,
	const char *members, const char *label)
{
	const json_t *entry, *value;
	const char *name;
	size_t i;

	begin(page, family);
	json_array_foreach (list, i, entry)
		json_object_foreach ((json_t *)json_object_get(entry, members), name, value)
			sample(page, family->name, "_total",
				LABELS("kind", lien_get_text(entry, "kind"), label, name),
				json_integer_value(value));
}

static void histogram(const struct page *page, const char *name, const json_t *bounds,
	const json_t *histogram, const char *kind, const char *phase_name)
{
	const json_t *buckets = json_object_get(histogram, "buckets");
	const char *const *labels = LABELS("kind", kind, "phase", phase_name);
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i <= json_array_size(bounds); i++) {
		const double bound = json_real_value(json_array_get(bounds, i));
		char le[32] = "+Inf";

		/* as OpenMetrics wants it: 0.5, 1.0 */
		if (i < json_array_size(bounds))
			snprintf(le, sizeof(le), bound == (uint64_t)bound ? "%.1f" : "%g", bound);
		sum += json_integer_value(json_array_get(buckets, i));
		sample(page, name, "_bucket", LABELS("kind", kind, "phase", phase_name, "le", le),
			sum);
	}
	fprintf(page->out, "%s_sum", name);
	print_labels(page->out, labels);
	fprintf(page->out, " %.9g\n", lien_get_real(histogram, "seconds"));
	sample(page, name, "_count", labels, sum);
}

static void print_transactions(const struct page *page, const json_t *totals)
{
	const json_t *list = json_object_get(totals, "transactions");
	const json_t *bounds = json_object_get(totals, "bucket_seconds");
	const json_t *entry, *value;
	const char *name;
	size_t i;

	count_by(page, &outcomes, list, "outcomes", "outcome");
	count_by(page, &refusals, list, "refused", "reason");
	begin(page, &moved);
	json_array_foreach (list, i, entry)
		sample(page, moved.name, "_total", LABELS("kind", lien_get_text(entry, "kind")),
			lien_get_number(entry, "bytes"));
	begin(page, &duration);
	json_array_foreach (list, i, entry)
		histogram(page, duration.name, bounds, json_object_get(entry, "duration"),
			lien_get_text(entry, "kind"), NULL);
	begin(page, &phase);
	json_array_foreach (list, i, entry)
		json_object_foreach ((json_t *)json_object_get(entry, "phases"), name, value)
			histogram(page, phase.name, bounds, value, lien_get_text(entry, "kind"),
				name);
	begin(page, &rest);
	json_array_foreach (list, i, entry)
		if (json_is_object(json_object_get(entry, "rest")))
			histogram(page, rest.name, bounds, json_object_get(entry, "rest"), NULL,
				NULL);
}

/* --- the agent -------------------------------------------------------------------------------- */

static void print_status(const struct page *page, const json_t *status)
{
	static const struct {
		struct family family;
		const char *part; /* of the status; NULL: the status itself */
		const char *member;
	} figures[] = {
		{{"lien_processes", GAUGE, NULL, "Processes that use CUDA."}, NULL, "processes"},
		{{"lien_unmatched_imports", GAUGE, NULL, "Imports whose owner is unknown."}, NULL,
			"unmatched_imports"},
		{{"lien_events", COUNTER, NULL, "Events that the graph was made from."}, NULL,
			"events"},
		{{"lien_events_lost", COUNTER, NULL, "Events that were lost for lack of room."},
			NULL, "events_lost"},
		{{"lien_unreadable_arguments", COUNTER, NULL,
			 "Arguments that could not be read from a process."},
			NULL, "unreadable"},
		{{"lien_uncounted_calls", COUNTER, NULL,
			 "NCCL calls that were not counted for lack of room."},
			NULL, "uncounted"},
		{{"lien_host_arena_held_bytes", GAUGE, "bytes",
			 "Host memory pinned for offloads, of all processes of the node."},
			"host", "held_bytes"},
		{{"lien_host_arena_used_bytes", GAUGE, "bytes",
			 "The part of it that holds offloaded memory."},
			"host", "used_bytes"},
		{{"lien_host_arena_limit_bytes", GAUGE, "bytes",
			 "The limit of it, lien agent --host-limit."},
			"host", "limit_bytes"},
		{{"lien_journal_bytes", GAUGE, "bytes", "Length of the agent's journal."},
			"journal", "bytes"},
		{{"lien_agent_resident_bytes", GAUGE, "bytes", "Memory of the agent itself."}, NULL,
			"rss_bytes"},
	};
	static const struct family incomplete = {"lien_incomplete_processes", GAUGE, NULL,
		"Processes of which not everything is known: they are not offloaded."};
	static const struct family held = {
		"lien_held_threads", GAUGE, NULL, "Threads that wait for offloaded memory."};
	static const struct family uptime = {
		"lien_agent_uptime_seconds", GAUGE, "seconds", "Time since the agent's start."};
	static const struct family info = {"lien_agent", INFO, NULL, "The agent."};
	unsigned i;

	for (i = 0; i < sizeof(figures) / sizeof(figures[0]); i++)
		single(page, &figures[i].family,
			figures[i].part ? json_object_get(status, figures[i].part) : status,
			figures[i].member);
	begin(page, &incomplete);
	sample(page, incomplete.name, "", NULL,
		json_array_size(json_object_get(status, "incomplete")));
	begin(page, &held);
	sample(page, held.name, "", NULL, json_array_size(json_object_get(status, "held")));
	seconds(page, &uptime, lien_get_real(status, "uptime_ms") / 1e3);
	begin(page, &info);
	sample(page, info.name, "_info", LABELS("version", lien_get_text(status, "version")), 1);
}

void lien_print_metrics(FILE *out, const json_t *metrics, enum lien_metrics_format format)
{
	const struct page page = {out, format};

	print_memory(&page, json_object_get(metrics, "memory"));
	print_node(&page, json_object_get(metrics, "node_memory"));
	print_gpus(&page, json_object_get(metrics, "gpus"));
	print_transactions(&page, json_object_get(metrics, "totals"));
	print_status(&page, json_object_get(metrics, "status"));
	if (format == LIEN_METRICS_OPEN)
		fprintf(out, "# EOF\n");
}
