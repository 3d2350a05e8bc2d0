// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a restore brings back, and which processes take part: they list what they hold, and those
 * that share memory go together, unless a device has too little room.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/graph/bytes.h"
#include "agent/graph/array.h"
#include "agent/transaction/transaction_internal.h"

bool lien_restore_may_share(const struct lien_transaction *t, unsigned i, unsigned j)
{
	return !t->ops.may_share ||
	       t->ops.may_share(t->ops.context, t->processes[i].pid, t->processes[j].pid);
}

/* Do two processes hold parts of the same memory? */
static bool related(const struct lien_transaction *t, unsigned from, unsigned to)
{
	const struct participant *a = &t->participants[from], *b = &t->participants[to];

	return lien_restore_may_share(t, from, to) &&
	       (lien_numbers_meet(&a->tokens, &b->tokens) ||
		       lien_numbers_meet(&a->teams, &b->teams));
}

/* --- parts ------------------------------------------------------------------------------------ */

/*
 * Restores in parts. Each part goes through all phases of a restore, the opening of the gates
 * included, as a restore for chosen groups does; the last one brings back everything that is left,
 * whatever it belongs to, as an ordinary restore does. So a part leaves no state between processes
 * that another restore could not continue.
 */

/* Each brings back something: a wrong answer of ops->next_part ends here. */
#define PARTS_MAX 4096

/* What this part brings back: groups, and behind them tags; `count` of both, 0: all. */
static const uint64_t *part_chosen(
	const struct lien_transaction *t, unsigned *groups, unsigned *count)
{
	*groups = t->part_count ? t->part_count : t->result.groups_count;
	*count = t->part_count ? t->part_count : lien_transaction_chosen(t);
	return t->part_count ? t->part : t->result.groups;
}

uint32_t lien_part_flag(const struct lien_transaction *t)
{
	unsigned groups, all;

	part_chosen(t, &groups, &all);
	return all ? LIEN_WIRE_CHOSEN : 0;
}

/* Returns false if memory is short, or some of them were to come back before. */
static bool add_parted(struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->part_count; i++)
		if (lien_u64_have(t->parted, t->parted_count, t->part[i]))
			return false;
	if (lien_array_reserve(&t->parted, t->parted_count + t->part_count, &t->parted_room,
		    sizeof(*t->parted)))
		return false;
	memcpy(t->parted + t->parted_count, t->part, t->part_count * sizeof(*t->part));
	t->parted_count += t->part_count;
	return true;
}

/* Chooses the groups that this part brings back; none: it is the last part, and brings back all. */
static void choose_part(struct lien_transaction *t)
{
	t->part_count = 0;
	if (!t->part)
		t->part = calloc(LIEN_WIRE_CHOSEN_MAX, sizeof(*t->part));
	t->result.processes = t->processes;
	t->result.processes_count = t->count;
	if (t->part && !t->together && t->result.parts < PARTS_MAX)
		t->part_count = t->ops.next_part(t->ops.context, &t->result, t->part,
			LIEN_WIRE_CHOSEN_MAX, t->result.undivided, sizeof(t->result.undivided));
	if (t->part_count && !add_parted(t))
		t->part_count = 0;
}

/* Clears what the previous part noted of a process. A process that is gone stays gone. */
static void forget_part(struct participant *participant)
{
	participant->member = true;
	participant->count = participant->named = participant->rooms_count = 0;
	participant->withheld = participant->created = participant->exported = false;
	participant->uncreated = participant->filled = participant->unfilled = false;
	participant->lost_owner = 0;
	participant->owner_lives = false;
}

/* Begins the next part, or the only one, before processes are asked what they hold. */
static void part_begin(struct lien_transaction *t)
{
	unsigned i;

	if (!t->divided)
		return;
	for (i = 0; i < t->count; i++) {
		t->participants[i].before = t->processes[i];
		if (t->result.parts)
			forget_part(&t->participants[i]);
	}
	choose_part(t);
	t->result.parts++;
}

/* Has anything happened that the last part cannot mend? Then the error stays; the last part still
 * brings back what needs neither a lost owner nor a silent process. */
static bool is_final(const struct lien_transaction *t)
{
	unsigned i;

	for (i = 0; i < t->count; i++)
		if (t->participants[i].gone)
			return true;
	return t->result.lost;
}

/* The next part is the last one, and brings back what this one has not. The error is dropped: what
 * counts is whether that part succeeds. */
static void try_again(struct lien_transaction *t)
{
	unsigned i;

	t->together = true;
	if (is_final(t))
		return;
	t->failing = false;
	t->result.error = 0;
	t->result.text[0] = t->result.undo_text[0] = 0;
	t->result.blame = (struct lien_blame){0};
	for (i = 0; i < t->count; i++) {
		struct lien_transaction_process *before = &t->participants[i].before,
						*process = &t->processes[i];

		if (!process->failed)
			continue;
		memcpy(before->phase_ns, process->phase_ns, sizeof(before->phase_ns));
		before->lends = process->lends;
		*process = *before;
	}
}

bool lien_restore_part_over(struct lien_transaction *t)
{
	unsigned i;

	if (!t->divided)
		return false;
	for (i = 0; i < t->count; i++)
		t->participants[i].involved |= t->participants[i].member;
	if (!t->part_count)
		return false;
	t->result.processes = t->processes;
	t->result.processes_count = t->count;
	t->ops.part_back(t->ops.context, t);
	if (t->result.parts == 1 && !t->result.error)
		t->result.first_ns = t->ops.now_ns(t->ops.context) - t->t_start;
	if (t->result.error)
		try_again(t);
	lien_phase_begin(t, LIEN_PHASE_LIST);
	return true;
}

/* --- room ------------------------------------------------------------------------------------- */

/* Somebody else may have filled a device meanwhile. */
struct shortage {
	const struct lien_wire_room *room; /* of the first process that needs it */
	/* that process's index, and the number of others that need it */
	unsigned first, more;
	uint64_t needed, free_bytes;
};

void lien_room_part(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	struct participant *participant = &t->participants[index];
	unsigned n = reply->size / sizeof(participant->rooms[0]);

	if (!(reply->header->flags & LIEN_WIRE_ROOM))
		return;
	participant->rooms_count = n < LIEN_WIRE_DEVICES ? n : LIEN_WIRE_DEVICES;
	if (n)
		memcpy(participant->rooms, reply->body,
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
		if (t->participants[i].member && related(t, index, i))
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

/* Excludes processes for whose memory a device has too little room, and those that share with them:
 * nothing is created for them. That leaves more to the others, so each device has to be looked at
 * once. */
static void check_room(struct lien_transaction *t)
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

/* --- who takes part --------------------------------------------------------------------------- */

static bool asked_for(const struct lien_transaction *t, uint32_t pid)
{
	return !t->pids_count || lien_pids_have(t->pids, t->pids_count, pid);
}

static bool is_allowed(const struct lien_transaction *t, unsigned i)
{
	return !t->ops.allowed || t->ops.allowed(t->ops.context, t->processes[i].pid);
}

/*
 * Chooses the participants: requested processes that have something away, and all processes that
 * share it.
 */
static void choose_members(struct lien_transaction *t)
{
	bool grown = true;
	unsigned i, j;

	for (i = 0; i < t->count; i++) {
		struct participant *participant = &t->participants[i];

		participant->member = participant->count && !participant->gone &&
				      asked_for(t, t->processes[i].pid) && is_allowed(t, i);
	}
	while (grown) {
		grown = false;
		for (i = 0; i < t->count; i++)
			for (j = 0; j < t->count; j++)
				if (t->participants[i].member && !t->participants[j].member &&
					!t->participants[j].gone && related(t, i, j))
					grown = t->participants[j].member = true;
	}
}

/*
 * A living process that did not say what it holds may hold what others need; a process that may not
 * be ordered to put it back does. These, and all that share with them, stay as they are.
 */
static bool withheld_by(const struct lien_transaction *t, unsigned i, unsigned j)
{
	return t->participants[j].withheld &&
	       (t->participants[j].gone ? lien_restore_may_share(t, i, j) : related(t, i, j));
}

/* A process that has not been heard may have memory that objects join with this one's. */
static void withhold_team(struct lien_transaction *t, unsigned i)
{
	struct participant *participant = &t->participants[i];
	const uint32_t pid = t->processes[i].pid;
	unsigned team;

	if (!participant->member || !t->ops.unheard)
		return;
	for (team = 0; team < participant->teams.count; team++)
		if (t->ops.unheard(t->ops.context, pid, participant->teams.number[team]))
			break;
	if (team == participant->teams.count)
		return;
	participant->withheld = true;
	lien_transaction_fail(t, -EBUSY, pid,
		"a multicast object joins memory of process %u with other memory, and another "
		"process has not said yet what it holds (it may be stopped): try again",
		pid);
}

static void withhold(struct lien_transaction *t)
{
	bool grown = true;
	unsigned i, j;

	for (i = 0; i < t->count; i++) {
		struct participant *participant = &t->participants[i];

		participant->withheld = participant->gone && lien_transaction_alive(t, i);
		withhold_team(t, i);
		if (!participant->member || is_allowed(t, i))
			continue;
		participant->withheld = true;
		lien_transaction_fail(t, -EPERM, 0,
			"a process of another user shares what is to be restored: only root can do "
			"that");
	}
	while (grown) {
		grown = false;
		for (i = 0; i < t->count; i++)
			for (j = 0; j < t->count && !t->participants[i].withheld; j++)
				grown |= t->participants[i].withheld = withheld_by(t, i, j);
	}
	for (i = 0; i < t->count; i++)
		t->participants[i].member &= !t->participants[i].withheld;
}

static void describe(
	struct lien_transaction_process *process, const struct participant *participant)
{
	unsigned i;

	for (i = 0; i < participant->count; i++) {
		const struct lien_wire_item *item = &participant->items[i];

		if (item->flags & LIEN_WIRE_HERE)
			continue;
		process->mappings++;
		if (item->index)
			continue;
		if (item->flags & LIEN_WIRE_OWNED) {
			process->allocations++;
			if (item->flags & LIEN_WIRE_WORTHLESS)
				process->discarded += item->allocation_bytes;
			else
				process->bytes += item->allocation_bytes;
		} else {
			process->imports++;
		}
	}
}

static int add_participant(struct lien_transaction *t, uint32_t pid)
{
	struct lien_transaction_process *processes;
	struct participant *participants;

	processes = realloc(t->processes, (t->count + 2) * sizeof(*processes));
	if (!processes)
		return -ENOMEM;
	t->processes = processes;
	participants = realloc(t->participants, (t->count + 2) * sizeof(*participants));
	if (!participants)
		return -ENOMEM;
	t->participants = participants;
	memset(&processes[t->count], 0, 2 * sizeof(*processes));
	memset(&participants[t->count], 0, 2 * sizeof(*participants));
	lien_transaction_name(t, t->count, pid);
	participants[t->count++].member = true;
	return 0;
}

/* Is it an owner that has not been asked, because nobody knew that it holds something? */
static bool is_unasked(
	const struct lien_transaction *t, unsigned index, const struct lien_wire_item *item)
{
	return !item->index && item->flags & LIEN_WIRE_IMPORTED &&
	       lien_transaction_index(t, item->owner_pid) < 0 &&
	       t->ops.alive(t->ops.context, item->owner_pid, item->owner_start) &&
	       (!t->ops.may_share ||
		       t->ops.may_share(t->ops.context, t->processes[index].pid, item->owner_pid));
}

/* With other nodes, nothing is touched before all have answered. */
static bool list_enter(struct lien_transaction *t)
{
	if (t->ops.may_go_on && t->result.error) { /* cancelled */
		lien_transaction_end(t);
		return false;
	}
	if (lien_transaction_may_go_on(t, LIEN_POINT_PLANNED) != LIEN_GO_ON_YES)
		return false;
	part_begin(t);
	return true;
}

static void list_order(struct lien_transaction *t, unsigned index)
{
	unsigned groups, all;
	const uint64_t *numbers = part_chosen(t, &groups, &all);

	lien_transaction_order(t, index, LIEN_PHASE_LIST, LIEN_WIRE_ROOM | lien_part_flag(t),
		numbers, all * sizeof(*numbers));
}

static void list_arguments(const struct lien_transaction *t, enum lien_phase phase,
	struct lien_wire_header *order, const void *body)
{
	unsigned groups, all;

	(void)phase, (void)body;
	part_chosen(t, &groups, &all);
	order->arg2 = groups;
}

/* One that is stopped would keep the others waiting, and stays as it is, with all that may share
 * with it. */
static void ask_owner(struct lien_transaction *t, unsigned index)
{
	const uint32_t pid = t->processes[index].pid;
	char remedy[LIEN_REMEDY];

	if (!t->ops.stopped || !t->ops.stopped(t->ops.context, pid, remedy)) {
		list_order(t, index);
		return;
	}
	lien_transaction_drop_out(t, index);
	lien_transaction_fail(t, -EBUSY, pid,
		"process %u, of whose memory others have some, is stopped: let it go on first "
		"(%s)",
		pid, remedy);
}

/* Returns true if there are unasked owners that will answer. */
static bool ask_owners(struct lien_transaction *t)
{
	const unsigned known = t->count;
	unsigned i, j;

	for (i = 0; i < known; i++)
		for (j = 0; j < t->participants[i].count; j++)
			if (is_unasked(t, i, &t->participants[i].items[j]) &&
				add_participant(t, t->participants[i].items[j].owner_pid))
				lien_transaction_fail(t, -ENOMEM, 0, "out of memory");
	for (i = known; i < t->count; i++)
		ask_owner(t, i);
	return !lien_transaction_idle(t);
}

/* All that were asked have listed what they hold. */
static void listed(struct lien_transaction *t)
{
	unsigned i, members = 0;
	bool nomem = false;

	for (i = 0; i < t->count && !nomem; i++)
		nomem = lien_participant_sort(&t->participants[i]);
	if (nomem) {
		lien_transaction_fail(t, -ENOMEM, 0, "out of memory");
		lien_transaction_end(t);
		return;
	}
	if (ask_owners(t))
		return;
	choose_members(t);
	withhold(t);
	check_room(t);
	for (i = 0; i < t->count; i++)
		if (t->participants[i].member) {
			describe(&t->processes[i], &t->participants[i]);
			members++;
		}
	if (members)
		lien_phase_next(t);
	else if (!lien_restore_part_over(t))
		lien_transaction_end(t);
}

static void list_part(struct lien_transaction *t, unsigned index, const struct reply *reply)
{
	unsigned n = reply->size / sizeof(struct lien_wire_item);

	lien_room_part(t, index, reply);
	if (reply->header->flags & (LIEN_WIRE_ROOM | LIEN_WIRE_LAST) ||
		!lien_participant_add(&t->participants[index], reply->body, n))
		return;
	lien_transaction_drop_out(t, index);
	lien_transaction_fail(t, -E2BIG, t->processes[index].pid,
		"process %u lists more than can be away, or memory is short",
		t->processes[index].pid);
}

static void list_reply(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)t, (void)index, (void)reply; /* its owners may have to be asked yet */
}

static bool list_excuse(
	struct lien_transaction *t, unsigned index, const struct lien_wire_header *reply)
{
	(void)reply;
	lien_transaction_drop_out(t, index);
	return false;
}

const struct phase lien_phase_list = {
	.name = "list",
	.type = LIEN_WIRE_LIST,
	.limit_ms = 30000,
	.spares_dead = true,
	.enter = list_enter,
	.order = list_order,
	.arguments = list_arguments,
	.part = list_part,
	.reply = list_reply,
	.excuse = list_excuse,
	.next = listed,
};
