/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The internals of the control library. One thread carries out the agent's orders; it decides
 * nothing and knows no other process. Everything here runs in that thread except the start
 * (start.c), which runs in the signalled thread of the application, at the entry of a driver call,
 * and lien_control_saved().
 */
#ifndef LIEN_CONTROL_H
#define LIEN_CONTROL_H

#include "control/memory/arena.h"
#include "control/memory/items.h"

struct lien_drain;

#define LIEN_DEVICES_MAX 64

/* A device whose primary context the application has made. */
struct lien_device {
	int open; /* it is current, and has a stream of ours */
	int held; /* our reference keeps its primary context; kept longer while memory is away */
	CUdevice device;
	CUcontext context;
	CUstream stream;
};

/* Marks that are written or about to be: the gate stays shut until the original bytes are
 * restored. */
struct lien_marks {
	struct lien_wire_adopt *mark;
	unsigned count, room;
	int written;	   /* written here or elsewhere, as far as is known */
	uint64_t until_ns; /* deadline for writing: later, other processes may already run again */
};

/* An order, as it came. */
struct lien_order {
	union {
		struct lien_wire_header header;
		char bytes[LIEN_WIRE_MESSAGE_MAX];
	};
	size_t body; /* bytes after the header */
	int fds[LIEN_WIRE_FDS_MAX];
	unsigned fds_count;
	int cut;	 /* there was no room for all its descriptors */
	uint32_t sender; /* its uid */
};

struct lien_control {
	const struct lien_driver *driver;
	struct lien_items items;
	struct lien_arena arena;
	struct lien_device devices[LIEN_DEVICES_MAX];
	CUcontext current; /* of our thread, as far as this order has set it; NULL: not known */
	struct lien_drain *drain;
	struct lien_order *order;
	int fd; /* where it came from */
	struct lien_wire_header reply;
	struct {
		char bytes[LIEN_WIRE_MESSAGE_MAX / 2];
		size_t size;
	} rows;		     /* of a reply that is not sent yet */
	uint64_t generation; /* transaction whose items the order means; 0: all */
	uint32_t flags;	     /* of the order; 0 between orders */
	/* What CHOSEN means: memory of these groups that has one of these tags; none: any. The
	 * groups come first. */
	uint64_t chosen[LIEN_WIRE_CHOSEN_MAX];
	unsigned groups_count, tags_count;
	uint64_t staged; /* the transaction staged last */
	struct lien_marks marks;
	int expired;   /* the agent was silent for too long: its staged items were released */
	long relaxed;  /* the thread whose calls do not affect captures */
	int ended;     /* by END: it only remains to reply, */
	int agent_end; /* and to close this socket of ours */
};

/* --- serve.c ---------------------------------------------------------------------------------- */

/*
 * Carries out orders that arrive at fd. Returns when fd is no longer the same socket (`ino`): the
 * application may close descriptors that it does not know. Keeps the record of offloaded memory for
 * the next call. Also returns after END, with both sockets closed.
 */
void lien_control_serve(int fd, uint64_t ino);
/*
 * Returns the host memory that has what lay at these addresses, while that is away: it stays valid
 * until a restore. NULL: it is not away, or *why it cannot be had. For threads of the application;
 * waits for the order that is being carried out.
 */
const void *lien_control_saved(uint64_t va, uint64_t bytes, const char **why);

/* --- start.c ---------------------------------------------------------------------------------- */

/* 1: a thread is making a control thread, or none may be made, because of END. Set by exchange;
 * defined in drain.c. */
extern int lien_starting;
extern struct lien_control_state lien_control_state;

/*
 * --- orders --------------------------------------------------------------------------------------
 *
 * They return 0, -errno or a CUresult; on failure reply.text says what failed, and reply.arg where.
 * What each does is said in wire.h.
 */

/* offload.c */
int lien_order_stage(struct lien_control *control);
int lien_order_check(struct lien_control *control);
int lien_order_prepare(struct lien_control *control);
int lien_order_save(struct lien_control *control);
int lien_order_unmap(struct lien_control *control);
int lien_order_drop(struct lien_control *control);
int lien_order_discard(struct lien_control *control);
int lien_order_release(struct lien_control *control);

/* restore.c */
int lien_order_create(struct lien_control *control);
int lien_order_export(struct lien_control *control);
int lien_order_import(struct lien_control *control);
int lien_order_finish(struct lien_control *control);
/* Sent before memory is created, and when there was too little: the bytes needed, and free. */
void lien_order_room(struct lien_control *control);

/* drain.c */
int lien_order_drain(struct lien_control *control);
/* Leaves the process as it was before there was a control library, except for the library itself.
 * On success the thread must end. On failure nothing is changed, except that a part of the arena
 * may have been given back. */
int lien_order_end(struct lien_control *control);
/* Looks for NCCL in the process. Takes the loader's lock. */
void lien_nccl_find(void);

/* walk.c */
int lien_order_walk(struct lien_control *control);

/* adopt.c */
int lien_order_count(struct lien_control *control);
int lien_order_marks(struct lien_control *control);
int lien_order_mark(struct lien_control *control);
int lien_order_look(struct lien_control *control);
/* Also called when the agent has gone silent. Retries whatever cannot be restored. */
int lien_order_unmark(struct lien_control *control);

/* --- place.c: one allocation ------------------------------------------------------------------ */

/* These two record a failure in the reply. Unmaps an allocation and gives back every reference to
 * it, ours and the application's. On failure it is unchanged or, if its state says so, away. */
int lien_item_unmap(struct lien_control *control, struct lien_item *item);
/* Maps memory at the allocation's addresses again, and leaves the handle with the application's
 * number of references, plus ours if others import it; the caller passes one. On failure it is away
 * as before. */
int lien_item_map(
	struct lien_control *control, struct lien_item *item, CUmemGenericAllocationHandle handle);
/* Makes the allocation's first mapping, which the application lacks. */
int lien_scratch_map(struct lien_control *control, struct lien_item *item);
/* Begins to copy one allocation between the device and the arena. */
int lien_copy_begin(struct lien_control *control, struct lien_item *item, int to_host);
/* Forgets items that are no longer needed, of a transaction (0: all): frees their place in the
 * arena and drops our references. */
void lien_order_forget(struct lien_control *control, unsigned states, uint64_t generation);
/* Keeps the imported ones among these exportable, whatever the application does from now on. */
void lien_order_lend(struct lien_control *control, unsigned states, uint64_t generation);
/* Handle calls wait from now on: with `all`, all of them, otherwise those that name missing memory.
 * Objects that missing memory was bound to must stay as they are, so while there are any, all
 * wait. */
void lien_order_hold(struct lien_control *control, int all);

/* --- verify.c: --verify ----------------------------------------------------------------------- */

/* Called after SAVE: records checksums of the arena's data. */
void lien_verify_keep(struct lien_control *control);
/* Compares the arena's data with its checksum. Returns 0 or -EBADMSG. */
int lien_verify_host(struct lien_control *control, const struct lien_item *item);
/* Marks filled items (LIEN_ITEM_FILLING) as back; those to be compared that differ from the saved
 * data become empty. Returns 0, -EBADMSG, or a CUresult. */
int lien_verify_device(struct lien_control *control);

/* --- control.c: what the orders have in common ------------------------------------------------ */

/* Returns the inode that identifies a socket; 0: not open. Not fstat(), which older glibc
 * implements elsewhere. */
uint64_t lien_control_inode(int fd);
/* Returns the entries of this size that are the order's body. */
void *lien_control_body(struct lien_control *control, size_t size, unsigned *count);
/* Sends a reply to the order, with descriptors that stay the caller's. Returns 0, or why it did not
 * reach the agent. */
int lien_control_reply(struct lien_control *control, const void *body, size_t size, const int *fds,
	unsigned fds_count);
/* Adds a row to a reply's body. It is sent when it is full, and by lien_control_flush(); they
 * return as lien_control_reply(). */
int lien_control_add(struct lien_control *control, const void *row, size_t size);
int lien_control_flush(struct lien_control *control);
/* Records a failure in the reply and returns result. The first failure is kept. */
int lien_control_fail(struct lien_control *control, int result, uint64_t where, const char *what);
/* The agent was silent for too long. */
int lien_control_expired(struct lien_control *control);

/* Is the allocation what the current order is for? Unless it is for chosen memory, all is. */
int lien_order_chooses(const struct lien_control *control, const struct lien_item *item);
/* And did the order's transaction stage it? */
int lien_order_means(const struct lien_control *control, const struct lien_item *item);

/* These record no failure. Makes the device's primary context current and gives it a stream.
 * -ENODEV if the application has not made that context: the library never makes it. */
int lien_device_use(struct lien_control *control, int ordinal, struct lien_device **out);
/* Uses that device or, if the application has not made its context, any other. Returns which; -1:
 * there is none. */
int lien_device_near(struct lien_control *control, int ordinal);
/* Retains a device's primary context, or returns -ENODEV as above. */
CUresult lien_context_retain(
	const struct lien_driver *driver, int ordinal, CUdevice *device, CUcontext *context);
/* Waits for our streams. */
int lien_devices_synchronize(struct lien_control *control);
/* While memory is away, keeps the application from ending contexts into which it will be
 * restored. */
void lien_devices_close(struct lien_control *control);
/* Returns a device that may read and write a mapping, the memory's own if possible; -1: none. */
int lien_item_device(const struct lien_wire_item *wire);

#endif
