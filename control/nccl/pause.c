// SPDX-License-Identifier: BSD-2-Clause
/*
 * AMem's functions. A group id belongs to the communicators that the process makes while it is set.
 * Pausing twice moves what has come back meanwhile, and is no error; neither is resuming twice.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/clock.h>
#include "control/ask/ask.h"
#include "control/driver/thread.h"
#include "control/nccl/nccl.h"

#define CHANGES_MAX 64 /* of the group id */

/* From `since` until the next change. */
struct change {
	int id;
	uint64_t since_ns;
};

/* Ranks pause and resume together, so that a group's turns have the same numbers in all of them. */
struct group {
	int id;
	int paused;
	uint64_t turns;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct change changes[CHANGES_MAX];
static unsigned changes_count; /* 0: not set yet */
static struct group groups[CHANGES_MAX];
static unsigned groups_count;

/* AMem's variable for programs that do not call ncclSetGroupID(). */
static int first_id(void)
{
	const char *text = getenv("AMEM_GROUPID");
	char *end = NULL;
	long id = text ? strtol(text, &end, 10) : 0;

	return text && text[0] && !*end ? id : 0;
}

static void begin(void)
{
	if (!changes_count)
		changes[changes_count++] = (struct change){first_id(), 0};
}

static int current_id(void)
{
	begin();
	return changes[changes_count - 1].id;
}

static struct group *group_of(int id)
{
	unsigned i;

	for (i = 0; i < groups_count; i++)
		if (groups[i].id == id)
			return &groups[i];
	groups[groups_count] = (struct group){.id = id}; /* there are no more ids than changes */
	return &groups[groups_count++];
}

int lien_ncclSetGroupID(int id)
{
	int full = 0;

	pthread_mutex_lock(&lock);
	if (id != current_id()) {
		full = changes_count == CHANGES_MAX;
		if (!full)
			changes[changes_count++] = (struct change){id, lien_clock_ns()};
	}
	pthread_mutex_unlock(&lock);
	return full ? lien_nccl_fail(LIEN_NCCL_INVALID_USAGE, "ncclSetGroupID",
			      "the group id has been changed %d times, which is all", CHANGES_MAX)
		    : LIEN_NCCL_SUCCESS;
}

int lien_ncclGetGroupID(int *id)
{
	if (!id)
		return lien_nccl_fail(
			LIEN_NCCL_INVALID_ARGUMENT, "ncclGetGroupID", "the argument is NULL");
	pthread_mutex_lock(&lock);
	*id = current_id();
	pthread_mutex_unlock(&lock);
	return LIEN_NCCL_SUCCESS;
}

/* Writes the periods in which the id was set: "[[0, 17], [40, 99]]". */
static void write_periods(int id, char *to, size_t size)
{
	uint64_t end;
	size_t n = 0;
	unsigned i;

	for (i = 0; i < changes_count; i++) {
		if (changes[i].id != id)
			continue;
		end = i + 1 < changes_count ? changes[i + 1].since_ns : INT64_MAX;
		n += snprintf(to + n, size - n, "%s[%" PRIu64 ", %" PRIu64 "]", n ? ", " : "[",
			changes[i].since_ns, end);
	}
	snprintf(to + n, size - n, "]");
}

/* Moves what the current group id has, if `paused` says that it is not there already. */
static int move(const char *call, const char *op, int paused)
{
	char what[3600], periods[3072];
	struct group *group;
	uint64_t turn;
	int id, result;

	pthread_mutex_lock(&lock);
	id = current_id();
	group = group_of(id);
	turn = group->paused == paused ? 0 : group->turns + 1;
	write_periods(id, periods, sizeof(periods));
	pthread_mutex_unlock(&lock);
	snprintf(what, sizeof(what), "\"op\": %s, \"comms_made\": %s", op, periods);
	result = lien_nccl_move(call, what, turn);
	if (result || !turn)
		return result;
	pthread_mutex_lock(&lock);
	group = group_of(id);
	if (group->turns + 1 == turn) { /* no other thread was faster */
		group->turns = turn;
		group->paused = paused;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

int lien_ncclPause(lien_nccl_comm *ignored)
{
	(void)ignored;
	return move("ncclPause", "\"offload\", \"owner\": \"nccl\"", 1);
}

int lien_ncclResume(lien_nccl_comm *ignored)
{
	(void)ignored;
	return move("ncclResume", "\"restore\"", 0);
}

/* --- what the process has --------------------------------------------------------------------- */

struct row {
	int id;
	char caller[200];
	uint64_t bytes, offloaded, all, all_offloaded;
};

/* The members of a row come in any order; the last of them is not known, so each shows the row
 * before it. */
static void show(struct row *row)
{
	if (!strncmp(row->caller, "nccl", 4) && (row->bytes || row->offloaded)) {
		fprintf(stderr,
			"lien: groupID:%d pid:%d %s allocBytes:%" PRIu64 " offloaded:%" PRIu64 "\n",
			row->id, getpid(), row->caller, row->bytes, row->offloaded);
		row->all += row->bytes;
		row->all_offloaded += row->offloaded;
	}
	row->caller[0] = '\0';
	row->bytes = row->offloaded = 0;
}

static void take_row(void *context, const struct lien_json_piece *path, unsigned depth,
	const struct lien_json_piece *value)
{
	static const char key[] = "key";
	struct row *row = context;

	if (depth != 3 || !lien_json_is(&path[0], "rows"))
		return;
	if (lien_json_is(&path[2], key)) {
		show(row);
		lien_json_copy(value, row->caller, sizeof(row->caller));
	} else if (lien_json_is(&path[2], "bytes")) {
		row->bytes = lien_json_number(value);
	} else if (lien_json_is(&path[2], "offloaded_bytes")) {
		row->offloaded = lien_json_number(value);
	}
}

int lien_ncclMemStats(void)
{
	struct row row = {0};
	struct lien_asked asked = {.fn = take_row, .context = &row};
	int result;

	lien_ncclGetGroupID(&row.id);
	result = lien_nccl_look(
		"ncclMemStats", "{\"op\": \"mem\", \"by\": \"callsite\", \"pid\": 0}\n", &asked);
	if (result)
		return result;
	show(&row);
	fprintf(stderr,
		"lien: groupID:%d pid:%d total allocBytes:%" PRIu64 " offloaded:%" PRIu64 "\n",
		row.id, getpid(), row.all, row.all_offloaded);
	return LIEN_NCCL_SUCCESS;
}

static void forked(void)
{
	const pthread_mutex_t free = PTHREAD_MUTEX_INITIALIZER;

	lock = free;
	groups_count = 0;
}

LIEN_FORKED(forked);
