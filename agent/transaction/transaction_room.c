// SPDX-License-Identifier: BSD-2-Clause
/* A restore to a device that somebody else has filled meanwhile. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/bytes.h"
#include "agent/transaction/transaction_internal.h"

struct shortage {
	const struct lien_wire_room *room; /* of the first process that needs it */
	/* that process's index, and the number of others that need it */
	unsigned first, more;
	uint64_t needed, free_bytes;
};

void lien_room_reply(
	struct participant *participant, const struct lien_wire_header *reply, const void *body)
{
	unsigned n = (reply->length - sizeof(*reply)) / sizeof(participant->rooms[0]);

	participant->rooms_count = n < LIEN_WIRE_DEVICES ? n : LIEN_WIRE_DEVICES;
	if (n)
		memcpy(participant->rooms, body,
			participant->rooms_count * sizeof(participant->rooms[0]));
}

/* What one process says of one device. */
struct need {
	const struct lien_wire_room *room;
	unsigned process;
};

/* Is it known which device it is? */
static bool is_named(const struct lien_wire_room *room)
{
	static const uint8_t unknown[sizeof(room->uuid)];

	return memcmp(room->uuid, unknown, sizeof(unknown));
}

static int by_place(const struct need *a, const struct need *b)
{
	if (a->process != b->process)
		return a->process < b->process ? -1 : 1;
	return (a->room > b->room) - (a->room < b->room);
}

static int by_device(const void *a, const void *b)
{
	const struct need *x = a, *y = b;
	int order = memcmp(x->room->uuid, y->room->uuid, sizeof(x->room->uuid));

	return order ? order : by_place(x, y);
}

static uint64_t add(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

/* Adds up what the participants need of a device. */
static struct shortage shortage_of(
	const struct lien_transaction *t, const struct need *needs, unsigned count)
{
	struct shortage shortage = {NULL, 0, 0, 0, UINT64_MAX};
	unsigned i;

	for (i = 0; i < count; i++) {
		if (!t->participants[needs[i].process].member)
			continue;
		if (!shortage.room) {
			shortage.room = needs[i].room;
			shortage.first = needs[i].process;
		} else {
			shortage.more++;
		}
		shortage.needed = add(shortage.needed, needs[i].room->needed);
		if (needs[i].room->free_bytes < shortage.free_bytes)
			shortage.free_bytes = needs[i].room->free_bytes;
	}
	return shortage;
}

static void report(struct lien_transaction *t, const struct shortage *shortage)
{
	int number = t->ops.gpu ? t->ops.gpu(t->ops.context, shortage->room->uuid) : -1;
	char device[64], whom[64] = "", more[32] = "";
	uint32_t pid = t->processes[shortage->first].pid;

	if (shortage->more)
		snprintf(more, sizeof(more), " and %u more", shortage->more);
	if (number >= 0) {
		snprintf(device, sizeof(device), "GPU %d", number);
		snprintf(whom, sizeof(whom), " for process %u%s", pid, more);
	} else {
		snprintf(device, sizeof(device), "device %u of process %u%s",
			shortage->room->device, pid, more);
	}
	lien_transaction_fail(t, -ENOSPC, pid, "%s needs %s%s and has %s free: free %s there",
		device, lien_bytes(shortage->needed).text, whom,
		lien_bytes(shortage->free_bytes).text,
		lien_bytes(shortage->needed - shortage->free_bytes).text);
}

/* Excludes a process, and all that share with it. */
static void leave_out(struct lien_transaction *t, unsigned index)
{
	unsigned i;

	t->participants[index].member = false;
	for (i = 0; i < t->count; i++)
		if (t->participants[i].member && lien_restore_related(t, index, i))
			leave_out(t, i);
}

/* The needs of one device, which follow one another. */
struct device {
	const struct need *needs;
	unsigned count;
};

static int by_first(const void *a, const void *b)
{
	const struct device *x = a, *y = b;

	return by_place(x->needs, y->needs);
}

static unsigned list_needs(const struct lien_transaction *t, struct need *needs)
{
	unsigned i, j, n = 0;

	for (i = 0; i < t->count; i++)
		for (j = 0; t->participants[i].member && j < t->participants[i].rooms_count; j++)
			needs[n++] = (struct need){&t->participants[i].rooms[j], i};
	qsort(needs, n, sizeof(*needs), by_device);
	return n;
}

/* In the order of the processes that need them. */
static unsigned list_devices(struct device *devices, const struct need *needs, unsigned count)
{
	unsigned i, n = 0;

	for (i = 0; i < count; i++)
		if (i && is_named(needs[i].room) &&
			!memcmp(needs[i].room->uuid, needs[i - 1].room->uuid,
				sizeof(needs[i].room->uuid)))
			devices[n - 1].count++;
		else
			devices[n++] = (struct device){&needs[i], 1};
	qsort(devices, n, sizeof(*devices), by_first);
	return n;
}

/* Who is left out leaves more to the others, so each device has to be looked at once. */
void lien_room_check(struct lien_transaction *t)
{
	unsigned i, count = 0;
	struct shortage shortage;
	struct device *devices;
	struct need *needs;

	for (i = 0; i < t->count; i++)
		count += t->participants[i].rooms_count;
	needs = calloc(count + 1, sizeof(*needs));
	devices = calloc(count + 1, sizeof(*devices));
	count = needs && devices ? list_devices(devices, needs, list_needs(t, needs)) : 0;
	for (i = 0; i < count; i++)
		for (;;) {
			shortage = shortage_of(t, devices[i].needs, devices[i].count);
			if (shortage.needed <= shortage.free_bytes)
				break;
			report(t, &shortage);
			leave_out(t, shortage.first);
		}
	free(devices);
	free(needs);
}

bool lien_room_failed(struct lien_transaction *t, unsigned index)
{
	const struct participant *participant = &t->participants[index];
	unsigned i;

	for (i = 0; i < participant->rooms_count; i++) {
		const struct lien_wire_room *room = &participant->rooms[i];
		struct shortage shortage = {room, index, 0, room->needed, room->free_bytes};

		if (room->needed <= room->free_bytes)
			continue;
		report(t, &shortage);
		return true;
	}
	return false;
}
