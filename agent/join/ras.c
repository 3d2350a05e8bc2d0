// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/ras.h"
#include "agent/join/join.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/join/ras_job.h"
#include "agent/views/views.h"

#define S_NS	     1000000000ull
#define LOOK_NS	     S_NS
#define FRESH_NS     (5 * S_NS)	  /* no new question on request while the answer is this fresh */
#define FIRST_NS     (10 * S_NS)  /* between own questions, while something is unknown; */
#define LAST_NS	     (300 * S_NS) /* doubles up to this if nothing new comes */
#define MAKING_NS    (60 * S_NS)  /* a communicator is being made: see agent/join/ras_ask.h */
#define SUBJECTS_MAX 1024

struct lien_ras {
	struct lien_worker *worker; /* of its own: RAS may not answer */
	LIST_HEAD(, lien_ras_report) reports;
	bool asking;
	uint64_t t_looked, t_asked, delay;
};

/* --- reports ---------------------------------------------------------------------------------- */

static struct lien_ras_report *report_of(const struct lien_ras *ras, uint32_t pid, uint64_t start)
{
	struct lien_ras_report *report;

	LIST_FOREACH (report, &ras->reports, next)
		if (report->pid == pid && report->start == start)
			break;
	return report;
}

static const struct lien_ras_report *report_of_process(
	void *context, const struct lien_process *process)
{
	return report_of(context, process->pid, process->start);
}

static void report_free(struct lien_ras_report *report)
{
	LIST_REMOVE(report, next);
	free(report->row);
	free(report);
}

static void forget_ended(struct lien_agent *agent)
{
	struct lien_ras_report *report, *next;
	struct lien_process *process;

	LIST_FOREACH_SAFE (report, &agent->ras->reports, next, next) {
		process = lien_graph_process(agent->graph, report->pid);
		if (!process || process->start != report->start)
			report_free(report);
	}
}

static void keep_report(struct lien_ras *ras, struct lien_ras_subject *subject, uint64_t now)
{
	struct lien_ras_report *report = report_of(ras, subject->pid, subject->start);

	if (!report) {
		report = calloc(1, sizeof(*report));
		if (!report)
			return;
		LIST_INSERT_HEAD(&ras->reports, report, next);
		report->pid = subject->pid;
		report->start = subject->start;
	}
	report->t_asked = now;
	memcpy(report->problem, subject->problem, sizeof(report->problem));
	if (report->problem[0] && report->rows) {
		report->whole = false; /* keep the previous answer */
		return;
	}
	memcpy(report->version, subject->version, sizeof(report->version));
	report->job = subject->job;
	report->whole = subject->whole;
	free(report->row);
	report->row = subject->row;
	report->rows = subject->rows;
	subject->row = NULL;
	subject->rows = 0;
}

/* --- events for the graph --------------------------------------------------------------------- */

/* Is the communicator still in use? It may have been destroyed since its memory was read. */
static bool in_use(const struct lien_counted *counted, size_t count, struct lien_process *process,
	uint64_t address)
{
	struct lien_counted key = {.comm = {.pid = process->pid, .comm = address}};
	struct lien_comm comm = {.address = address};

	return RB_FIND(lien_comm_tree, &process->comms, &comm) ||
	       (count && bsearch(&key, counted, count, sizeof(key), lien_counted_cmp));
}

static void report(struct lien_agent *agent, const struct lien_ras_subject *subject,
	const struct lien_ras_place *place)
{
	const struct lien_ras_row *row = &subject->row[place->row];
	struct lien_event event =
		lien_agent_event_of(subject->pid, subject->start, LIEN_CALL_NCCL_INIT_RANK);

	event.flags = LIEN_EVENT_FOUND;
	event.size = LIEN_EVENT_SIZE(comm);
	event.t_entry = event.t_return = 0;
	event.comm.comm = place->address;
	event.comm.rank = place->rank;
	event.comm.nranks = row->nranks;
	event.comm.device = row->device;
	lien_comm_found_id(event.comm.id, row->hash, row->host_hash, row->pid_hash);
	lien_agent_event(agent, &event);
}

/* Returns the number of communicators found. */
static unsigned take_subject(struct lien_agent *agent, struct lien_ras_subject *subject,
	const struct lien_counted *counted, size_t count)
{
	struct lien_process *process = lien_graph_process(agent->graph, subject->pid);
	unsigned i, found = 0;

	if (!process || process->start != subject->start || subject->gone)
		return 0;
	for (i = 0; i < subject->places; i++) {
		const struct lien_ras_place *place = &subject->place[i];

		if (place->row < 0 || place->hash ||
			!in_use(counted, count, process, place->address))
			continue;
		report(agent, subject, place);
		found++;
	}
	keep_report(agent->ras, subject, lien_now_ns());
	return found;
}

static void answered(struct lien_agent *agent, struct lien_job *base)
{
	struct lien_ras_job *job = (struct lien_ras_job *)base;
	struct lien_counted *counted = NULL;
	unsigned i, found = 0;
	size_t count = 0;

	agent->ras->asking = false;
	if (!lien_agent_counted(agent, &counted, &count) && count)
		qsort(counted, count, sizeof(*counted), lien_counted_cmp);
	for (i = 0; i < job->subjects; i++)
		found += take_subject(agent, &job->subject[i], counted, count);
	free(counted);
	if (found) {
		lien_log(6,
			"NCCL's RAS names %u communicators that were made before they could be "
			"seen",
			found);
		agent->ras->delay = FIRST_NS;
	}
	forget_ended(agent);
	lien_ras_job_free(base);
}

/* --- questions -------------------------------------------------------------------------------- */

/* Leaves NCCL alone while it makes a communicator. */
static bool is_making(struct lien_process *process, uint64_t now)
{
	struct lien_comm key = {.number = 0};
	struct lien_init *init;
	uint64_t since;

	/* Scopes are times: the latest ones come last. */
	RB_FOREACH_REVERSE (init, lien_init_tree, &process->inits) {
		since = init->scope & ~LIEN_SCOPE_INIT;
		if (now < since)
			continue;
		if (now - since > MAKING_NS)
			break;
		key.number = init->number;
		if (!RB_FIND(lien_comm_number_tree, &process->comm_numbers, &key))
			return true;
	}
	return false;
}

static bool add_place(struct lien_ras_subject *subject, uint64_t address, uint64_t hash, int rank)
{
	struct lien_ras_place *more;

	if (subject->places == LIEN_RAS_PLACES_MAX)
		return false;
	if (!(subject->places & (subject->places - 1))) {
		more = realloc(subject->place,
			(subject->places ? 2 * subject->places : 1) * sizeof(*more));
		if (!more)
			return false;
		subject->place = more;
	}
	subject->place[subject->places++] =
		(struct lien_ras_place){.address = address, .hash = hash, .row = -1, .rank = rank};
	return true;
}

static void fill_in(struct lien_ras_subject *subject, struct lien_process *process,
	const struct lien_counted *counted, size_t count)
{
	struct lien_comm *comm;
	size_t i;

	*subject = (struct lien_ras_subject){
		.pid = process->pid, .uid = process->uid, .start = process->start};
	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		add_place(subject, comm->address, comm->hash, comm->hash ? comm->rank : -1);
	for (i = 0; i < count; i++) {
		struct lien_comm key = {.address = counted[i].comm.comm};

		if (counted[i].comm.pid == process->pid &&
			!RB_FIND(lien_comm_tree, &process->comms, &key))
			add_place(subject, key.address, 0, -1);
	}
}

/* NULL: there is nothing to ask about, or it is too early. */
static struct lien_ras_job *job_new(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_ras_job *job = calloc(1, sizeof(*job));
	struct lien_counted *counted = NULL;
	struct lien_process *process;
	uint64_t now = lien_now_ns();
	size_t count = 0;

	if (!job)
		return NULL;
	job->netns = agent->netns;
	job->subject = calloc(SUBJECTS_MAX, sizeof(*job->subject));
	lien_agent_counted(agent, &counted, &count);
	for (process = lien_graph_first(agent->graph); process && job->subject;
		process = lien_graph_next(process)) {
		if (is_making(process, now)) {
			lien_ras_job_free(&job->job);
			job = NULL;
			break;
		}
		if (job->subjects < SUBJECTS_MAX && lien_comms_may_lack(process) &&
			lien_viewer_sees(viewer, process))
			fill_in(&job->subject[job->subjects++], process, counted, count);
	}
	free(counted);
	if (job && job->subjects)
		return job;
	if (job)
		lien_ras_job_free(&job->job);
	return NULL;
}

static void ask(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_ras *ras = agent->ras;
	struct lien_ras_job *job = job_new(agent, viewer);

	if (!job)
		return;
	job->job = (struct lien_job){
		.work = lien_ras_job_run, .done = answered, .drop = lien_ras_job_free};
	ras->t_asked = lien_now_ns();
	ras->asking = !lien_worker_submit(ras->worker, &job->job);
	if (!ras->asking)
		lien_ras_job_free(&job->job);
}

static bool all_is_found(const struct lien_ras_report *report)
{
	unsigned i;

	for (i = 0; i < report->rows && report->row[i].address; i++)
		;
	return report->whole && i == report->rows;
}

/* The interval doubles, but a new process is asked about at once. */
static bool is_due(struct lien_agent *agent, uint64_t now)
{
	const struct lien_ras_report *report;
	struct lien_process *process;
	bool lacking = false;

	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		if (!lien_comms_may_lack(process))
			continue;
		report = report_of(agent->ras, process->pid, process->start);
		if (!report && now - agent->ras->t_asked >= FRESH_NS)
			return true;
		lacking |= !report || !all_is_found(report);
	}
	return lacking && now - agent->ras->t_asked >= agent->ras->delay;
}

void lien_ras_tick(struct lien_agent *agent)
{
	struct lien_ras *ras = agent->ras;
	uint64_t now = lien_now_ns();

	if (!ras || ras->asking || now - ras->t_looked < LOOK_NS)
		return;
	ras->t_looked = now;
	forget_ended(agent);
	if (!is_due(agent, now))
		return;
	ras->delay = 2 * ras->delay < LAST_NS ? 2 * ras->delay : LAST_NS;
	ask(agent, NULL);
}

struct lien_view_ras lien_ras_refresh(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_ras *ras = agent->ras;

	if (!ras)
		return (struct lien_view_ras){0};
	if (!ras->asking && (!ras->t_asked || lien_now_ns() - ras->t_asked >= FRESH_NS))
		ask(agent, viewer);
	return (struct lien_view_ras){
		.of = report_of_process, .context = ras, .pending = ras->asking};
}

/* --- start and stop --------------------------------------------------------------------------- */

int lien_ras_start(struct lien_agent *agent)
{
	struct lien_ras *ras;

	ras = calloc(1, sizeof(*ras));
	if (!ras)
		return -ENOMEM;
	LIST_INIT(&ras->reports);
	ras->delay = FIRST_NS;
	agent->ras = ras;
	return lien_worker_new(agent, &ras->worker);
}

void lien_ras_stop(struct lien_agent *agent)
{
	struct lien_ras *ras = agent->ras;
	struct lien_ras_report *report;

	if (!ras)
		return;
	lien_worker_free(ras->worker);
	while ((report = LIST_FIRST(&ras->reports)))
		report_free(report);
	free(ras);
	agent->ras = NULL;
}
