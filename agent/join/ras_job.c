// SPDX-License-Identifier: BSD-2-Clause
#include "agent/join/ras_job.h"
#include "agent/core/proc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "agent/core/agent.h"
#include "loader/discover/status.h"
#include "loader/discover/untrusted.h"

#define TRIES	 4	/* the kernel chooses which process answers, maybe another job's */
#define TRIES_S	 15	/* no try begins later */
#define PIECE	 65536u /* of memory to read at a time */
#define ROWS_MAX 16384	/* per process */

/* --- subjects --------------------------------------------------------------------------------- */

static void look_at(struct lien_ras_subject *subject)
{
	subject->gone = !lien_proc_runs(subject->pid, subject->start);
	subject->netns = lien_netns_of(subject->pid);
	subject->own_pid = lien_status_of(subject->pid, 0, "NSpid", 10);
	if (lien_ras_port_of(subject->pid, &subject->port))
		return;
	subject->done = true;
	snprintf(subject->problem, sizeof(subject->problem),
		"NCCL's RAS is turned off in it (NCCL_RAS_ENABLE=0)");
}

static bool same_place(const struct lien_ras_subject *a, const struct lien_ras_subject *b)
{
	return !a->gone && !b->gone && a->netns == b->netns && a->uid == b->uid;
}

static void find_shared_pids(struct lien_ras_job *job)
{
	struct lien_ras_subject *a, *b, *end = job->subject + job->subjects;

	for (a = job->subject; a < end; a++)
		for (b = job->subject; b < end; b++)
			a->shared_pid |= a != b && same_place(a, b) && a->own_pid == b->own_pid;
}

/* --- one answer ------------------------------------------------------------------------------- */

/* One question for several processes: same namespace, user and port as `first`. */
struct round {
	struct lien_ras_job *job;
	struct lien_ras_subject *first;
	struct lien_ras_host host[LIEN_RAS_ADDRESS_MAX];
	unsigned hosts;
};

static bool of_round(const struct round *round, const struct lien_ras_subject *subject)
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

static void add_row(struct lien_ras_subject *subject, const struct lien_ras_row *row)
{
	struct lien_ras_row *more;
	unsigned i;

	for (i = 0; i < subject->rows; i++)
		if (subject->row[i].hash == row->hash &&
			subject->row[i].host_hash == row->host_hash &&
			subject->row[i].pid_hash == row->pid_hash &&
			subject->row[i].rank == row->rank)
			return;
	if (subject->rows == ROWS_MAX) {
		subject->whole = false;
		return;
	}
	if (!(subject->rows & (subject->rows - 1))) {
		more = realloc(
			subject->row, (subject->rows ? 2 * subject->rows : 1) * sizeof(*more));
		if (!more)
			return;
		subject->row = more;
	}
	subject->row[subject->rows++] = *row;
}

/* Returns true when the answer names the process: then it covers the process's job. */
static bool take_ranks(const struct round *round, struct lien_ras_subject *subject,
	const struct lien_ras_answer *answer)
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
			subject->whole = false;
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
	struct lien_ras_subject *subject = round->job->subject,
				*end = subject + round->job->subjects;
	bool all = true;

	for (; subject < end; subject++) {
		if (!of_round(round, subject) || subject->done)
			continue;
		subject->problem[0] = '\0';
		subject->whole = answer->whole;
		if (take_ranks(round, subject, answer)) {
			subject->done = true;
			subject->whole &= !subject->shared_pid;
			subject->job = answer->named;
			memcpy(subject->version, answer->version, sizeof(subject->version));
		} else {
			subject->whole = false;
			snprintf(subject->problem, sizeof(subject->problem),
				"NCCL's RAS was asked, and does not name it");
		}
		all &= subject->done;
	}
	return all;
}

static void __attribute__((format(printf, 2, 3)))
tell_problem(const struct round *round, const char *format, ...)
{
	struct lien_ras_subject *subject = round->job->subject,
				*end = subject + round->job->subjects;
	va_list args;

	for (; subject < end; subject++) {
		if (!of_round(round, subject) || subject->done || subject->rows)
			continue;
		va_start(args, format);
		vsnprintf(subject->problem, sizeof(subject->problem), format, args);
		va_end(args);
	}
}

/* Returns true when another try is of no use. */
static bool try_once(struct round *round, const struct lien_ras_door *door)
{
	struct lien_ras_subject *first = round->first;
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
	const struct lien_ras_subject *first = round->first;
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

static void find_row(
	const struct lien_ras_subject *subject, struct lien_ras_place *place, uint8_t *memory)
{
	size_t size = read_memory(subject->pid, place->address, memory, LIEN_RAS_STRUCTURE_MAX);

	size = lien_ras_structure(memory, size);
	if (size)
		place->row =
			lien_ras_match(memory, size, subject->row, subject->rows, &place->rank);
}

/* Reuses an earlier result instead of searching again. */
static void find_known(const struct lien_ras_subject *subject, struct lien_ras_place *place)
{
	unsigned i;

	for (i = 0; i < subject->rows && place->row < 0; i++)
		if (subject->row[i].hash == place->hash &&
			(place->rank < 0 || subject->row[i].rank < 0 ||
				subject->row[i].rank == place->rank))
			place->row = i;
}

static void find_places(struct lien_ras_subject *subject, uint8_t *memory)
{
	int from[LIEN_RAS_PLACES_MAX];
	unsigned i;

	for (i = 0; i < subject->places; i++) {
		subject->place[i].row = -1;
		if (subject->place[i].hash)
			find_known(subject, &subject->place[i]);
		else if (subject->rows)
			find_row(subject, &subject->place[i], memory);
		from[i] = subject->place[i].row;
	}
	lien_ras_match_once(from, subject->places);
	for (i = 0; i < subject->places; i++) {
		subject->place[i].row = from[i];
		if (from[i] >= 0)
			subject->row[from[i]].address = subject->place[i].address;
		if (from[i] >= 0 && subject->row[from[i]].rank < 0)
			subject->row[from[i]].rank = subject->place[i].rank;
	}
}

/* Drops rows that only a match in the process's memory could have confirmed. */
static void drop_doubtful(struct lien_ras_subject *subject)
{
	unsigned i, kept = 0;
	int *moved = subject->rows ? calloc(subject->rows, sizeof(*moved)) : NULL;

	for (i = 0; moved && i < subject->rows; i++) {
		moved[i] = subject->row[i].sure || subject->row[i].address ? (int)kept : -1;
		if (moved[i] >= 0)
			subject->row[kept++] = subject->row[i];
	}
	for (i = 0; i < subject->places; i++)
		if (subject->place[i].row >= 0)
			subject->place[i].row = moved ? moved[subject->place[i].row] : -1;
	subject->rows = kept;
	free(moved);
}

/* --- the job ---------------------------------------------------------------------------------- */

void lien_ras_job_run(struct lien_job *base)
{
	struct lien_ras_job *job = (struct lien_ras_job *)base;
	struct lien_ras_subject *subject, *end = job->subject + job->subjects;
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

void lien_ras_job_free(struct lien_job *base)
{
	struct lien_ras_job *job = (struct lien_ras_job *)base;
	unsigned i;

	for (i = 0; i < job->subjects; i++) {
		free(job->subject[i].place);
		free(job->subject[i].row);
	}
	free(job->subject);
	free(job);
}
