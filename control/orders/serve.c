// SPDX-License-Identifier: BSD-2-Clause
/* Receives orders, has them carried out, and answers. What an agent that has gone silent leaves. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <lien/clock.h>
#include <lien/pass_fds.h>
#include "control/driver/gate.h"
#include "control/driver/thread.h"
#include "control/memory/handles.h"
#include "control/orders/control.h"

/* Offloaded state outlives sockets and threads. The arena is not mapped in a child. */
static struct lien_control kept LIEN_ZERO_IN_CHILD;
static pthread_mutex_t serving LIEN_ZERO_IN_CHILD;
/* Held while the items and the arena may change. */
static pthread_mutex_t changing LIEN_ZERO_IN_CHILD;

/* Interval between orders at which references that the driver refused are released again. */
#define SETTLE_MS    100
#define SETTLE_TRIES 600
#define UNMARK_TRIES 10 /* of SETTLE_MS each, while the job waits */

/* Exports and imports need descriptors for a moment, which the program may not have: its threads
 * are held, and cannot close any. Its own limit is soft. */
#define MORE_FDS (4 * LIEN_WIRE_FDS_MAX)

static struct rlimit own_limit, raised_limit; /* while it is raised; else raised_limit is 0 */

static void more_descriptors(void)
{
	struct rlimit raised;

	if (getrlimit(RLIMIT_NOFILE, &own_limit) || own_limit.rlim_cur >= own_limit.rlim_max)
		return;
	raised = own_limit;
	raised.rlim_cur = own_limit.rlim_max - own_limit.rlim_cur > MORE_FDS
				  ? own_limit.rlim_cur + MORE_FDS
				  : own_limit.rlim_max;
	if (!setrlimit(RLIMIT_NOFILE, &raised))
		raised_limit = raised;
}

/* Unless the program has set it meanwhile. */
static void fewer_descriptors(void)
{
	struct rlimit now;

	if (raised_limit.rlim_cur && !getrlimit(RLIMIT_NOFILE, &now) &&
		now.rlim_cur == raised_limit.rlim_cur && now.rlim_max == raised_limit.rlim_max)
		setrlimit(RLIMIT_NOFILE, &own_limit);
	raised_limit.rlim_cur = 0;
}

/* Waits for a message. Returns the type of order; 0: it has none. */
static unsigned next_type(int fd)
{
	struct lien_wire_header header;
	struct iovec part = {&header, sizeof(header)};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	ssize_t n;

	do
		n = recvmsg(fd, &message, MSG_PEEK);
	while (n < 0 && errno == EINTR);
	return n == sizeof(header) ? header.type : 0;
}

static int receive(int fd, struct lien_order *order)
{
	struct ucred sender = {.uid = -1};
	ssize_t n;

	memset(&order->header, 0, sizeof(order->header));
	n = lien_pass_receive_from(
		fd, order->bytes, sizeof(order->bytes), order->fds, &order->fds_count, &sender, 0);
	order->sender = sender.uid;
	if (n <= 0 && n != -EMSGSIZE)
		return -1;
	order->cut = n == -EMSGSIZE && order->header.length <= sizeof(order->bytes);
	if (order->cut)
		n = order->header.length;
	order->body = n > (ssize_t)sizeof(order->header) ? n - sizeof(order->header) : 0;
	if (n < (ssize_t)sizeof(order->header) || order->header.length != (size_t)n)
		order->header.type = 0; /* answered as unknown */
	return 0;
}

/* Finds the driver, for orders that need it. Exempts all calls of this thread from the rule that
 * forbids "unsafe" calls while another thread captures: they must not spoil a capture. */
static int driver_ready(struct lien_control *control)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	const long tid = syscall(SYS_gettid);
	const char *missing;

	control->current = NULL; /* of another thread, or of code that changes it on its own */
	if (control->driver) {
		lien_handles_release_owed(control->driver);
	} else {
		control->driver = lien_driver_find(&missing);
		if (!control->driver)
			return lien_control_fail(control, -ENOSYS, 0, missing);
	}
	if (control->relaxed != tid) /* the thread may have changed */
		control->driver->cuThreadExchangeStreamCaptureMode(&mode);
	control->relaxed = tid;
	return 0;
}

/* Notes which groups and tags CHOSEN means from now on. */
static int choose(struct lien_control *control)
{
	const uint64_t groups = control->order->header.arg2, *chosen;
	unsigned count;

	chosen = lien_control_body(control, sizeof(*chosen), &count);
	if (count > LIEN_WIRE_CHOSEN_MAX)
		return lien_control_fail(control, -E2BIG, 0, "too many groups are chosen");
	if (groups > count)
		return lien_control_fail(control, -EINVAL, 0, "not all chosen groups are named");
	memcpy(control->chosen, chosen, count * sizeof(*chosen));
	control->groups_count = groups;
	control->tags_count = count - control->groups_count;
	return 0;
}

/* Returns true for items that the agent must know, because they need a restore. */
static int is_listed(const struct lien_item *item)
{
	return lien_item_in(item, LIEN_ITEMS_MISSING | LIEN_ITEMS_RETURNED) ||
	       lien_item_awaited(item);
}

static int list(struct lien_control *control)
{
	struct lien_item *item = NULL;
	struct lien_wire_item row;
	unsigned i;
	int result = control->flags & LIEN_WIRE_CHOSEN ? choose(control) : 0;

	while (!result && (item = lien_items_next(&control->items, item)))
		for (i = 0; i < item->wire.mappings && is_listed(item) &&
			    lien_order_chooses(control, item);
			i++) {
			row = item[i].wire;
			if (lien_item_awaited(item))
				row.flags |= LIEN_WIRE_HERE;
			lien_control_add(control, &row, sizeof(row));
		}
	lien_control_flush(control);
	if (!result && control->flags & LIEN_WIRE_ROOM &&
		lien_items_any(&control->items, 1 << LIEN_ITEM_AWAY) && !driver_ready(control)) {
		lien_order_room(control);
		lien_devices_close(control);
	}
	return result;
}

/* Uses only calls that make no context. If the driver lacks the call or is not initialised, the
 * list stays empty. */
static void hello_devices(struct lien_wire_hello *hello)
{
	const char *missing;
	const struct lien_driver *driver = lien_driver_find(&missing);
	int count = 0, i, multicast;
	CUdevice device;
	CUuuid uuid;

	if (!driver || !driver->cuDeviceGetUuid_v2 || driver->cuDeviceGetCount(&count) ||
		count > LIEN_WIRE_DEVICES)
		return;
	for (i = 0; i < count; i++) {
		if (driver->cuDeviceGet(&device, i) || driver->cuDeviceGetUuid_v2(&uuid, device))
			return;
		memcpy(hello->uuids[i], uuid.bytes, sizeof(hello->uuids[i]));
		if (driver->cuDeviceGetAttribute &&
			!driver->cuDeviceGetAttribute(
				&multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device))
			hello->multicast += multicast != 0;
	}
	hello->devices = count;
}

static struct lien_wire_hello who; /* the body of the last reply to HELLO */

static int hello(struct lien_control *control)
{
	struct lien_wire_hello *hello = &who;
	struct lien_item *item = NULL;

	memset(hello, 0, sizeof(*hello));
	hello->version = LIEN_WIRE_VERSION;
	hello->pid = getpid();
	hello->tid = syscall(SYS_gettid);
	hello->uid = getuid();
	hello->shut = lien_gate_is_shut();
	hello_devices(hello);
	while ((item = lien_items_next(&control->items, item))) {
		if (!is_listed(item))
			continue;
		hello->items += item->wire.mappings;
		if (lien_item_awaited(item))
			hello->here += item->wire.mappings;
		else if (item->wire.flags & LIEN_WIRE_OWNED)
			hello->bytes += item->wire.allocation_bytes;
	}
	return 0;
}

static int anything_away(struct lien_control *control)
{
	return lien_items_any(&control->items, LIEN_ITEMS_MISSING | LIEN_ITEMS_RETURNED);
}

/* The application may change saved memory from now on, so none of it is dropped any more. */
static void let_go(struct lien_control *control)
{
	lien_order_lend(control, 1 << LIEN_ITEM_SAVED, 0);
	lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, 0);
}

static int gate(struct lien_control *control)
{
	const uint64_t transaction = control->order->header.arg2;
	const uint32_t *tids;
	unsigned count;

	switch (control->order->header.arg) {
	case LIEN_WIRE_GATE_OPEN:
		lien_order_unmark(control);
		if (anything_away(control))
			return lien_control_fail(
				control, -EBUSY, 0, "memory is still away: the gate stays shut");
		let_go(control);
		lien_gate_open();
		return 0;
	case LIEN_WIRE_GATE_SHUT:
		if (transaction && transaction != control->staged) {
			control->staged = transaction;
			control->expired = 0;
		}
		if (!lien_gate_is_shut()) /* a thread that is held may own the loader's lock */
			lien_nccl_find();
		lien_gate_shut();
		return 0;
	case LIEN_WIRE_GATE_PASS:
		tids = lien_control_body(control, sizeof(*tids), &count);
		lien_gate_pass(tids, count);
		return 0;
	case LIEN_WIRE_GATE_ALIVE:
		return 0;
	}
	return lien_control_fail(control, -EPROTO, 0, "unknown order to the gate");
}

static int in_user_namespace; /* some users of the host have no id here: its root is nobody */

/* A program with this thread cannot change its namespace, and may lose its /proc, or have no
 * descriptor left. */
static void look_at_users(void)
{
	static const char all[] = "         0          0 4294967295";
	char map[64] = "";
	int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, map, sizeof(map) - 1);

	if (fd >= 0)
		close(fd);
	if (n > 0)
		in_user_namespace = strncmp(map, all, sizeof(all) - 1) != 0;
}

#define OVERFLOW_UID 65534

/*
 * Only root and this user may give orders. Processes that were forked from this one have both ends
 * of the pair, and may have given up privileges since. In a user namespace all outside users look
 * the same; but getting the agent's end takes the right to trace this process.
 */
static int may_order(uint32_t uid)
{
	return !uid || uid == getuid() || (uid == OVERFLOW_UID && in_user_namespace);
}

enum {
	DRIVER = 1, /* it calls the driver */
	TIMELY = 2, /* refused once the agent has been silent for too long, */
	GATED = 4,  /* or if the gate is open: the job must never see the marks, nor have fewer
		     * references than it knows of */
};

static const struct {
	int (*obey)(struct lien_control *control);
	unsigned needs;
} orders[] = {
	[LIEN_WIRE_HELLO] = {hello, 0},
	[LIEN_WIRE_STAGE] = {lien_order_stage, DRIVER},
	[LIEN_WIRE_DRAIN] = {lien_order_drain, DRIVER | TIMELY},
	[LIEN_WIRE_CHECK] = {lien_order_check, DRIVER | TIMELY},
	[LIEN_WIRE_SAVE] = {lien_order_save, DRIVER | TIMELY},
	[LIEN_WIRE_UNMAP] = {lien_order_unmap, DRIVER | TIMELY},
	[LIEN_WIRE_DROP] = {lien_order_drop, DRIVER | TIMELY},
	[LIEN_WIRE_DISCARD] = {lien_order_discard, DRIVER},
	[LIEN_WIRE_CREATE] = {lien_order_create, DRIVER},
	[LIEN_WIRE_EXPORT] = {lien_order_export, DRIVER},
	[LIEN_WIRE_IMPORT] = {lien_order_import, DRIVER},
	[LIEN_WIRE_FINISH] = {lien_order_finish, DRIVER},
	[LIEN_WIRE_LIST] = {list, 0},
	[LIEN_WIRE_WALK] = {lien_order_walk, DRIVER},
	[LIEN_WIRE_PREPARE] = {lien_order_prepare, DRIVER},
	[LIEN_WIRE_RELEASE] = {lien_order_release, DRIVER},
	[LIEN_WIRE_GATE] = {gate, 0},
	[LIEN_WIRE_COUNT] = {lien_order_count, DRIVER | TIMELY | GATED},
	[LIEN_WIRE_MARKS] = {lien_order_marks, DRIVER | TIMELY | GATED},
	[LIEN_WIRE_MARK] = {lien_order_mark, DRIVER | TIMELY | GATED},
	[LIEN_WIRE_LOOK] = {lien_order_look, DRIVER | TIMELY | GATED},
	[LIEN_WIRE_UNMARK] = {lien_order_unmark, DRIVER},
	[LIEN_WIRE_END] = {lien_order_end, 0},
};

static int obey(struct lien_control *control)
{
	const unsigned type = control->order->header.type;
	const int known = type < sizeof(orders) / sizeof(orders[0]) && orders[type].obey;
	const unsigned needs = known ? orders[type].needs : 0;
	int result;

	if (!may_order(control->order->sender))
		return lien_control_fail(
			control, -EPERM, 0, "orders are taken from root and from this user alone");
	if (!known)
		return lien_control_fail(control, -EPROTO, 0, "unknown order");
	if ((needs & TIMELY && control->expired) || (needs & GATED && !lien_gate_is_shut()))
		return lien_control_expired(control);
	if (needs & DRIVER && (result = driver_ready(control)))
		return result;
	return orders[type].obey(control);
}

static int still(int fd, uint64_t ino)
{
	return lien_control_inode(fd) == ino;
}

/* Returns true if the agent's silence matters: it must not block the application; and without a
 * gate, data that was saved long ago must not be dropped. */
static int under_way(struct lien_control *control)
{
	struct lien_item *item = NULL;

	if (lien_gate_is_shut())
		return !anything_away(control);
	while ((item = lien_items_next(&control->items, item)))
		if (lien_item_in(item, LIEN_ITEMS_UNTOUCHED) &&
			(item->held || item->scratch || item->state == LIEN_ITEM_SAVED))
			return 1;
	return 0;
}

/* Waits until an order arrives, or has been missing for too long. */
static void wait_for_order(int fd)
{
	struct pollfd order = {.fd = fd, .events = POLLIN};
	unsigned tries = 0;

	if (kept.marks.written && !lien_gate_is_shut())
		lien_order_unmark(&kept); /* an earlier attempt failed */
	while (lien_handles_owed() && tries++ < SETTLE_TRIES && !poll(&order, 1, SETTLE_MS))
		lien_handles_release_owed(kept.driver);
	if (!under_way(&kept) || poll(&order, 1, LIEN_GATE_LEASE_MS))
		return;
	for (tries = 0; lien_order_unmark(&kept) && tries < UNMARK_TRIES; tries++)
		usleep(SETTLE_MS * 1000);
	pthread_mutex_lock(&changing);
	let_go(&kept);
	pthread_mutex_unlock(&changing);
	kept.expired = 1;
	if (!anything_away(&kept))
		lien_gate_open();
}

/* The agent has its own copy of its end, and has the answer. */
static void close_pair(int fd, uint64_t ino)
{
	if (still(fd, ino))
		close(fd);
	if (kept.agent_end >= 0)
		close(kept.agent_end);
}

/* Returns where the mapping's bytes lie in the arena, from `va` on. */
static const void *copy_at(const struct lien_item *item, unsigned mapping, uint64_t va,
	uint64_t bytes, const char **why)
{
	uint64_t length = bytes;
	const void *copy;

	if (item->wire.flags & LIEN_WIRE_WORTHLESS) {
		*why = "it was dropped, not saved";
		return NULL;
	}
	copy = lien_arena_at(&kept.arena, item->arena + (va - item[mapping].wire.va), &length);
	if (copy && length == bytes)
		return copy;
	*why = "its copy is not in one piece";
	return NULL;
}

const void *lien_control_saved(uint64_t va, uint64_t bytes, const char **why)
{
	const uint32_t missing = LIEN_ITEMS_MISSING;
	const void *copy = NULL;
	struct lien_item *item = NULL;
	unsigned i;

	*why = NULL;
	pthread_mutex_lock(&changing);
	while (!copy && !*why && (item = lien_items_next(&kept.items, item)))
		for (i = 0; i < item->wire.mappings; i++) {
			const struct lien_wire_item *wire = &item[i].wire;

			if (!(item->wire.flags & LIEN_WIRE_OWNED) || !lien_item_in(item, missing) ||
				wire->object || va < wire->va || bytes > wire->bytes ||
				va - wire->va > wire->bytes - bytes)
				continue;
			copy = copy_at(item, i, va, bytes, why);
			break;
		}
	pthread_mutex_unlock(&changing);
	return copy;
}

/* Returns whether there is an order; fewer_descriptors() must follow it. */
static int receive_next(int fd, uint64_t ino, struct lien_order *order)
{
	unsigned type = still(fd, ino) ? next_type(fd) : 0;

	if (type == LIEN_WIRE_IMPORT || type == LIEN_WIRE_EXPORT)
		more_descriptors();
	if (still(fd, ino) && !receive(fd, order) && still(fd, ino))
		return 1;
	fewer_descriptors();
	return 0;
}

static void carry_out(struct lien_order *order)
{
	const uint64_t start = lien_clock_ns();

	kept.order = order;
	memset(&kept.reply, 0, sizeof(kept.reply));
	kept.reply.type = order->header.type;
	kept.reply.seq = order->header.seq;
	kept.rows.size = 0;
	kept.generation = order->header.arg;
	kept.flags = order->header.flags;
	pthread_mutex_lock(&changing);
	kept.reply.result = obey(&kept);
	pthread_mutex_unlock(&changing);
	while (order->fds_count)
		close(order->fds[--order->fds_count]);
	fewer_descriptors();
	kept.reply.flags = LIEN_WIRE_LAST;
	kept.reply.arena_bytes = kept.arena.bytes;
	kept.reply.arena_used = kept.arena.used;
	kept.reply.ns = lien_clock_ns() - start;
	kept.flags = 0;
}

void lien_control_serve(int fd, uint64_t ino)
{
	static struct lien_order order;
	int hello;

	pthread_mutex_lock(&serving);
	look_at_users();
	kept.fd = fd;
	wait_for_order(fd);
	while (receive_next(fd, ino, &order)) {
		carry_out(&order);
		if (!still(fd, ino))
			break;
		hello = order.header.type == LIEN_WIRE_HELLO && !kept.reply.result;
		lien_control_reply(&kept, &who, hello ? sizeof(who) : 0, NULL, 0);
		if (kept.ended)
			break;
		wait_for_order(fd);
	}
	if (kept.ended) {
		close_pair(fd, ino);
		pthread_mutex_lock(&changing);
		memset(&kept, 0, sizeof(kept));
		pthread_mutex_unlock(&changing);
	}
	pthread_mutex_unlock(&serving);
}
