// SPDX-License-Identifier: BSD-2-Clause
/*
 * The communicators of processes that ran before they were watched, as NCCL's RAS names them. A
 * thread asks RAS and searches the processes' memory (agent/ras/ras.h); the results go into the
 * graph as events (LIEN_EVENT_FOUND), and are kept for the views.
 *
 * No answer counts across users or network namespaces: it counts only for processes that live in
 * the namespace in which it was given, and that belong to the user whose socket gave it.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/core/agent.h"
#include "agent/core/proc.h"
#include "agent/core/jobs.h"
#include "agent/graph/array.h"
#include "agent/join/job.h"
#include "agent/join/join.h"
#include "agent/join/netns.h"
#include "agent/join/ras_ask.h"
#include "agent/views/views.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"

#define S_NS	     1000000000ull
#define LOOK_NS	     S_NS
#define FRESH_NS     (5 * S_NS)	  /* no new question on request while the answer is this fresh */
#define FIRST_NS     (10 * S_NS)  /* between own questions, while something is unknown; */
#define LAST_NS	     (300 * S_NS) /* doubles up to this if nothing new comes */
#define MAKING_NS    (60 * S_NS)  /* a communicator is being made: see agent/join/ras_ask.h */
#define SUBJECTS_MAX 1024
#define TRIES	     4	    /* the kernel chooses which process answers, maybe another job's */
#define TRIES_S	     15	    /* no try begins later */
#define PIECE	     65536u /* of memory to read at a time */
#define ROWS_MAX     16384  /* per process */

/* Limit of addresses to examine per process and job. */
#define PLACES_MAX 256

/* An ncclComm_t that the process has used. */
struct place {
	uint64_t address;
	uint64_t hash; /* from an earlier search; 0: search for it */
	int32_t rank;  /* -1: not known */
};

/* A process. The agent's thread fills in which, the user and the places. */
struct subject {
	struct lien_ras_report is; /* the answer; .row[].address: where it was found, if ever */
	uint32_t pid, uid;
	uint64_t start;
	struct place *place;
	unsigned places, places_room, rows_room;

	bool gone; /* it has ended: ignore what follows */
	bool asked, done;
	uint64_t netns;
	uint16_t port;
	int32_t own_pid; /* as the process itself and NCCL see it; -1: not known */
	bool shared_pid; /* another process of the job has the same */
};

struct job {
	struct lien_job job;
	struct lien_netns *netns;
	struct subject *subject;
	unsigned subjects;
};

/* --- in the thread: subjects ------------------------------------------------------------------ */

static void look_at(struct subject *subject)
{
	subject->gone = !lien_proc_runs(subject->pid, subject->start);
	subject->netns = lien_netns_of(subject->pid);
	subject->own_pid = lien_status_of(subject->pid, 0, "NSpid", 10);
	if (lien_ras_port_of(subject->pid, &subject->port))
		return;
	subject->done = true;
	snprintf(subject->is.problem, sizeof(subject->is.problem),
		"NCCL's RAS is turned off in it (NCCL_RAS_ENABLE=0)");
}

static bool same_place(const struct subject *a, const struct subject *b)
{
	return !a->gone && !b->gone && a->netns == b->netns && a->uid == b->uid;
}

static void find_shared_pids(struct job *job)
{
	struct subject *a, *b, *end = job->subject + job->subjects;

	for (a = job->subject; a < end; a++)
		for (b = job->subject; b < end; b++)
			a->shared_pid |= a != b && same_place(a, b) && a->own_pid == b->own_pid;
}

/* --- one answer ------------------------------------------------------------------------------- */

/* One question for several processes: same namespace, user and port as `first`. */
struct round {
	struct job *job;
	struct subject *first;
	struct lien_ras_host host[LIEN_RAS_ADDRESS_MAX];
	unsigned hosts;
};

static bool of_round(const struct round *round, const struct subject *subject)
{
	return same_place(round->first, subject) && round->first->port == subject->port;
}

static bool is_here(const struct round *round, const struct lien_ras_host *host)
{
	unsigned i;

	for (i = 0; i < round->hosts; i++)
		if (!memcmp(&round->host[i], host, sizeof(*host)))
			return true;
	return false;
}

static void add_row(struct subject *subject, const struct lien_ras_row *row)
{
	unsigned i;

	for (i = 0; i < subject->is.rows; i++)
		if (subject->is.row[i].hash == row->hash &&
			subject->is.row[i].host_hash == row->host_hash &&
			subject->is.row[i].pid_hash == row->pid_hash &&
			subject->is.row[i].rank == row->rank)
			return;
	if (subject->is.rows == ROWS_MAX) {
		subject->is.whole = false;
		return;
	}
	if (lien_array_grow(&subject->is.row, subject->is.rows, &subject->rows_room, sizeof(*row)))
		return;
	subject->is.row[subject->is.rows++] = *row;
}

/* Returns true when the answer names the process: then it covers the process's job. */
static bool take_ranks(
	const struct round *round, struct subject *subject, const struct lien_ras_answer *answer)
{
	const struct lien_ras_comm *comm;
	const struct lien_ras_rank *rank;
	struct lien_ras_row row;
	bool named = false;
	unsigned i;

	for (i = 0; i < answer->ranks; i++) {
		rank = &answer->rank[i];
		comm = &answer->comm[rank->comm];
		if (rank->pid < 0 || rank->pid != subject->own_pid || !comm->hash ||
			rank->rank < 0 || rank->rank >= comm->nranks ||
			!is_here(round, &rank->host))
			continue;
		/* it did not answer, or has destroyed the communicator since */
		if (rank->missing) {
			subject->is.whole = false;
			continue;
		}
		row = (struct lien_ras_row){.hash = comm->hash,
			.host_hash = comm->host_hash,
			.pid_hash = comm->pid_hash,
			.nranks = comm->nranks,
			.rank = rank->rank,
			.device = rank->device,
			.sure = !subject->shared_pid};
		add_row(subject, &row);
		named = true;
	}
	return named;
}

/* Returns true when the answer names all processes of the round. */
static bool take(const struct round *round, const struct lien_ras_answer *answer)
{
	struct subject *subject = round->job->subject, *end = subject + round->job->subjects;
	bool all = true;

	for (; subject < end; subject++) {
		if (!of_round(round, subject) || subject->done)
			continue;
		subject->is.problem[0] = '\0';
		subject->is.whole = answer->whole;
		if (take_ranks(round, subject, answer)) {
			subject->done = true;
			subject->is.whole &= !subject->shared_pid;
			subject->is.job = answer->named;
			memcpy(subject->is.version, answer->version, sizeof(subject->is.version));
		} else {
			subject->is.whole = false;
			snprintf(subject->is.problem, sizeof(subject->is.problem),
				"NCCL's RAS was asked, and does not name it");
		}
		all &= subject->done;
	}
	return all;
}

static void __attribute__((format(printf, 2, 3)))
tell_problem(const struct round *round, const char *format, ...)
{
	struct subject *subject = round->job->subject, *end = subject + round->job->subjects;
	va_list args;

	for (; subject < end; subject++) {
		if (!of_round(round, subject) || subject->done || subject->is.rows)
			continue;
		va_start(args, format);
		vsnprintf(subject->is.problem, sizeof(subject->is.problem), format, args);
		va_end(args);
	}
}

/* Returns true when another try is of no use. */
static bool try_once(struct round *round, const struct lien_ras_door *door)
{
	struct subject *first = round->first;
	struct lien_ras_answer answer = {0};
	char problem[LIEN_RAS_PROBLEM];
	bool enough = false;
	int fd, err;

	fd = lien_netns_socket(round->job->netns, first->pid, door->address.ss_family);
	if (fd < 0) {
		tell_problem(round, "its network namespace cannot be entered: %s", strerror(-fd));
		return true;
	}
	round->hosts = lien_ras_own_addresses(fd, first->pid, round->host);
	err = lien_ras_ask(fd, first->pid, first->uid, door, &answer, problem);
	close(fd);
	if (err)
		tell_problem(round, "%s", problem);
	else
		enough = take(round, &answer);
	lien_ras_answer_clear(&answer);
	return enough || err == -ENOTSUP || err == -EPERM;
}

static void ask_round(struct round *round)
{
	struct lien_ras_door doors[LIEN_RAS_DOORS_MAX];
	const struct subject *first = round->first;
	time_t begun = time(NULL);
	bool others;
	unsigned count = lien_ras_doors(first->pid, first->uid, first->port, doors, &others), i;

	for (i = 0; i < round->job->subjects; i++)
		round->job->subject[i].asked |= of_round(round, &round->job->subject[i]);
	if (!count)
		tell_problem(round,
			others ? "port %u of NCCL's RAS is another user's in its network namespace"
			       : "nobody listens on port %u, NCCL's RAS, in the network namespace: "
				 "NCCL is older than 2.24, or has no communicator",
			first->port);
	for (i = 0; count && i < TRIES && time(NULL) - begun < TRIES_S; i++)
		if (try_once(round, &doors[i % count]))
			break;
}

/* --- the processes' memory -------------------------------------------------------------------- */

/* Returns how much can be read from the beginning, at most the structure's size. */
static size_t read_memory(uint32_t pid, uint64_t address, uint8_t *memory, size_t size)
{
	size_t done = 0, piece;
	ssize_t got;

	while (done < size) {
		piece = size - done < PIECE ? size - done : PIECE;
		got = lien_untrusted_memory(pid, address + done, memory + done, piece);
		if (got > 0)
			done += got;
		if (got != (ssize_t)piece || lien_ras_structure(memory, done))
			break;
	}
	return done;
}

static int find_row(const struct subject *subject, struct place *place, uint8_t *memory)
{
	size_t size = read_memory(subject->pid, place->address, memory, LIEN_RAS_STRUCTURE_MAX);

	size = lien_ras_structure(memory, size);
	return size ? lien_ras_match(memory, size, subject->is.row, subject->is.rows, &place->rank)
		    : -1;
}

/* Reuses an earlier result instead of searching again. */
static int find_known(const struct subject *subject, const struct place *place)
{
	unsigned i;

	for (i = 0; i < subject->is.rows; i++)
		if (subject->is.row[i].hash == place->hash &&
			(place->rank < 0 || subject->is.row[i].rank < 0 ||
				subject->is.row[i].rank == place->rank))
			return i;
	return -1;
}

static void find_places(struct subject *subject, uint8_t *memory)
{
	struct lien_ras_row *row;
	int from[PLACES_MAX];
	unsigned i;

	for (i = 0; i < subject->places && subject->is.rows; i++)
		from[i] = subject->place[i].hash ? find_known(subject, &subject->place[i])
						 : find_row(subject, &subject->place[i], memory);
	lien_ras_match_once(from, i);
	while (i--) {
		if (from[i] < 0)
			continue;
		row = &subject->is.row[from[i]];
		row->address = subject->place[i].address;
		if (row->rank < 0)
			row->rank = subject->place[i].rank;
	}
}

/* Drops rows that only a match in the process's memory could have confirmed. */
static void drop_doubtful(struct subject *subject)
{
	unsigned i, kept = 0;

	for (i = 0; i < subject->is.rows; i++)
		if (subject->is.row[i].sure || subject->is.row[i].address)
			subject->is.row[kept++] = subject->is.row[i];
	subject->is.rows = kept;
}

static void job_run(struct lien_job *base)
{
	struct job *job = (struct job *)base;
	struct subject *subject, *end = job->subject + job->subjects;
	uint8_t *memory = malloc(LIEN_RAS_STRUCTURE_MAX);
	struct round round = {.job = job};

	for (subject = job->subject; subject < end; subject++)
		look_at(subject);
	find_shared_pids(job);
	for (subject = job->subject; subject < end; subject++) {
		round.first = subject;
		if (!subject->gone && !subject->done && !subject->asked)
			ask_round(&round);
	}
	for (subject = job->subject; subject < end; subject++) {
		if (memory && !subject->gone)
			find_places(subject, memory);
		drop_doubtful(subject);
		subject->gone |= !lien_proc_runs(subject->pid, subject->start);
	}
	free(memory);
}

static void job_free(struct lien_job *base)
{
	struct job *job = (struct job *)base;
	unsigned i;

	for (i = 0; i < job->subjects; i++) {
		free(job->subject[i].place);
		free(job->subject[i].is.row);
	}
	free(job->subject);
	free(job);
}

/* --- in the agent's thread: reports ----------------------------------------------------------- */

struct lien_ras {
	uint64_t t_looked, t_asked, delay;
};

/* What was known before stays when there is no answer now. */
static void keep_report(struct lien_process *process, struct subject *subject, uint64_t now)
{
	struct lien_ras_report *report = process->ras;

	subject->is.t_asked = now;
	if (report && subject->is.problem[0] && report->rows) {
		report->t_asked = now;
		memcpy(report->problem, subject->is.problem, sizeof(report->problem));
		report->whole = false;
		return;
	}
	lien_ras_report_free(report);
	report = process->ras = malloc(sizeof(*report));
	if (!report)
		return;
	*report = subject->is;
	subject->is.row = NULL;
}

/* --- events for the graph --------------------------------------------------------------------- */

/* Is the communicator of no known name, and still in use? It may have been destroyed since its
 * memory was read. */
static bool is_wanted(const struct lien_counted *counted, size_t count,
	struct lien_process *process, uint64_t address)
{
	struct lien_counted key = {.comm = {.pid = process->pid, .comm = address}};
	const struct lien_comm *comm = lien_comm_find(process, address);

	return comm ? !comm->hash
		    : count && bsearch(&key, counted, count, sizeof(key), lien_counted_cmp);
}

static void report(
	struct lien_agent *agent, const struct subject *subject, const struct lien_ras_row *row)
{
	struct lien_event event =
		lien_agent_event_of(subject->pid, subject->start, LIEN_CALL_NCCL_INIT_RANK);

	event.flags = LIEN_EVENT_FOUND;
	event.size = LIEN_EVENT_SIZE(comm);
	event.t_entry = event.t_return = 0;
	event.comm.comm = row->address;
	event.comm.rank = row->rank;
	event.comm.nranks = row->nranks;
	event.comm.device = row->device;
	lien_comm_found_id(event.comm.id, row->hash, row->host_hash, row->pid_hash);
	lien_agent_event(agent, &event);
}

/* Had the address a name when RAS was asked? What is there without one now is another. */
static bool was_named(const struct subject *subject, uint64_t address)
{
	unsigned i;

	for (i = 0; i < subject->places; i++)
		if (subject->place[i].address == address && subject->place[i].hash)
			return true;
	return false;
}

/* Returns the number of communicators found. */
static unsigned take_subject(struct lien_agent *agent, struct subject *subject,
	const struct lien_counted *counted, size_t count)
{
	struct lien_process *process =
		lien_graph_living(agent->graph, subject->pid, subject->start);
	unsigned i, found = 0;
	uint64_t address;

	if (!process || subject->gone)
		return 0;
	for (i = 0; i < subject->is.rows; i++) {
		address = subject->is.row[i].address;
		if (!address || was_named(subject, address) ||
			!is_wanted(counted, count, process, address))
			continue;
		report(agent, subject, &subject->is.row[i]);
		found++;
	}
	keep_report(process, subject, lien_now_ns());
	return found;
}

static void answered(struct lien_agent *agent, struct lien_job *base)
{
	struct job *job = (struct job *)base;
	struct lien_counted *counted = NULL;
	unsigned i, found = 0;
	size_t count = 0;

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
}

/* --- questions -------------------------------------------------------------------------------- */

/* Leaves NCCL alone while it makes a communicator. */
static bool is_making(struct lien_process *process, uint64_t now)
{
	struct lien_init *init;
	uint64_t since;

	/* Scopes are times: the latest ones come last. */
	RB_FOREACH_REVERSE (init, lien_init_tree, &process->inits) {
		since = init->scope & ~LIEN_SCOPE_INIT;
		if (now < since)
			continue;
		if (now - since > MAKING_NS)
			break;
		if (!lien_process_comm(process, init->number))
			return true;
	}
	return false;
}

static void add_place(struct subject *subject, uint64_t address, uint64_t hash, int rank)
{
	if (subject->places == PLACES_MAX ||
		lien_array_grow(&subject->place, subject->places, &subject->places_room,
			sizeof(*subject->place)))
		return;
	subject->place[subject->places++] =
		(struct place){.address = address, .hash = hash, .rank = rank};
}

static void fill_in(struct subject *subject, struct lien_process *process,
	const struct lien_counted *counted, size_t count)
{
	struct lien_comm *comm;
	size_t i;

	*subject =
		(struct subject){.pid = process->pid, .uid = process->uid, .start = process->start};
	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		add_place(subject, comm->address, comm->hash, comm->hash ? comm->rank : -1);
	for (i = 0; i < count; i++)
		if (counted[i].comm.pid == process->pid &&
			!lien_comm_find(process, counted[i].comm.comm))
			add_place(subject, counted[i].comm.comm, 0, -1);
}

/* NULL: there is nothing to ask about, or it is too early. */
static struct job *job_new(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct job *job = calloc(1, sizeof(*job));
	struct lien_counted *counted = NULL;
	struct lien_process *process;
	uint64_t now = lien_now_ns();
	bool early = false;
	size_t count = 0;

	if (!job)
		return NULL;
	job->netns = agent->netns;
	job->subject = calloc(SUBJECTS_MAX, sizeof(*job->subject));
	lien_agent_counted(agent, &counted, &count);
	for (process = lien_graph_first(agent->graph); process && job->subject;
		process = lien_graph_next(process)) {
		early |= is_making(process, now);
		if (job->subjects < SUBJECTS_MAX && lien_comms_may_lack(process) &&
			lien_viewer_sees(viewer, process))
			fill_in(&job->subject[job->subjects++], process, counted, count);
	}
	free(counted);
	if (job->subjects && !early)
		return job;
	job_free(&job->job);
	return NULL;
}

static void ask(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct job *job = job_new(agent, viewer);

	if (!job)
		return;
	job->job = (struct lien_job){
		.kind = LIEN_JOB_RAS, .work = job_run, .done = answered, .drop = job_free};
	agent->ras->t_asked = lien_now_ns();
	lien_job_start(agent, &job->job);
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

	LIEN_FOREACH_PROCESS (process, agent->graph) {
		if (!lien_comms_may_lack(process))
			continue;
		report = process->ras;
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

	if (!ras || lien_jobs_pending(agent, LIEN_JOB_RAS) || now - ras->t_looked < LOOK_NS)
		return;
	ras->t_looked = now;
	if (!is_due(agent, now))
		return;
	ras->delay = 2 * ras->delay < LAST_NS ? 2 * ras->delay : LAST_NS;
	ask(agent, NULL);
}

bool lien_ras_refresh(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_ras *ras = agent->ras;

	if (ras && !lien_jobs_pending(agent, LIEN_JOB_RAS) &&
		(!ras->t_asked || lien_now_ns() - ras->t_asked >= FRESH_NS))
		ask(agent, viewer);
	return ras && lien_jobs_pending(agent, LIEN_JOB_RAS);
}

/* --- start and stop --------------------------------------------------------------------------- */

int lien_ras_start(struct lien_agent *agent)
{
	struct lien_ras *ras = calloc(1, sizeof(*ras));

	if (!ras)
		return -ENOMEM;
	ras->delay = FIRST_NS;
	agent->ras = ras;
	return 0;
}

void lien_ras_stop(struct lien_agent *agent)
{
	free(agent->ras);
	agent->ras = NULL;
}
