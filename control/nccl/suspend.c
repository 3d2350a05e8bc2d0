// SPDX-License-Identifier: BSD-2-Clause
/*
 * The functions of NCCL 2.29.7. As there, a second suspend and a second resume are invalid usage,
 * and flags other than NCCL_SUSPEND_MEM mean nothing.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/ask/ask.h"
#include "control/driver/thread.h"
#include "control/nccl/nccl.h"

/* A restore for a communicator can be the same as one for a group id: their turns are not. */
#define FIRST_TURN (1ull << 32)

/* One that has been suspended. Another one may be made at its address. */
struct known {
	lien_nccl_comm comm;
	char group[17];
	uint64_t made_ns;
	int suspended;
	uint64_t turns; /* all ranks suspend and resume it together */
};

/* What the agent says of a communicator. */
struct seen {
	char group[17];
	uint64_t made_ns, bytes, movable, offloaded;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct known *known;
static unsigned count, room;

/* NULL: out of memory. Call it with the lock held; what it returns is valid as long. */
static struct known *known_of(lien_nccl_comm comm, const struct seen *seen)
{
	const unsigned more = room ? 2 * room : 16;
	struct known *found = NULL, *grown;
	unsigned i;

	for (i = 0; i < count && !found; i++)
		if (known[i].comm == comm)
			found = &known[i];
	if (!found && count == room) {
		grown = realloc(known, more * sizeof(*grown));
		if (!grown)
			return NULL;
		known = grown;
		room = more;
	}
	if (!found) {
		found = &known[count++];
		*found = (struct known){.comm = comm};
	}
	if (strcmp(found->group, seen->group) || found->made_ns != seen->made_ns) {
		*found = (struct known){.comm = comm, .made_ns = seen->made_ns};
		memcpy(found->group, seen->group, sizeof(found->group));
	}
	return found;
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

static int look(const char *call, lien_nccl_comm comm, struct seen *seen)
{
	struct lien_asked asked = {.fn = take, .context = seen};
	char request[80];

	memset(seen, 0, sizeof(*seen));
	if (!comm)
		return lien_nccl_fail(LIEN_NCCL_INVALID_ARGUMENT, call, "the communicator is NULL");
	snprintf(request, sizeof(request), "{\"op\": \"comm\", \"address\": \"0x%" PRIxPTR "\"}\n",
		(uintptr_t)comm);
	return lien_nccl_look(call, request, &asked);
}

/* `suspend`: what it is to be. */
static int move(const char *call, const char *op, lien_nccl_comm comm, int suspend)
{
	struct known *found;
	struct seen seen;
	char what[200];
	uint64_t turn;
	int result = look(call, comm, &seen), before;

	if (result)
		return result;
	pthread_mutex_lock(&lock);
	found = known_of(comm, &seen);
	before = found && found->suspended;
	turn = found ? FIRST_TURN + found->turns : 0;
	pthread_mutex_unlock(&lock);
	if (!turn)
		return lien_nccl_fail(LIEN_NCCL_SYSTEM_ERROR, call, "out of memory");
	if (before == suspend)
		return lien_nccl_fail(LIEN_NCCL_INVALID_USAGE, call,
			"the communicator is %s suspended", suspend ? "already" : "not");
	snprintf(what, sizeof(what), "\"op\": %s, \"comms\": [\"0x%" PRIxPTR "\"]", op,
		(uintptr_t)comm);
	result = lien_nccl_move(call, what, turn);
	if (result)
		return result;
	pthread_mutex_lock(&lock);
	found = known_of(comm, &seen);
	if (found && FIRST_TURN + found->turns == turn) { /* no other thread was faster */
		found->turns++;
		found->suspended = suspend;
	}
	pthread_mutex_unlock(&lock);
	return LIEN_NCCL_SUCCESS;
}

int lien_ncclCommSuspend(lien_nccl_comm comm, int flags)
{
	struct seen seen;

	if (!(flags & LIEN_NCCL_SUSPEND_MEM))
		return look("ncclCommSuspend", comm, &seen);
	/* Who calls NCCL with a suspended communicator all the same gets it back. */
	return move("ncclCommSuspend", "\"offload\", \"owner\": \"nccl\", \"on_use\": \"restore\"",
		comm, 1);
}

int lien_ncclCommResume(lien_nccl_comm comm)
{
	return move("ncclCommResume", "\"restore\"", comm, 0);
}

int lien_ncclCommMemStats(lien_nccl_comm comm, int stat, uint64_t *value)
{
	static const char call[] = "ncclCommMemStats";
	struct known *found;
	struct seen seen;
	int result = look(call, comm, &seen), suspended;

	if (result)
		return result;
	if (!value)
		return lien_nccl_fail(LIEN_NCCL_INVALID_ARGUMENT, call, "the value is NULL");
	pthread_mutex_lock(&lock);
	found = known_of(comm, &seen);
	suspended = found && found->suspended;
	pthread_mutex_unlock(&lock);
	switch (stat) {
	case LIEN_NCCL_STAT_SUSPEND:
		*value = seen.movable + seen.offloaded;
		return LIEN_NCCL_SUCCESS;
	case LIEN_NCCL_STAT_SUSPENDED:
		*value = suspended;
		return LIEN_NCCL_SUCCESS;
	case LIEN_NCCL_STAT_PERSIST:
		*value = seen.bytes - seen.movable - seen.offloaded;
		return LIEN_NCCL_SUCCESS;
	case LIEN_NCCL_STAT_TOTAL:
		*value = seen.bytes;
		return LIEN_NCCL_SUCCESS;
	}
	return lien_nccl_fail(LIEN_NCCL_INVALID_ARGUMENT, call, "there is no statistic %d", stat);
}

static void forked(void)
{
	const pthread_mutex_t free = PTHREAD_MUTEX_INITIALIZER;

	lock = free;
	count = 0;
}

LIEN_FORKED(forked);
