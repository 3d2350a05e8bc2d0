// SPDX-License-Identifier: BSD-2-Clause
/* A restore to a device that somebody else has filled meanwhile. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/offload/transaction_internal.h"

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

static bool same_device(const struct lien_wire_room *a, const struct lien_wire_room *b)
{
	static const uint8_t unknown[sizeof(a->uuid)];

	return !memcmp(a->uuid, b->uuid, sizeof(a->uuid)) &&
	       memcmp(a->uuid, unknown, sizeof(a->uuid));
}

static uint64_t add(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

/* Adds up what all participants need of one participant's device. */
static struct shortage shortage_of(
	const struct lien_transaction *t, unsigned index, const struct lien_wire_room *room)
{
	struct shortage shortage = {room, index, 0, room->needed, room->free_bytes};
	unsigned i, j;

	for (i = 0; i < t->count; i++)
		for (j = 0; i != index && t->participants[i].member &&
			    j < t->participants[i].rooms_count;
			j++) {
			const struct lien_wire_room *other = &t->participants[i].rooms[j];

			if (!same_device(room, other))
				continue;
			shortage.more++;
			shortage.needed = add(shortage.needed, other->needed);
			if (other->free_bytes < shortage.free_bytes)
				shortage.free_bytes = other->free_bytes;
		}
	return shortage;
}

static const char *size_text(char *text, size_t size, uint64_t bytes)
{
	const uint64_t mib = 1ull << 20, gib = 1ull << 30;

	if (bytes < gib)
		snprintf(text, size, "%.1f MiB", (double)bytes / mib);
	else
		snprintf(text, size, "%.1f GiB", (double)bytes / gib);
	return text;
}

static void report(struct lien_transaction *t, const struct shortage *shortage)
{
	int number = t->ops.gpu ? t->ops.gpu(t->ops.context, shortage->room->uuid) : -1;
	char device[64], whom[64] = "", more[32] = "", needed[32], has[32], missing[32];
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
	lien_transaction_fail(t, -ENOSPC, "%s needs %s%s and has %s free: free %s there", device,
		size_text(needed, sizeof(needed), shortage->needed), whom,
		size_text(has, sizeof(has), shortage->free_bytes),
		size_text(missing, sizeof(missing), shortage->needed - shortage->free_bytes));
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

/* Finds a device that has too little. */
static bool find_shortage(const struct lien_transaction *t, struct shortage *shortage)
{
	unsigned i, j;

	for (i = 0; i < t->count; i++)
		for (j = 0; t->participants[i].member && j < t->participants[i].rooms_count; j++) {
			*shortage = shortage_of(t, i, &t->participants[i].rooms[j]);
			if (shortage->needed > shortage->free_bytes)
				return true;
		}
	return false;
}

void lien_room_check(struct lien_transaction *t)
{
	struct shortage shortage;

	while (find_shortage(t, &shortage)) {
		report(t, &shortage);
		leave_out(t, shortage.first);
	}
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
