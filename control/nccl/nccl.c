// SPDX-License-Identifier: BSD-2-Clause
/*
 * The functions that some versions of NCCL have, for all others (docs/nccl-calls.md; interpose.h
 * hands them out): AMem's, which pause what a process has made under its group id, and those of
 * NCCL 2.29.7, which suspend one communicator. They ask the agent to move the memory, in all ranks;
 * requests of several ranks for the same are one transaction. No function exits, and every wait has
 * a limit.
 *
 * Any thread may call them; it must not be in an NCCL group with calls in it. State is the
 * process's.
 */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include <lien/clock.h>
#include "control/ask/ask.h"
#include "control/driver/genuine.h"
#include "control/driver/interpose.h"
#include "control/driver/thread.h"

/* ncclResult_t */
enum result {
	SUCCESS = 0,
	SYSTEM_ERROR = 2,
	INVALID_ARGUMENT = 4,
	INVALID_USAGE = 5,
};

#define TEXT	   1024
#define REST_S	   30 /* that the job may take to come to rest */
#define REST_S_MAX 3600
#define MOVE_MS	   600000 /* for all else: others' transactions first, copies, the way back */
#define LOOK_MS	   30000

/* Held briefly, while the state of this file is read or changed. */
static pthread_mutex_t lock LIEN_ZERO_IN_CHILD;

/* A whole number in the environment; `otherwise`: there is none within these limits. */
static long number_of(const char *variable, long least, long most, long otherwise)
{
	const char *text = getenv(variable);
	char *end = NULL;
	long number = text ? strtol(text, &end, 10) : 0;

	return text && text[0] && !*end && number >= least && number <= most ? number : otherwise;
}

/* --- what failed last ------------------------------------------------------------------------- */

static char last[TEXT] LIEN_ZERO_IN_CHILD; /* ours; "": none */
static char before[TEXT];		   /* what NCCL's own last error was then */

static const char *nccls_last(lien_nccl_comm comm)
{
	__typeof__(lien_ncclGetLastError) *genuine = lien_nccl_genuine("ncclGetLastError");
	const char *text = genuine ? genuine(comm) : NULL;

	return text ? text : "";
}

/* Notes why a call fails, for ncclGetLastError() and on standard error. Returns result. */
__attribute__((format(printf, 3, 4))) static int fail(
	int result, const char *call, const char *format, ...)
{
	const char *nccls = nccls_last(NULL);
	char text[TEXT];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "lien: %s: %s\n", call, text);
	pthread_mutex_lock(&lock);
	snprintf(last, sizeof(last), "lien: %.40s: %.960s", call, text);
	snprintf(before, sizeof(before), "%s", nccls);
	pthread_mutex_unlock(&lock);
	return result;
}

/* NCCL's own, if it has failed since. */
const char *lien_ncclGetLastError(lien_nccl_comm comm)
{
	const char *nccls = nccls_last(comm);
	int ours;

	pthread_mutex_lock(&lock);
	ours = last[0] && !strncmp(nccls, before, sizeof(before) - 1);
	pthread_mutex_unlock(&lock);
	return ours ? last : nccls;
}

int lien_ncclGetVersion(int *version)
{
	__typeof__(lien_ncclGetVersion) *genuine = lien_nccl_genuine("ncclGetVersion");
	const long wanted = number_of("LIEN_NCCL_VERSION", 1, 9999999, 0);

	if (!version)
		return INVALID_ARGUMENT;
	if (wanted) {
		*version = wanted;
		return SUCCESS;
	}
	return genuine ? genuine(version)
		       : fail(SYSTEM_ERROR, "ncclGetVersion", "NCCL is not loaded");
}

/* --- requests to the agent, and what becomes of its refusals ---------------------------------- */

static int refused(const char *call, const struct lien_asked *asked)
{
	const char *code = asked->code;
	const int usage = !strcmp(code, "refused") || !strcmp(code, "not-at-rest");

	return fail(usage		       ? INVALID_USAGE
		    : !strcmp(code, "invalid") ? INVALID_ARGUMENT
					       : SYSTEM_ERROR,
		call, "%s", asked->text);
}

/* Asks for something that moves nothing; as lien_ask(). */
static int look(const char *call, const char *request, struct lien_asked *asked)
{
	return lien_ask(request, LOOK_MS, asked) ? refused(call, asked) : SUCCESS;
}

/* All ranks move it together, so that its turns have the same numbers in all of them. */
struct turns {
	int away;
	uint64_t last;
};

/* Carries out a request: the members that all have are added. If it is not `away` or back there
 * already, as wanted, that is another turn. */
static int move(const char *call, const char *what, struct turns *turns, int away)
{
	const unsigned timeout_ms = number_of("LIEN_NCCL_TIMEOUT", 1, REST_S_MAX, REST_S) * 1000;
	struct lien_asked asked = {0};
	char request[4096], together[24] = "true";
	uint64_t turn;
	int length;

	pthread_mutex_lock(&lock);
	turn = turns->away == away ? 0 : turns->last + 1;
	pthread_mutex_unlock(&lock);
	if (turn)
		snprintf(together, sizeof(together), "%" PRIu64, turn);
	length = snprintf(request, sizeof(request),
		"{%s, \"together\": %s, \"wait\": true, \"timeout_ms\": %u}\n", what, together,
		timeout_ms);
	if (length < 0 || (size_t)length >= sizeof(request))
		return fail(SYSTEM_ERROR, call, "the request is too long");
	if (lien_ask(request, MOVE_MS + timeout_ms, &asked))
		return refused(call, &asked);
	pthread_mutex_lock(&lock);
	if (turns->last + 1 == turn) /* no other thread was faster */
		*turns = (struct turns){away, turn};
	pthread_mutex_unlock(&lock);
	return SUCCESS;
}

/* --- AMem's functions -------------------------------------------------------------------------
 *
 * A group id belongs to the communicators that the process makes while it is set. Pausing twice
 * moves what has come back meanwhile, and is no error; neither is resuming twice.
 */

#define CHANGES_MAX 64 /* of the group id */

/* From `since` until the next change. */
struct change {
	int id;
	uint64_t since_ns;
};

struct group {
	int id;
	struct turns turns;
};

static struct change changes[CHANGES_MAX];
static unsigned changes_count; /* 0: not set yet */
static struct group groups[CHANGES_MAX];
static unsigned groups_count LIEN_ZERO_IN_CHILD;

static int current_id(void)
{
	if (!changes_count) /* AMem's variable for programs that do not call ncclSetGroupID() */
		changes[changes_count++].id = number_of("AMEM_GROUPID", LONG_MIN, LONG_MAX, 0);
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
	return full ? fail(INVALID_USAGE, "ncclSetGroupID",
			      "the group id has been changed %d times, which is all", CHANGES_MAX)
		    : SUCCESS;
}

int lien_ncclGetGroupID(int *id)
{
	if (!id)
		return fail(INVALID_ARGUMENT, "ncclGetGroupID", "the argument is NULL");
	pthread_mutex_lock(&lock);
	*id = current_id();
	pthread_mutex_unlock(&lock);
	return SUCCESS;
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

/* Moves what the current group id has. */
static int move_group(const char *call, const char *op, int paused)
{
	char what[3600], periods[3072];
	struct group *group;
	int id;

	pthread_mutex_lock(&lock);
	id = current_id();
	group = group_of(id);
	write_periods(id, periods, sizeof(periods));
	pthread_mutex_unlock(&lock);
	snprintf(what, sizeof(what), "\"op\": %s, \"comms_made\": %s", op, periods);
	return move(call, what, &group->turns, paused);
}

int lien_ncclPause(lien_nccl_comm *ignored)
{
	(void)ignored;
	return move_group("ncclPause", "\"offload\", \"owner\": \"nccl\"", 1);
}

int lien_ncclResume(lien_nccl_comm *ignored)
{
	(void)ignored;
	return move_group("ncclResume", "\"restore\"", 0);
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
	result = look(
		"ncclMemStats", "{\"op\": \"mem\", \"by\": \"callsite\", \"pid\": 0}\n", &asked);
	if (result)
		return result;
	show(&row);
	fprintf(stderr,
		"lien: groupID:%d pid:%d total allocBytes:%" PRIu64 " offloaded:%" PRIu64 "\n",
		row.id, getpid(), row.all, row.all_offloaded);
	return SUCCESS;
}

/* --- the functions of NCCL 2.29.7 -------------------------------------------------------------
 *
 * As there, a second suspend and a second resume are invalid usage, and flags other than
 * NCCL_SUSPEND_MEM mean nothing.
 */

/* NCCL_SUSPEND_MEM */
#define SUSPEND_MEM 1

/* A restore for a communicator can be the same as one for a group id: their turns are not. */
#define FIRST_TURN (1ull << 32)

/* One that has been suspended. Another one made at its address is another entry. */
struct known {
	SLIST_ENTRY(known) entry;
	lien_nccl_comm comm;
	char group[17];
	uint64_t made_ns;
	struct turns turns;
};

/* What the agent says of a communicator. */
struct seen {
	char group[17];
	uint64_t made_ns, bytes, movable, offloaded;
};

static SLIST_HEAD(, known) all_known LIEN_ZERO_IN_CHILD; /* a child has made none */

/* NULL: out of memory. Call it with the lock held. It is never freed. */
static struct known *known_of(lien_nccl_comm comm, const struct seen *seen)
{
	struct known *known;

	SLIST_FOREACH (known, &all_known, entry)
		if (known->comm == comm && known->made_ns == seen->made_ns &&
			!strcmp(known->group, seen->group))
			break;
	if (!known && (known = calloc(1, sizeof(*known)))) {
		*known = (struct known){
			.comm = comm, .made_ns = seen->made_ns, .turns.last = FIRST_TURN - 1};
		memcpy(known->group, seen->group, sizeof(known->group));
		SLIST_INSERT_HEAD(&all_known, known, entry);
	}
	return known;
}

static void take(void *context, const struct lien_json_piece *path, unsigned depth,
	const struct lien_json_piece *value)
{
	struct seen *seen = context;

	if (depth != 1)
		return;
	if (lien_json_is(&path[0], "group"))
		lien_json_copy(value, seen->group, sizeof(seen->group));
	else if (lien_json_is(&path[0], "made_ns"))
		seen->made_ns = lien_json_number(value);
	else if (lien_json_is(&path[0], "bytes"))
		seen->bytes = lien_json_number(value);
	else if (lien_json_is(&path[0], "movable_bytes"))
		seen->movable = lien_json_number(value);
	else if (lien_json_is(&path[0], "offloaded_bytes"))
		seen->offloaded = lien_json_number(value);
}

static int look_at(const char *call, lien_nccl_comm comm, struct seen *seen)
{
	struct lien_asked asked = {.fn = take, .context = seen};
	char request[80];

	memset(seen, 0, sizeof(*seen));
	if (!comm)
		return fail(INVALID_ARGUMENT, call, "the communicator is NULL");
	snprintf(request, sizeof(request), "{\"op\": \"comm\", \"address\": \"0x%" PRIxPTR "\"}\n",
		(uintptr_t)comm);
	return look(call, request, &asked);
}

/* `suspend`: what it is to be. */
static int move_comm(const char *call, const char *op, lien_nccl_comm comm, int suspend)
{
	struct known *known;
	struct seen seen;
	char what[200];
	int result = look_at(call, comm, &seen), before;

	if (result)
		return result;
	pthread_mutex_lock(&lock);
	known = known_of(comm, &seen);
	before = known && known->turns.away;
	pthread_mutex_unlock(&lock);
	if (!known)
		return fail(SYSTEM_ERROR, call, "out of memory");
	if (before == suspend)
		return fail(INVALID_USAGE, call, "the communicator is %s suspended",
			suspend ? "already" : "not");
	snprintf(what, sizeof(what), "\"op\": %s, \"comms\": [\"0x%" PRIxPTR "\"]", op,
		(uintptr_t)comm);
	return move(call, what, &known->turns, suspend);
}

int lien_ncclCommSuspend(lien_nccl_comm comm, int flags)
{
	struct seen seen;

	if (!(flags & SUSPEND_MEM))
		return look_at("ncclCommSuspend", comm, &seen);
	/* Who calls NCCL with a suspended communicator all the same gets it back. */
	return move_comm("ncclCommSuspend",
		"\"offload\", \"owner\": \"nccl\", \"on_use\": \"restore\"", comm, 1);
}

int lien_ncclCommResume(lien_nccl_comm comm)
{
	return move_comm("ncclCommResume", "\"restore\"", comm, 0);
}

int lien_ncclCommMemStats(lien_nccl_comm comm, int stat, uint64_t *value)
{
	static const char call[] = "ncclCommMemStats";
	struct known *known;
	struct seen seen;
	uint64_t values[4];
	int result = look_at(call, comm, &seen);

	if (result)
		return result;
	if (!value)
		return fail(INVALID_ARGUMENT, call, "the value is NULL");
	pthread_mutex_lock(&lock);
	known = known_of(comm, &seen);
	values[1] = known && known->turns.away;
	pthread_mutex_unlock(&lock);
	/* By ncclCommMemStat_t: bytes that can be suspended, or are; 1: they are; bytes that stay;
	 * all. */
	values[0] = seen.movable + seen.offloaded;
	values[2] = seen.bytes - values[0];
	values[3] = seen.bytes;
	if (stat < 0 || stat > 3)
		return fail(INVALID_ARGUMENT, call, "there is no statistic %d", stat);
	*value = values[stat];
	return SUCCESS;
}
