/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Processes for tests of the transaction: each obeys orders as control/ does, and can fail at any
 * of them. Keeps an account of where every allocation's bytes are, of descriptors, and of promises
 * that the transaction made: a broken one is counted in `broken` and printed.
 */
#ifndef TEST_FAKE_PROCESSES_H
#define TEST_FAKE_PROCESSES_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agent/transaction/transaction.h"

#define FAKES	 4
#define MEMORIES 400
#define ITEMS	 1024
#define FDS	 4096
#define REPLIES	 16
#define BASE	 (7ull << 32)
#define PID(p)	 (100u + (p))
#define STARTED	 7 /* all of them; another program of a pid, later */
#define MIB	 (1ull << 20)
#define SHARES	 LIEN_WIRE_FDS_MAX

enum state { STAGED, SAVED, AWAY, BACK, LENT };

#define IN(state)  (1u << (state))
#define UNTOUCHED  (IN(STAGED) | IN(SAVED))
#define ALL_STATES (~0u)

enum fault_kind {
	NO_FAULT,
	REFUSES,      /* answers with an error, has done nothing */
	HALF,	      /* answers with an error, has done half of it */
	DIES_BEFORE,  /* of the order */
	DIES_AFTER,   /* having done it, not answered */
	DIES_BETWEEN, /* two replies; or after the only one */
	UNREACHABLE,  /* dead, and nobody has noticed */
	HANGS_BEFORE,
	HANGS_AFTER, /* having done it; answers when it has been given up */
	CUT_OFF,     /* having done it, it loses its sockets, for the rest of the transaction */
	FAULT_KINDS,
};

struct fault {
	enum fault_kind kind;
	unsigned process, order; /* the n-th that it gets, from 1 */
};

struct reply {
	struct lien_wire_header header;
	char body[LIEN_WIRE_MESSAGE_MAX];
	int fds[SHARES];
	unsigned fds_count;
};

struct fake {
	struct {
		struct lien_wire_item wire;
		enum state state;
		uint64_t transaction; /* that staged it */
	} item[ITEMS];
	unsigned count;
	uint64_t staged;    /* the transaction that staged last */
	bool shut, expired; /* its gate; it has let go, for nobody was heard of */
	unsigned drain_ms;  /* what asking its devices takes, idle as they are */
	bool dead, hung, cut;
	bool late;	    /* what is in `reply` is for later */
	unsigned withholds; /* exports that it does not make, and says nothing */
	uint64_t groups[4]; /* that CHOSEN means */
	unsigned groups_count;
	struct lien_wire_room room; /* what it says of its device when it lists, if it needs any */
	unsigned orders, alive;	    /* received; and so often that the agent is there */
	unsigned raw;		    /* handles sent to it that may be raw, */
	uint64_t clashes;	    /* and which of them means other memory; 0: none does */
	bool busy;
	struct lien_wire_header order;
	char body[LIEN_WIRE_MESSAGE_MAX];
	uint64_t shares[SHARES]; /* an import's, as its descriptors say */
	struct reply reply[REPLIES];
	unsigned replies, next;
	unsigned given[32], answered[32]; /* orders by type, in this transaction */
	uint32_t flags[32];		  /* of the last one of a type */
};

static struct {
	unsigned n;
	struct fake fake[FAKES];
	struct memory {
		unsigned owner, importers, aliases; /* importers: bits; aliases: more mappings */
		bool device, arena;
		unsigned mapped; /* bits of processes */
		uint64_t bytes;
		bool freed; /* by its owner, which others may map */
		uint64_t group;
		/* What was written last, and what of that is where. */
		unsigned written, on_device, in_arena;
	} memory[MEMORIES];
	unsigned memories;
	struct fault fault[2];
	struct {
		bool open;
		uint64_t token;
	} fd[FDS];
	unsigned fds, fds_peak; /* handed out so far; open at the same time, at most */
	uint64_t now_ms;
	uint32_t capturing; /* the pid of one */
	bool reborn;	    /* other programs have the pids of the dead */
	bool gifts;	    /* each last answer brings a descriptor that nobody asked for */
	unsigned broken, done, progress;
	bool free_in_done;
	struct lien_transaction *transaction;
	struct lien_transaction_result result; /* .processes: copied, see below */
	struct lien_transaction_process process[FAKES];
	unsigned order, random; /* whose turn it is: see pick() */
} w;

#define BROKEN(...)                                                                                \
	do {                                                                                       \
		w.broken++;                                                                        \
		print_error(__VA_ARGS__);                                                          \
		print_error("\n");                                                                 \
	} while (0)

/* --- descriptors ------------------------------------------------------------------------------ */

static unsigned fds_open(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w.fds; i++)
		n += w.fd[i].open;
	return n;
}

static int fd_new(uint64_t token)
{
	assert_true(w.fds < FDS);
	w.fd[w.fds].open = true;
	w.fd[w.fds].token = token;
	w.fds++;
	if (fds_open() > w.fds_peak)
		w.fds_peak = fds_open();
	return w.fds - 1 + 1000;
}

static bool fd_good(int fd)
{
	return fd >= 1000 && fd < 1000 + (int)w.fds && w.fd[fd - 1000].open;
}

static int fake_fd_dup(int fd)
{
	if (!fd_good(fd)) {
		BROKEN("dup(%d): not open", fd);
		return -EBADF;
	}
	return fd_new(w.fd[fd - 1000].token);
}

static void fake_fd_close(int fd)
{
	if (!fd_good(fd))
		BROKEN("close(%d): not open", fd);
	else
		w.fd[fd - 1000].open = false;
}

/* --- obeying ---------------------------------------------------------------------------------- */

static struct memory *memory_of(const struct lien_wire_item *wire)
{
	return &w.memory[wire->token - BASE];
}

/* The only places where bytes can be lost. */
static void keep_bytes(const char *when)
{
	for (unsigned m = 0; m < w.memories; m++) {
		struct memory *memory = &w.memory[m];

		if (memory->device || memory->arena || w.fake[memory->owner].dead || memory->freed)
			continue;
		BROKEN("%s: the bytes of memory %u are lost", when, m);
		memory->device = true;
	}
}

static bool is_chosen(const struct fake *fake, unsigned i)
{
	if (!(fake->order.flags & LIEN_WIRE_CHOSEN))
		return true;
	for (unsigned g = 0; g < fake->groups_count; g++)
		if (fake->groups[g] == fake->item[i].wire.group)
			return true;
	return false;
}

/* Whether a process's order means an item. */
static bool is_meant(const struct fake *fake, unsigned i)
{
	return is_chosen(fake, i) &&
	       (!fake->order.arg || fake->order.arg == fake->item[i].transaction);
}

static bool is_shared(const struct fake *fake, unsigned i)
{
	return fake->item[i].wire.flags & LIEN_WIRE_SHARED;
}

static bool is_awaited(const struct fake *fake, unsigned i)
{
	return is_shared(fake, i) && IN(fake->item[i].state) & (IN(SAVED) | IN(LENT));
}

static void item_forget_of(struct fake *fake, unsigned states, uint64_t transaction)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < fake->count; i++) {
		struct memory *memory = memory_of(&fake->item[i].wire);

		if (!(IN(fake->item[i].state) & states) || !is_chosen(fake, i) ||
			(transaction && transaction != fake->item[i].transaction)) {
			fake->item[kept++] = fake->item[i];
			continue;
		}
		if (!(fake->item[i].wire.flags & LIEN_WIRE_OWNED))
			continue;
		memory->arena &= fake->item[i].state != AWAY && !memory->device;
		memory->device &= !memory->freed || memory->mapped; /* a reference less */
	}
	fake->count = kept;
}

static void item_forget(struct fake *fake, unsigned states)
{
	item_forget_of(fake, states, 0);
}

static bool any_in(const struct fake *fake, enum state state)
{
	for (unsigned i = 0; i < fake->count; i++)
		if (fake->item[i].state == state)
			return true;
	return false;
}

static struct reply *reply_new(struct fake *fake)
{
	struct reply *reply = &fake->reply[fake->replies++];

	assert_true(fake->replies <= REPLIES);
	memset(&reply->header, 0, sizeof(reply->header));
	reply->header.length = sizeof(reply->header);
	reply->header.type = fake->order.type;
	reply->header.seq = fake->order.seq;
	reply->fds_count = 0;
	return reply;
}

static void add_to_body(struct reply *reply, const void *data, size_t size)
{
	memcpy(reply->body + reply->header.length - sizeof(reply->header), data, size);
	reply->header.length += size;
}

static int obey_raw(struct fake *fake)
{
	const struct lien_wire_raw *raw = (const void *)fake->body;
	unsigned n = (fake->order.length - sizeof(fake->order)) / sizeof(*raw), i;

	for (i = 0; i < n; i++) {
		fake->raw++;
		if (fake->clashes && raw[i].handle == fake->clashes)
			return -ENOTUNIQ;
	}
	return 0;
}

static int obey_stage(struct fake *fake)
{
	const struct lien_wire_item *wire = (const void *)fake->body;
	unsigned n = (fake->order.length - sizeof(fake->order)) / sizeof(*wire), i;

	if (fake->order.flags & LIEN_WIRE_RAW)
		return obey_raw(fake);
	if (fake->order.flags & LIEN_WIRE_FIRST) {
		for (i = 0; i < fake->count; i++)
			if (is_awaited(fake, i) || fake->item[i].state == BACK)
				return -EBUSY;
		if (fake->expired && fake->staged == fake->order.arg)
			return -ESTALE;
		fake->staged = fake->order.arg;
		fake->expired = false;
		item_forget(fake, UNTOUCHED);
	}
	for (i = 0; i < n; i++) {
		fake->item[fake->count].wire = wire[i];
		fake->item[fake->count].transaction = fake->order.arg;
		fake->item[fake->count++].state = STAGED;
	}
	for (i = 0; fake->order.flags & LIEN_WIRE_LAST && i < fake->count; i++) {
		wire = &fake->item[i].wire;
		if (wire->index >= wire->mappings ||
			(wire->index + 1 < wire->mappings &&
				(i + 1 == fake->count ||
					fake->item[i + 1].wire.token != wire->token ||
					fake->item[i + 1].wire.index != wire->index + 1)))
			return -EINVAL;
	}
	return 0;
}

/* An order that ends in the middle does whole allocations. */
static bool ends_here(const struct fake *fake, unsigned i, unsigned *limit)
{
	return !fake->item[i].wire.index && !(*limit)--;
}

/* UNMAP, DROP: stops after `limit` allocations. */
static int obey_detach(struct fake *fake, unsigned p, unsigned kind, unsigned limit)
{
	for (unsigned i = 0; i < fake->count && !ends_here(fake, i, &limit); i++) {
		struct memory *memory = memory_of(&fake->item[i].wire);

		if (!(fake->item[i].wire.flags & kind) || fake->item[i].state == AWAY ||
			!is_meant(fake, i))
			continue;
		if (fake->item[i].state != SAVED)
			return -EPROTO;
		fake->item[i].state = AWAY;
		memory->mapped &= ~(1u << p);
		if (kind == LIEN_WIRE_OWNED) {
			if (memory->mapped)
				BROKEN("dropped while others map it: it frees nothing");
			if (memory->in_arena != memory->written)
				BROKEN("dropped, and what was written last is not saved");
			memory->device = false;
		}
	}
	return 0;
}

static int obey_create(struct fake *fake, unsigned p, unsigned limit)
{
	for (unsigned i = 0; i < fake->count && !ends_here(fake, i, &limit); i++) {
		struct memory *memory = memory_of(&fake->item[i].wire);

		if (!(fake->item[i].wire.flags & LIEN_WIRE_OWNED) || fake->item[i].state != AWAY ||
			!is_meant(fake, i))
			continue;
		memory->device = true;
		memory->on_device = memory->in_arena;
		memory->mapped |= 1u << p;
		fake->item[i].state = BACK;
	}
	return 0;
}

static int obey_export(struct fake *fake, unsigned limit)
{
	struct reply *reply = NULL;

	for (unsigned i = 0; i < fake->count && !ends_here(fake, i, &limit); i++) {
		struct lien_wire_share share = {fake->item[i].wire.token};

		if (!is_shared(fake, i) || fake->item[i].wire.index || !is_meant(fake, i) ||
			IN(fake->item[i].state) & (IN(AWAY) | IN(STAGED)))
			continue;
		if (fake->withholds && fake->withholds--)
			continue;
		if (!reply || reply->fds_count == SHARES)
			reply = reply_new(fake);
		add_to_body(reply, &share, sizeof(share));
		reply->fds[reply->fds_count++] = fd_new(share.token);
	}
	return 0;
}

static int obey_import(struct fake *fake, unsigned p, unsigned limit)
{
	const struct lien_wire_share *shares = (const void *)fake->body;
	unsigned n = (fake->order.length - sizeof(fake->order)) / sizeof(*shares), i, j;

	for (i = 0; i < n && limit--; i++) {
		if (fake->shares[i] != shares[i].token)
			BROKEN("process %u is sent memory %u for memory %u", PID(p),
				(unsigned)(fake->shares[i] - BASE),
				(unsigned)(shares[i].token - BASE));
		for (j = 0; j < fake->count; j++) {
			if (fake->item[j].wire.token != shares[i].token ||
				fake->item[j].state != AWAY)
				continue;
			assert_true(fake->item[j].wire.flags & LIEN_WIRE_IMPORTED);
			fake->item[j].state = BACK;
			memory_of(&fake->item[j].wire)->mapped |= 1u << p;
		}
	}
	return 0;
}

static void obey_list(struct fake *fake)
{
	const size_t size = fake->order.length - sizeof(fake->order);
	struct reply *reply = NULL;

	assert_true(size <= sizeof(fake->groups));
	memcpy(fake->groups, fake->body, size);
	fake->groups_count = size / sizeof(fake->groups[0]);
	for (unsigned i = 0; i < fake->count; i++) {
		struct lien_wire_item wire = fake->item[i].wire;

		if ((fake->item[i].state < AWAY && !is_awaited(fake, i)) || !is_chosen(fake, i))
			continue;
		if (is_awaited(fake, i))
			wire.flags |= LIEN_WIRE_HERE;
		if (!reply || reply->header.length > LIEN_WIRE_MESSAGE_MAX / 2)
			reply = reply_new(fake);
		add_to_body(reply, &wire, sizeof(wire));
	}
	if (fake->room.needed) {
		reply = reply_new(fake);
		reply->header.flags = LIEN_WIRE_ROOM;
		add_to_body(reply, &fake->room, sizeof(fake->room));
	}
}

static void lend(struct fake *fake, unsigned states, uint64_t transaction)
{
	for (unsigned i = 0; i < fake->count; i++) {
		if (!is_shared(fake, i) || !is_chosen(fake, i) ||
			!(IN(fake->item[i].state) & states) ||
			(transaction && transaction != fake->item[i].transaction))
			continue;
		fake->item[i].state = LENT;
		memory_of(&fake->item[i].wire)->arena = false;
	}
}

/* What is saved is the application's again. */
static void let_go(struct fake *fake)
{
	lend(fake, IN(SAVED), 0);
	item_forget(fake, UNTOUCHED);
	fake->shut = any_in(fake, AWAY) || any_in(fake, BACK);
}

static int obey_gate(struct fake *fake)
{
	if (fake->order.arg == LIEN_WIRE_GATE_SHUT)
		fake->shut = true;
	if (fake->order.arg != LIEN_WIRE_GATE_OPEN)
		return 0;
	if (any_in(fake, AWAY) || any_in(fake, BACK))
		return -EBUSY;
	let_go(fake);
	return 0;
}

/* Its owner lives, and can export it or will be able to. */
static bool holds(const struct memory *memory)
{
	const struct fake *owner = &w.fake[memory->owner];

	for (unsigned i = 0; i < owner->count && !owner->dead; i++)
		if (memory_of(&owner->item[i].wire) == memory && owner->item[i].state != STAGED)
			return true;
	return false;
}

/* The imports that are named; how many mappings of them were away. */
static unsigned give_up(struct fake *fake, unsigned p)
{
	const struct lien_wire_share *lost = (const void *)fake->body;
	unsigned n = (fake->order.length - sizeof(fake->order)) / sizeof(*lost), mappings = 0;
	unsigned kept = 0, i, j;

	for (i = 0; i < fake->count; i++) {
		for (j = 0; j < n && lost[j].token != fake->item[i].wire.token; j++)
			;
		if (j == n || fake->item[i].state != AWAY) {
			fake->item[kept++] = fake->item[i];
			continue;
		}
		if (holds(memory_of(&fake->item[i].wire)))
			BROKEN("process %u forgets memory of one that lives", PID(p));
		mappings++;
	}
	fake->count = kept;
	return mappings;
}

static int obey_finish(struct fake *fake, unsigned p, uint64_t *arg2)
{
	bool keep = fake->order.flags & LIEN_WIRE_KEEP;
	unsigned i;

	*arg2 = give_up(fake, p);
	if (!(fake->order.flags & LIEN_WIRE_LAST))
		return 0;
	if (keep)
		lend(fake, IN(SAVED) | IN(BACK), fake->order.arg);
	item_forget_of(fake, ~(IN(AWAY) | (keep ? IN(LENT) : 0)), fake->order.arg);
	for (i = 0; i < fake->count; i++)
		if (fake->item[i].state == AWAY && is_meant(fake, i))
			return -EBUSY;
	return 0;
}

/* What a test's processes know besides. */
static int (*obey_more)(struct fake *fake, unsigned p);

static int obey(struct fake *fake, unsigned p, unsigned limit, uint64_t *arg2)
{
	unsigned i;

	if (fake->expired && fake->order.type >= LIEN_WIRE_DRAIN &&
		fake->order.type <= LIEN_WIRE_DROP)
		return -ESTALE;
	switch (fake->order.type) {
	case LIEN_WIRE_STAGE:
		return obey_stage(fake);
	case LIEN_WIRE_DRAIN:
		if (fake->order.arg >= fake->drain_ms)
			return 0;
		w.now_ms += fake->order.arg;
		return -ETIMEDOUT;
	case LIEN_WIRE_CHECK:
		for (i = 0; i < fake->count; i++)
			if (is_meant(fake, i) && fake->item[i].wire.flags & LIEN_WIRE_OWNED &&
				memory_of(&fake->item[i].wire)->freed)
				return -ESTALE;
		return 0;
	case LIEN_WIRE_SAVE:
		for (i = 0; i < fake->count && !ends_here(fake, i, &limit); i++) {
			struct memory *memory = memory_of(&fake->item[i].wire);

			if (fake->item[i].state != STAGED || !is_meant(fake, i))
				continue;
			fake->item[i].state = SAVED;
			if (!(fake->item[i].wire.flags & LIEN_WIRE_OWNED))
				continue;
			memory->arena = true;
			memory->in_arena = memory->on_device;
		}
		*arg2 = 5 * MIB;
		return 0;
	case LIEN_WIRE_UNMAP:
		return obey_detach(fake, p, LIEN_WIRE_IMPORTED, limit);
	case LIEN_WIRE_DROP:
		*arg2 = 5 * MIB + (p + 1) * MIB;
		return obey_detach(fake, p, LIEN_WIRE_OWNED, limit);
	case LIEN_WIRE_DISCARD:
		item_forget_of(fake, UNTOUCHED | IN(LENT), fake->order.arg);
		return 0;
	case LIEN_WIRE_CREATE:
		return obey_create(fake, p, limit);
	case LIEN_WIRE_EXPORT:
		return obey_export(fake, limit);
	case LIEN_WIRE_IMPORT:
		return obey_import(fake, p, limit);
	case LIEN_WIRE_LIST:
		obey_list(fake);
		return 0;
	case LIEN_WIRE_FINISH:
		return obey_finish(fake, p, arg2);
	default:
		if (obey_more)
			return obey_more(fake, p);
		return fake->order.type == LIEN_WIRE_GATE ? obey_gate(fake) : 0;
	}
}

/* Sent whenever others take long: it is none of those that are counted. */
static bool is_alive(const struct lien_wire_header *order)
{
	return order->type == LIEN_WIRE_GATE && order->arg == LIEN_WIRE_GATE_ALIVE;
}

static const struct fault *fault_now(unsigned p)
{
	static const struct fault none;

	if (is_alive(&w.fake[p].order))
		return &none;
	for (unsigned i = 0; i < 2; i++)
		if (w.fault[i].kind && w.fault[i].process == p &&
			w.fault[i].order == w.fake[p].orders)
			return &w.fault[i];
	return &none;
}

static void answer(struct fake *fake, unsigned p, enum fault_kind kind)
{
	struct reply *reply;
	uint64_t arg2 = 0;
	int result = -EIO;

	fake->replies = fake->next = 0;
	if (kind != REFUSES)
		result = obey(fake, p, kind == HALF ? fake->count / 2 : ~0u, &arg2);
	if (kind == HALF)
		result = 2;
	keep_bytes("after an order");
	reply = reply_new(fake);
	reply->header.flags = LIEN_WIRE_LAST;
	reply->header.result = result;
	reply->header.arg2 = arg2;
	reply->header.arg = fake->order.type == LIEN_WIRE_RELEASE ? MIB
			    : result == -ENOTUNIQ		  ? fake->clashes
								  : 0;
	reply->header.ns = 1000;
	if (result)
		strcpy(reply->header.text, "said no");
	if (w.gifts)
		reply->fds[reply->fds_count++] = fd_new(0);
}

/* --- the transaction's side ------------------------------------------------------------------- */

static bool well(unsigned p)
{
	return !w.fake[p].dead && !w.fake[p].hung && !w.fake[p].cut;
}

static bool takes_part(unsigned p)
{
	return w.fake[p].given[LIEN_WIRE_STAGE] && well(p);
}

/* Each phase everywhere before the next one anywhere; above all, everything saved before anything
 * is dropped. */
static void check_promises(unsigned type)
{
	unsigned before = type - 1;

	if (type <= LIEN_WIRE_STAGE || type > LIEN_WIRE_DROP)
		return;
	for (unsigned p = 0; p < w.n; p++) {
		if (!takes_part(p))
			continue;
		if (!w.fake[p].answered[before])
			BROKEN("order %u is sent, and process %u has not answered %u", type, PID(p),
				before);
		if (type >= LIEN_WIRE_UNMAP && !w.fake[p].answered[LIEN_WIRE_SAVE])
			BROKEN("order %u is sent, and process %u has not saved", type, PID(p));
	}
}

static int fake_send(void *context, uint32_t pid, const struct lien_wire_header *order,
	const void *body, const int *fds, unsigned fds_count)
{
	struct fake *fake = &w.fake[pid - PID(0)];
	size_t size = order->length - sizeof(*order);

	assert_ptr_equal(context, &w);
	assert_true(pid >= PID(0) && pid < PID(w.n));
	assert_true(order->length >= sizeof(*order) && order->length <= LIEN_WIRE_MESSAGE_MAX);
	assert_true(fds_count <= SHARES);
	check_promises(order->type);
	fake->orders += !is_alive(order);
	fake->alive += is_alive(order);
	fake->order = *order;
	if (fault_now(pid - PID(0))->kind == UNREACHABLE)
		fake->dead = true;
	if (fake->dead || fake->cut)
		return -ESRCH;
	if (fake->hung || fake->busy)
		BROKEN("process %u is sent order %u while it obeys another", pid, order->type);
	fake->given[order->type]++;
	fake->flags[order->type] = order->flags;
	fake->busy = true;
	fake->replies = fake->next = 0;
	if (size)
		memcpy(fake->body, body, size);
	for (unsigned i = 0; i < fds_count; i++) {
		if (!fd_good(fds[i]))
			BROKEN("process %u is sent descriptor %d, which is not open", pid, fds[i]);
		else
			fake->shares[i] = w.fd[fds[i] - 1000].token;
	}
	if (order->type == LIEN_WIRE_IMPORT && fds_count != size / sizeof(struct lien_wire_share))
		BROKEN("process %u: %u descriptors for other shares", pid, fds_count);
	return 0;
}

static void fake_progress(void *context, enum lien_phase phase, unsigned done, unsigned of)
{
	assert_ptr_equal(context, &w);
	assert_true(phase < LIEN_PHASE_COUNT && done <= of && of <= w.n);
	w.progress++;
}

static void fake_done(void *context, struct lien_transaction *transaction)
{
	assert_ptr_equal(context, &w);
	w.done++;
	w.result = *lien_transaction_result(transaction);
	assert_true(w.result.processes_count <= w.n);
	memcpy(w.process, w.result.processes, w.result.processes_count * sizeof(w.process[0]));
	w.result.processes = w.process;
	if (w.free_in_done) {
		lien_transaction_free(transaction);
		w.transaction = NULL;
	}
}

static uint64_t fake_now(void *context)
{
	assert_ptr_equal(context, &w);
	return w.now_ms * 1000000;
}

static const char *fake_not_now(void *context, uint32_t pid)
{
	(void)context;
	return w.capturing == pid ? "is capturing" : NULL;
}

static uint64_t fake_began(void *context, uint32_t pid)
{
	(void)context;
	for (unsigned p = 0; p < w.n; p++)
		if (PID(p) == pid && (!w.fake[p].dead || w.reborn))
			return STARTED + w.fake[p].dead;
	return 0;
}

static bool fake_alive(void *context, uint32_t pid, uint64_t start)
{
	uint64_t now = fake_began(context, pid);

	return now && (!start || start == now);
}

static const struct lien_transaction_ops fake_ops = {
	.send = fake_send,
	.progress = fake_progress,
	.done = fake_done,
	.not_now = fake_not_now,
	.began = fake_began,
	.alive = fake_alive,
	.now_ns = fake_now,
	.fd_dup = fake_fd_dup,
	.fd_close = fake_fd_close,
	.context = &w,
};

/* As the loop does soon after a death or a tick. */
static void react(void)
{
	if (lien_transaction_must_react(w.transaction))
		lien_transaction_react(w.transaction);
}

static void tell_gone(unsigned p)
{
	lien_transaction_gone(w.transaction, PID(p));
	react();
}

static void tick(void)
{
	lien_transaction_tick(w.transaction);
	react();
}

static void die(unsigned p)
{
	struct fake *fake = &w.fake[p];

	for (; fake->next < fake->replies; fake->next++)
		for (unsigned i = 0; i < fake->reply[fake->next].fds_count; i++)
			fake_fd_close(fake->reply[fake->next].fds[i]);
	fake->busy = fake->late = false;
	fake->dead = true;
	for (unsigned m = 0; m < w.memories; m++) {
		w.memory[m].mapped &= ~(1u << p);
		if (w.memory[m].owner == p)
			w.memory[m].arena = false;
	}
	if (w.transaction && !w.done)
		tell_gone(p);
}

/* What it has answered is lost. */
static void cut_off(unsigned p)
{
	struct fake *fake = &w.fake[p];

	for (; fake->next < fake->replies; fake->next++)
		for (unsigned i = 0; i < fake->reply[fake->next].fds_count; i++)
			fake_fd_close(fake->reply[fake->next].fds[i]);
	fake->busy = false;
	fake->cut = true;
	if (w.transaction && !w.done)
		tell_gone(p);
}

static void deliver_reply(unsigned p)
{
	struct fake *fake = &w.fake[p];
	struct reply *reply = &fake->reply[fake->next++];
	bool last = fake->next == fake->replies;

	if (last && !fake->late) {
		fake->busy = false;
		fake->answered[fake->order.type] += !reply->header.result;
	}
	if (last)
		fake->late = false;
	if (w.transaction)
		lien_transaction_reply(w.transaction, PID(p), &reply->header, reply->body,
			reply->fds, reply->fds_count);
	else
		for (unsigned i = 0; i < reply->fds_count; i++)
			fake_fd_close(reply->fds[i]);
}

/* One thing happens in a process that has an order: it fails, or it answers. */
static void happen(unsigned p)
{
	struct fake *fake = &w.fake[p];
	enum fault_kind kind = fault_now(p)->kind;
	bool between;

	if (fake->next == fake->replies) {
		if (kind == DIES_BEFORE) {
			die(p);
			return;
		}
		if (kind == HANGS_BEFORE) {
			fake->hung = true;
			return;
		}
		answer(fake, p, kind);
		if (kind == HANGS_AFTER) {
			fake->hung = fake->late = true;
			return;
		}
		if (kind == DIES_AFTER) {
			die(p);
			return;
		}
		if (kind == CUT_OFF) {
			cut_off(p);
			return;
		}
	}
	between = kind == DIES_BETWEEN;
	deliver_reply(p);
	if (between && !fake->dead)
		die(p);
}

/* It hung, and goes on: to orders yet to come. */
__attribute__((unused)) static void wake(unsigned p)
{
	w.fake[p].hung = w.fake[p].busy = false;
}

/* The next process that can do something: in turn, the last one first, or at random. */
static int pick(void)
{
	int ready[FAKES], n = 0;

	for (unsigned p = 0; p < w.n; p++)
		if (w.fake[p].busy && !w.fake[p].hung && !w.fake[p].dead)
			ready[n++] = p;
	if (!n)
		return -1;
	w.random = w.random * 1103515245 + 12345;
	return w.order == 0 ? ready[0] : w.order == 1 ? ready[n - 1] : ready[(w.random >> 16) % n];
}

static unsigned orders_sent(void)
{
	unsigned n = 0;

	for (unsigned p = 0; p < w.n; p++)
		n += w.fake[p].orders;
	return n;
}

static unsigned step_ms = 5000; /* of the clock, when nothing else happens */

/* Plays on to the end. */
static void play(void)
{
	unsigned happened = 0, ticks = 0, orders;
	int p;

	while (!w.done) {
		p = pick();
		if (p >= 0) {
			happen(p);
			assert_true(++happened < 5000);
			continue;
		}
		for (p = 0; p < (int)w.n && !w.done; p++) /* the agent notices deaths */
			if (w.fake[p].dead)
				tell_gone(p);
		if (w.done || pick() >= 0)
			continue;
		w.now_ms += step_ms;
		if (++ticks > 60) { /* nothing has a limit of five minutes here */
			BROKEN("it does not end: waits in `%s` for ever",
				lien_phase_name(lien_transaction_phase(w.transaction)));
			return;
		}
		orders = orders_sent();
		tick();
		for (p = 0; p < (int)w.n && orders_sent() != orders; p++)
			while (w.fake[p].late) /* it has been given up */
				deliver_reply(p);
	}
	for (p = 0; p < (int)w.n; p++)
		while (w.fake[p].late)
			deliver_reply(p);
}

/* --- jobs ------------------------------------------------------------------------------------- */

static unsigned memory_new(unsigned owner, unsigned importers, unsigned aliases)
{
	struct memory *memory = &w.memory[w.memories];

	*memory = (struct memory){.owner = owner,
		.importers = importers & ~(1u << owner),
		.aliases = aliases,
		.device = true,
		.bytes = MIB * (1 + w.memories % 3)};
	memory->mapped = memory->importers | 1u << owner;
	return w.memories++;
}

/* Each owns some for itself, one with an alias, `pairs` for the next process, one for all. */
__attribute__((unused)) static void job(unsigned n, unsigned pairs)
{
	memset(&w, 0, sizeof(w));
	w.n = n;
	for (unsigned p = 0; p < n; p++) {
		memory_new(p, 0, 0);
		memory_new(p, 0, 2);
		for (unsigned i = 0; i < pairs; i++)
			memory_new(p, 1u << (p + 1) % n, i % 2);
		memory_new(p, ~(~0u << n), 1);
	}
}

static void plan_item(struct lien_plan_process *part, unsigned p, unsigned m)
{
	const struct memory *memory = &w.memory[m];
	bool owned = memory->owner == p;
	struct lien_wire_item item = {
		.token = m,
		.va = (m + 1ull) << 24,
		.bytes = memory->bytes,
		.allocation_bytes = memory->bytes,
		.flags = !owned		     ? LIEN_WIRE_IMPORTED
			 : memory->importers ? LIEN_WIRE_OWNED | LIEN_WIRE_SHARED
					     : LIEN_WIRE_OWNED,
		.mappings = memory->aliases + 1,
		.owner_pid = PID(memory->owner),
		.owner_start = STARTED,
		.group = memory->group,
	};

	for (; item.index < item.mappings; item.index++, item.va++)
		part->items[part->items_count++] = item;
	if (owned) {
		part->allocations++;
		part->bytes += memory->bytes;
	} else {
		part->imports++;
	}
}

/* Those in `members` (bits) with all that is theirs; unsorted, as a plan may come. */
static struct lien_plan plan_of(unsigned members)
{
	struct lien_plan plan = {};

	plan.processes = calloc(FAKES, sizeof(*plan.processes));
	for (unsigned p = 0; p < w.n; p++) {
		struct lien_plan_process *part = &plan.processes[plan.processes_count];

		if (!(members >> p & 1))
			continue;
		plan.processes_count++;
		part->pid = PID(p);
		part->items = calloc(ITEMS, sizeof(*part->items));
		for (unsigned m = w.memories; m-- > 0;)
			if (w.memory[m].owner == p || w.memory[m].importers >> p & 1)
				plan_item(part, p, m);
		plan.bytes += part->bytes;
	}
	return plan;
}

static void transaction_begins(void)
{
	w.done = 0;
	w.progress = 0;
	w.now_ms++; /* each is another one */
	for (unsigned p = 0; p < w.n; p++) {
		memset(w.fake[p].given, 0, sizeof(w.fake[p].given));
		memset(w.fake[p].flags, 0, sizeof(w.fake[p].flags));
		memset(w.fake[p].answered, 0, sizeof(w.fake[p].answered));
		w.fake[p].orders = w.fake[p].alive = 0;
		w.fake[p].cut = false; /* it has new ones */
	}
}

static void transaction_ends(void)
{
	if (w.transaction)
		lien_transaction_free(w.transaction);
	w.transaction = NULL;
	if (w.done != 1)
		BROKEN("done was called %u times", w.done);
	if (fds_open())
		BROKEN("%u descriptors are still open", fds_open());
	w.fds = 0;
}

static void offload_of(unsigned members)
{
	struct lien_plan plan = plan_of(members);

	transaction_begins();
	assert_int_equal(
		lien_transaction_offload(&w.transaction, &plan, BASE, 0, 1000, &fake_ops), 0);
	lien_plan_clear(&plan);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

__attribute__((unused)) static void offload(void)
{
	offload_of(~0u);
}

static int restore_new(struct lien_transaction **out, const uint32_t *all, unsigned n,
	const uint32_t *pids, unsigned count, unsigned timeout_ms,
	const struct lien_transaction_ops *ops)
{
	int err = lien_transaction_new(out, LIEN_TRANSACTION_RESTORE, all, n, timeout_ms, ops);

	return err || !count ? err : lien_transaction_choose(*out, pids, count, NULL, 0, NULL, 0);
}

/* Makes a restore of all processes that answer. The caller chooses what comes back, and starts it.
 */
static void restore_begins(
	const uint32_t *pids, unsigned count, const struct lien_transaction_ops *ops)
{
	uint32_t all[FAKES];
	unsigned n = 0;

	transaction_begins();
	for (unsigned p = 0; p < w.n; p++)
		if (!w.fake[p].dead && !w.fake[p].hung)
			all[n++] = PID(p);
	assert_int_equal(restore_new(&w.transaction, all, n, pids, count, 1000, ops), 0);
}

static void restore_of(const uint32_t *pids, unsigned count)
{
	restore_begins(pids, count, &fake_ops);
	lien_transaction_start(w.transaction);
	play();
	transaction_ends();
}

__attribute__((unused)) static void restore(void)
{
	restore_of(NULL, 0);
}

__attribute__((unused)) static void no_faults(void)
{
	memset(w.fault, 0, sizeof(w.fault));
}

/* All that living owners own is on the device again, and mapped by all who are well. */
__attribute__((unused)) static void check_back(const char *when)
{
	unsigned here = 0, mapped = 0, m, p;

	for (m = 0; m < w.memories; m++) {
		const struct memory *memory = &w.memory[m];

		if (!well(memory->owner))
			continue;
		if (!memory->device && !here++)
			BROKEN("%s: memory %u of process %u is not on the device", when, m,
				PID(memory->owner));
		for (p = 0; p < w.n; p++)
			if (well(p) && (memory->importers | 1u << memory->owner) >> p & 1 &&
				!(memory->mapped >> p & 1) && !mapped++)
				BROKEN("%s: process %u does not map memory %u of process %u", when,
					PID(p), m, PID(memory->owner));
	}
}

__attribute__((unused)) static void check_away(void)
{
	for (unsigned m = 0; m < w.memories; m++)
		if (w.memory[m].device || w.memory[m].mapped || !w.memory[m].arena)
			BROKEN("memory %u is not away", m);
}

/* No trace of a transaction is left in processes that are well. */
__attribute__((unused)) static void check_forgotten(const char *when)
{
	for (unsigned p = 0; p < w.n; p++)
		if (well(p) && w.fake[p].count)
			BROKEN("%s: process %u still has %u items", when, PID(p), w.fake[p].count);
}

#endif
