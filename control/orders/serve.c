// SPDX-License-Identifier: BSD-2-Clause
/* Receives orders and sends replies. */
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
#include "control/driver/cached.h"
#include "control/orders/control.h"
#include "control/driver/gate.h"
#include "control/memory/handles.h"
#include "control/driver/names.h"
#include "control/driver/thread.h"
#include "control/driver/translate.h"
#include "control/driver/watchdog.h"

/* Offloaded state outlives sockets and threads. */
static struct lien_control kept;
static pthread_mutex_t serving = PTHREAD_MUTEX_INITIALIZER;
/* Held while the items and the arena may change. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

/* Interval between orders at which references that the driver refused are released again. */
#define SETTLE_MS    100
#define SETTLE_TRIES 600
#define UNMARK_TRIES 10 /* of SETTLE_MS each, while the job waits */

struct message {
	union {
		struct lien_wire_header header;
		char bytes[LIEN_WIRE_MESSAGE_MAX];
	};
	size_t body; /* bytes after the header */
	int fds[LIEN_WIRE_FDS_MAX];
	unsigned fds_count;
	int cut; /* there was no room for all its descriptors */
	struct ucred sender;
};

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

static int receive(int fd, struct message *message)
{
	ssize_t n;

	memset(&message->header, 0, sizeof(message->header));
	message->sender.uid = -1;
	n = lien_pass_receive_from(fd, message->bytes, sizeof(message->bytes), message->fds,
		&message->fds_count, &message->sender, 0);
	if (n <= 0 && n != -EMSGSIZE)
		return -1;
	message->cut = n == -EMSGSIZE && message->header.length <= sizeof(message->bytes);
	if (message->cut)
		n = message->header.length;
	message->body = n > (ssize_t)sizeof(message->header) ? n - sizeof(message->header) : 0;
	if (n < (ssize_t)sizeof(message->header) || message->header.length != (size_t)n)
		message->header.type = 0; /* answered as unknown */
	return 0;
}

/* One that cannot be exported does not stop the others. */
static int export_all(struct lien_control *control, int fd)
{
	struct lien_wire_share shares[LIEN_WIRE_FDS_MAX];
	int fds[LIEN_WIRE_FDS_MAX], result = 0, failed, first = 0;
	struct lien_item *item = NULL;
	unsigned n = 0;

	do {
		item = lien_items_next(&control->items, item);
		if (item && lien_item_shared(item) && !lien_item_in(item, LIEN_ITEMS_MISSING) &&
			lien_order_means(control, item)) {
			failed = lien_order_export(control, item, &fds[n]);
			if (!failed)
				shares[n++].token = item->wire.token;
			first = first ? first : failed;
		}
		if (n == LIEN_WIRE_FDS_MAX || (!item && n)) {
			result = lien_control_reply(
				fd, &control->reply, shares, n * sizeof(shares[0]), fds, n);
			if (result)
				lien_control_fail(control, result, 0,
					"exports could not be sent to the agent");
			while (n)
				close(fds[--n]);
		}
	} while (item && !result);
	while (n)
		close(fds[--n]);
	return first ? first : result;
}

static int import_all(struct lien_control *control, struct message *message)
{
	const struct lien_wire_share *shares =
		(const void *)(message->bytes + sizeof(message->header));
	unsigned count = message->body / sizeof(*shares), i;
	int result, first = 0;

	if (message->cut)
		return lien_control_fail(control, -EMFILE, 0,
			"it has too few free file descriptors: raise their number (prlimit "
			"--nofile)");
	if (count != message->fds_count)
		return lien_control_fail(
			control, -EPROTO, 0, "shares and descriptors do not match");
	for (i = 0; i < count; i++) {
		result = lien_order_import(control, shares[i].token, message->fds[i]);
		first = first ? first : result;
	}
	return first;
}

static int expired(struct lien_control *control)
{
	return lien_control_fail(
		control, -ESTALE, 0, "the agent was silent for too long, and the job runs on");
}

/* A library that got the driver's functions without us knows the driver's own values. Soon its
 * calls are translated as well: none of these values may be a name of something else. */
static int check_raw(struct lien_control *control, const struct message *message)
{
	const struct lien_wire_raw *raw = (const void *)(message->bytes + sizeof(message->header));
	unsigned count = message->body / sizeof(*raw), i;

	for (i = 0; i < count; i++)
		if (lien_names_clash(raw[i].handle, raw[i].certain))
			return lien_control_fail(control, -ENOTUNIQ, raw[i].handle,
				"a handle means other memory here");
	return 0;
}

/* Handle calls wait from now on: with `all`, all of them, otherwise those that name missing memory.
 * Objects that missing memory was bound to must stay as they are, so while there are any, all wait.
 */
static void hold_handles(struct lien_control *control, int all)
{
	struct lien_item *item = NULL;

	while (!all && (item = lien_items_next(&control->items, item))) /* bindings come last */
		all = lien_item_in(item, LIEN_ITEMS_MISSING) &&
		      item[item->wire.mappings - 1].wire.object;
	lien_translate_hold_all(all);
}

static int stage(struct lien_control *control, const struct message *message)
{
	const struct lien_wire_item *items =
		(const void *)(message->bytes + sizeof(message->header));
	char why[sizeof(message->header.text)];
	int result;

	if (message->header.flags & LIEN_WIRE_RAW)
		return check_raw(control, message);
	if (message->header.flags & LIEN_WIRE_FIRST) {
		if (access("/proc/self/maps", R_OK)) /* lien_cached_replace() reads it */
			return lien_control_fail(control, -ENOENT, 0,
				"it sees no /proc: mount one in its container");
		if (lien_items_any_awaited(&control->items))
			return lien_control_fail(control, -EBUSY, 0,
				"an earlier offload was cut short here: `lien restore` first");
		if (lien_items_any(&control->items, LIEN_ITEMS_RETURNED))
			return lien_control_fail(
				control, -EBUSY, 0, "an earlier restore is not finished here");
		/* The same STAGE once more, at rest: refused if the job has been released
		 * meanwhile. */
		if (control->expired && control->staged == message->header.arg)
			return expired(control);
		if (control->staged != message->header.arg) { /* while the job still runs */
			hold_handles(control, message->header.flags & LIEN_WIRE_ALL);
			result = lien_cached_replace(why, sizeof(why));
			if (result)
				return lien_control_fail(control, result, 0, why);
		}
		control->staged = message->header.arg;
		control->expired = 0;
		lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, 0);
	} else if (control->expired) {
		return expired(control);
	}
	result = lien_items_add(
		&control->items, items, message->body / sizeof(*items), message->header.arg);
	if (!result && message->header.flags & LIEN_WIRE_LAST)
		result = lien_items_seal(&control->items);
	if (result) {
		lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, message->header.arg);
		return lien_control_fail(
			control, result, 0, "the list of memory to move is not valid");
	}
	if (message->header.flags & LIEN_WIRE_LAST)
		control->reply.arg2 = !lien_devices_any(control->driver);
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
		lien_cached_prepare();
	}
	if (control->relaxed != tid) /* the thread may have changed */
		control->driver->cuThreadExchangeStreamCaptureMode(&mode);
	control->relaxed = tid;
	return 0;
}

/* Sent before memory is created, and when there was too little: the bytes needed, and free. */
static void send_room(struct lien_control *control, int fd)
{
	struct lien_wire_room rooms[LIEN_DEVICES_MAX];
	struct lien_wire_header reply = control->reply;
	unsigned n = lien_order_room(control, rooms);

	reply.flags = LIEN_WIRE_ROOM;
	if (n)
		lien_control_reply(fd, &reply, rooms, n * sizeof(rooms[0]), NULL, 0);
}

/* Notes which groups and tags CHOSEN means from now on. */
static int choose(struct lien_control *control, const struct message *message)
{
	const uint64_t *chosen = (const void *)(message->bytes + sizeof(message->header));
	const unsigned count = message->body / sizeof(*chosen);

	if (count > LIEN_WIRE_CHOSEN_MAX)
		return lien_control_fail(control, -E2BIG, 0, "too many groups are chosen");
	if (message->header.arg2 > count)
		return lien_control_fail(control, -EINVAL, 0, "not all chosen groups are named");
	memcpy(control->chosen, chosen, count * sizeof(*chosen));
	control->groups_count = message->header.arg2;
	control->tags_count = count - control->groups_count;
	return 0;
}

/* Returns true for items that the agent must know, because they need a restore. */
static int is_listed(const struct lien_item *item)
{
	return lien_item_in(item, LIEN_ITEMS_MISSING | LIEN_ITEMS_RETURNED) ||
	       lien_item_awaited(item);
}

static void list(struct lien_control *control, int fd, uint32_t flags)
{
	struct lien_wire_item batch[LIEN_WIRE_MESSAGE_MAX / 2 / sizeof(struct lien_wire_item)];
	const unsigned room = sizeof(batch) / sizeof(batch[0]);
	struct lien_item *item = NULL;
	unsigned n = 0, i;

	while ((item = lien_items_next(&control->items, item)))
		for (i = 0; i < item->wire.mappings && is_listed(item) &&
			    lien_order_chooses(control, item);
			i++) {
			batch[n] = item[i].wire;
			if (lien_item_awaited(item))
				batch[n].flags |= LIEN_WIRE_HERE;
			n++;
			if (n == room) {
				lien_control_reply(
					fd, &control->reply, batch, n * sizeof(batch[0]), NULL, 0);
				n = 0;
			}
		}
	if (n)
		lien_control_reply(fd, &control->reply, batch, n * sizeof(batch[0]), NULL, 0);
	if (!(flags & LIEN_WIRE_ROOM) || !lien_items_any(&control->items, 1 << LIEN_ITEM_AWAY) ||
		driver_ready(control))
		return;
	send_room(control, fd);
	lien_devices_close(control);
}

static int supports_multicast(const struct lien_driver *driver, CUdevice device)
{
	int supported = 0;

	if (driver->cuDeviceGetAttribute &&
		driver->cuDeviceGetAttribute(
			&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device))
		return 0;
	return supported != 0;
}

/* Uses only calls that make no context. If the driver lacks the call or is not initialised, the
 * list stays empty. */
static void hello_devices(struct lien_wire_hello *hello)
{
	const char *missing;
	const struct lien_driver *driver = lien_driver_find(&missing);
	int count = 0, i;

	if (!driver || !driver->cuDeviceGetUuid_v2 || driver->cuDeviceGetCount(&count) ||
		count > LIEN_WIRE_DEVICES)
		return;
	for (i = 0; i < count; i++) {
		CUuuid uuid;
		CUdevice device;

		if (driver->cuDeviceGet(&device, i) || driver->cuDeviceGetUuid_v2(&uuid, device))
			return;
		memcpy(hello->uuids[i], uuid.bytes, sizeof(hello->uuids[i]));
		hello->multicast += supports_multicast(driver, device);
	}
	hello->devices = count;
}

static void hello(struct lien_control *control, struct lien_wire_hello *hello)
{
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

static int gate(struct lien_control *control, const struct message *message)
{
	switch (message->header.arg) {
	case LIEN_WIRE_GATE_OPEN:
		lien_order_unmark(control);
		if (anything_away(control))
			return lien_control_fail(
				control, -EBUSY, 0, "memory is still away: the gate stays shut");
		let_go(control);
		lien_gate_open();
		return 0;
	case LIEN_WIRE_GATE_SHUT:
		if (message->header.arg2 && message->header.arg2 != control->staged) {
			control->staged = message->header.arg2;
			control->expired = 0;
		}
		if (!lien_gate_is_shut()) /* a thread that is held may own the loader's lock */
			lien_nccl_find();
		lien_gate_shut();
		return 0;
	case LIEN_WIRE_GATE_PASS:
		lien_gate_pass((const void *)(message->bytes + sizeof(message->header)),
			message->body / sizeof(uint32_t));
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
static int may_order(const struct ucred *sender)
{
	return !sender->uid || sender->uid == getuid() ||
	       (sender->uid == OVERFLOW_UID && in_user_namespace);
}

/* The job must never see the marks, nor have fewer references than it knows of. */
static int adopt(struct lien_control *control, int fd, struct message *message)
{
	struct lien_wire_adopt *list = (void *)(message->bytes + sizeof(message->header));
	unsigned count = message->body / sizeof(*list);

	if (message->header.type == LIEN_WIRE_UNMARK)
		return lien_order_unmark(control);
	if (control->expired || !lien_gate_is_shut())
		return expired(control);
	switch (message->header.type) {
	case LIEN_WIRE_COUNT:
		return lien_order_count(control, fd, list, count);
	case LIEN_WIRE_MARKS:
		return lien_order_marks(control, list, count);
	case LIEN_WIRE_MARK:
		return lien_order_mark(control);
	default:
		return lien_order_look(control, fd);
	}
}

static int drain(struct lien_control *control, const struct message *message)
{
	const uint64_t *comms = (const void *)(message->bytes + sizeof(message->header));
	const unsigned count = message->body / sizeof(*comms);
	int result = 0;

	if (message->header.arg)
		result = lien_order_drain(
			control, message->header.arg, message->header.flags & LIEN_WIRE_LAUNCHES);
	else if (lien_drain_busy(control->drain)) /* asked before, and it has not answered */
		result = lien_control_fail(control, -ETIMEDOUT, 0, "the device is still busy");
	if (result == -ETIMEDOUT && lien_nccl_working(comms, count)) {
		control->reply.text[0] = '\0'; /* the device is busy for NCCL's sake */
		result = 0;
	}
	if (!result)
		result = lien_nccl_idle(control, comms, count);
	control->reply.arg2 = lien_nccl_working(comms, count);
	return result;
}

static int obey(struct lien_control *control, int fd, struct message *message)
{
	int result = 0;

	if (message->header.type == LIEN_WIRE_GATE)
		return gate(control, message);
	if (message->header.type == LIEN_WIRE_END)
		return lien_order_end(control);
	if (control->expired && message->header.type >= LIEN_WIRE_DRAIN &&
		message->header.type <= LIEN_WIRE_DROP)
		return expired(control);
	if (message->header.type >= LIEN_WIRE_STAGE && message->header.type != LIEN_WIRE_LIST &&
		(result = driver_ready(control)))
		return result;
	switch (message->header.type) {
	case LIEN_WIRE_STAGE:
		return stage(control, message);
	case LIEN_WIRE_DRAIN:
		return drain(control, message);
	case LIEN_WIRE_CHECK:
		if (!lien_translate_wait_idle())
			return lien_control_fail(control, -EBUSY, 0,
				"a thread is in a call that names memory by handle");
		return lien_order_check(control);
	case LIEN_WIRE_SAVE:
		return lien_order_save(control);
	case LIEN_WIRE_UNMAP:
		lien_watchdog_away();
		return lien_order_drop(control, LIEN_WIRE_IMPORTED);
	case LIEN_WIRE_DROP:
		lien_watchdog_away();
		result = lien_order_drop(control, LIEN_WIRE_OWNED);
		hold_handles(control, result != 0);
		return result;
	case LIEN_WIRE_DISCARD: /* no import was unmapped: nobody waits for lent memory */
		lien_order_forget(
			control, LIEN_ITEMS_UNTOUCHED | 1 << LIEN_ITEM_LENT, control->generation);
		hold_handles(control, 0);
		return 0;
	case LIEN_WIRE_CREATE:
		hold_handles(control, 1);
		result = lien_order_create(control);
		if (result == CUDA_ERROR_OUT_OF_MEMORY && message->header.flags & LIEN_WIRE_ROOM)
			send_room(control, fd);
		return result;
	case LIEN_WIRE_EXPORT:
		return export_all(control, fd);
	case LIEN_WIRE_IMPORT:
		return import_all(control, message);
	case LIEN_WIRE_FINISH:
		if (message->header.flags & LIEN_WIRE_FILLED)
			return lien_order_filled(control);
		lien_order_give_up(control,
			(const void *)(message->bytes + sizeof(message->header)),
			message->body / sizeof(struct lien_wire_share));
		if (!(message->header.flags & LIEN_WIRE_LAST))
			return 0;
		result = lien_order_finish(control, message->header.flags);
		hold_handles(control, 0);
		if (!result)
			lien_watchdog_back();
		return result;
	case LIEN_WIRE_LIST:
		if (message->header.flags & LIEN_WIRE_CHOSEN)
			result = choose(control, message);
		if (!result)
			list(control, fd, message->header.flags);
		return result;
	case LIEN_WIRE_WALK:
		return lien_order_walk(control, fd,
			(const void *)(message->bytes + sizeof(message->header)),
			message->body / sizeof(struct lien_wire_range), message->header.arg);
	case LIEN_WIRE_PREPARE:
		return lien_order_prepare(control, message->header.arg, message->header.arg2);
	case LIEN_WIRE_RELEASE:
		return lien_order_release(control);
	case LIEN_WIRE_COUNT:
	case LIEN_WIRE_MARKS:
	case LIEN_WIRE_MARK:
	case LIEN_WIRE_LOOK:
	case LIEN_WIRE_UNMARK:
		return adopt(control, fd, message);
	}
	return lien_control_fail(control, -EPROTO, 0, "unknown order");
}

uint64_t lien_control_inode(int fd)
{
	struct stat st;

	return syscall(SYS_fstat, fd, &st) ? 0 : st.st_ino;
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

static void forked(void)
{
	const pthread_mutex_t free = PTHREAD_MUTEX_INITIALIZER;

	/* Frees nothing: the parent's thread may have been changing it. The arena is not mapped. */
	memset(&kept, 0, sizeof(kept));
	serving = changing = free;
}

LIEN_FORKED(forked);

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

/* Returns whether there is a message; fewer_descriptors() must follow it. */
static int receive_next(int fd, uint64_t ino, struct message *message)
{
	unsigned type = still(fd, ino) ? next_type(fd) : 0;

	if (type == LIEN_WIRE_IMPORT || type == LIEN_WIRE_EXPORT)
		more_descriptors();
	if (still(fd, ino) && !receive(fd, message) && still(fd, ino))
		return 1;
	fewer_descriptors();
	return 0;
}

void lien_control_serve(int fd, uint64_t ino)
{
	static struct message message;
	struct lien_wire_hello who;
	uint64_t start;
	int allowed;

	pthread_mutex_lock(&serving);
	look_at_users();
	wait_for_order(fd);
	while (receive_next(fd, ino, &message)) {
		start = lien_clock_ns();
		memset(&kept.reply, 0, sizeof(kept.reply));
		kept.reply.type = message.header.type;
		kept.reply.seq = message.header.seq;
		kept.generation = message.header.arg;
		kept.flags = message.header.flags;
		allowed = may_order(&message.sender);
		pthread_mutex_lock(&changing);
		if (!allowed)
			kept.reply.result = lien_control_fail(&kept, -EPERM, 0,
				"orders are taken from root and from this user alone");
		else if (message.header.type == LIEN_WIRE_HELLO)
			hello(&kept, &who);
		else
			kept.reply.result = obey(&kept, fd, &message);
		pthread_mutex_unlock(&changing);
		while (message.fds_count)
			close(message.fds[--message.fds_count]);
		fewer_descriptors();
		kept.reply.flags = LIEN_WIRE_LAST;
		kept.reply.arena_bytes = kept.arena.bytes;
		kept.reply.arena_used = kept.arena.used;
		kept.reply.ns = lien_clock_ns() - start;
		kept.flags = 0;
		if (!still(fd, ino))
			break;
		lien_control_reply(fd, &kept.reply, &who,
			allowed && message.header.type == LIEN_WIRE_HELLO ? sizeof(who) : 0, NULL,
			0);
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
