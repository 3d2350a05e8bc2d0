/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The internals of the control library. One thread carries out the agent's orders; it decides
 * nothing and knows no other process. Everything here runs in that thread except the start
 * (start.c), which runs in the signalled thread of the application, at the entry of a driver call.
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

struct lien_control {
	const struct lien_driver *driver;
	struct lien_items items;
	struct lien_arena arena;
	struct lien_device devices[LIEN_DEVICES_MAX];
	CUcontext current; /* of our thread, as far as this order has set it; NULL: not known */
	struct lien_drain *drain;
	struct lien_wire_header reply;
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
/* Returns the inode that identifies a socket; 0: not open. Not fstat(), which older glibc
 * implements elsewhere. */
uint64_t lien_control_inode(int fd);

/* Orders. They return 0, -errno or a CUresult; on failure reply.text says what failed, and
 * reply.arg where. */
int lien_order_drain(struct lien_control *control, unsigned limit_ms, int launches);
/* nccl.c: looks for NCCL in the process. Takes the loader's lock. */
void lien_nccl_find(void);
/* Returns on how many of these communicators NCCL is at work in a thread of its own; 0 also if it
 * cannot be asked. */
unsigned lien_nccl_working(const uint64_t *comms, unsigned count);
/* Checks whether it is on none: 0, -ETIMEDOUT, or -ENOSYS if NCCL cannot be asked. */
int lien_nccl_idle(struct lien_control *control, const uint64_t *comms, unsigned count);
/* busy: returns true while its thread still waits for a device. end: ends that thread, which must
 * not be waiting, and frees. drain may be NULL. */
int lien_drain_busy(struct lien_drain *drain);
void lien_drain_end(struct lien_drain *drain);
int lien_order_check(struct lien_control *control);
int lien_order_save(struct lien_control *control);
/* UNMAP with LIEN_WIRE_IMPORTED, DROP with LIEN_WIRE_OWNED. */
int lien_order_drop(struct lien_control *control, uint32_t kind);
int lien_order_create(struct lien_control *control);
/* Fills in the memory that the devices need for offloaded items, and have; at most LIEN_DEVICES_MAX
 * entries. Returns their number. */
unsigned lien_order_room(struct lien_control *control, struct lien_wire_room *rooms);
/* Returns true unless the current order is for chosen memory, and the allocation is other memory.
 */
int lien_order_chooses(const struct lien_control *control, const struct lien_item *item);
/* Returns true if the current order applies to this allocation. */
int lien_order_means(const struct lien_control *control, const struct lien_item *item);
/* Exports one allocation. */
int lien_order_export(struct lien_control *control, struct lien_item *item, int *fd);
/* Maps an import again, if it is away. */
int lien_order_import(struct lien_control *control, uint64_t token, int fd);
/* Forgets items that are no longer needed, of a transaction (0: all): frees their place in the
 * arena and drops our references. */
void lien_order_forget(struct lien_control *control, unsigned states, uint64_t generation);
/* Keeps the imported ones among these exportable, whatever the application does from now on. */
void lien_order_lend(struct lien_control *control, unsigned states, uint64_t generation);
/* Marks imports that will never come back: those of them that are away are forgotten. */
void lien_order_give_up(
	struct lien_control *control, const struct lien_wire_share *shares, unsigned count);
/* FINISH with FILLED: checks that all copied data is on the device, as it was saved. */
int lien_order_filled(struct lien_control *control);
/* flags: the order's. */
int lien_order_finish(struct lien_control *control, uint32_t flags);
/* Queries the driver for mappings in the ranges, and sends them to fd; stops after limit_us. */
int lien_order_walk(struct lien_control *control, int fd, const struct lien_wire_range *ranges,
	unsigned count, uint64_t limit_us);

/* Facts about memory older than the agent that the driver does not report (adopt.c). */
int lien_order_count(
	struct lien_control *control, int fd, struct lien_wire_adopt *adopt, unsigned count);
int lien_order_marks(
	struct lien_control *control, const struct lien_wire_adopt *adopt, unsigned count);
int lien_order_mark(struct lien_control *control);
int lien_order_look(struct lien_control *control, int fd);
/* Reads the first bytes of the allocations that the process's own descriptors export, at most
 * `room`. Returns their number. */
unsigned lien_descriptors_look(
	struct lien_control *control, struct lien_wire_adopt *seen, unsigned room);
/* Also called when the agent has gone silent. Retries whatever cannot be restored. */
int lien_order_unmark(struct lien_control *control);

/* Pins another chunk of host memory, for that device, unless the arena has that many bytes. */
int lien_order_prepare(struct lien_control *control, uint64_t bytes, uint64_t ordinal);
/* Gives back the unused part of the arena. */
int lien_order_release(struct lien_control *control);

/* end.c: leaves the process as it was before there was a control library, except for the library
 * itself. On success the thread must end. On failure nothing is changed, except that a part of the
 * arena may have been given back. */
int lien_order_end(struct lien_control *control);
/* 1: a thread is making a control thread (start.c), or none may be made, because of END. Set by
 * exchange. */
extern int lien_starting;
extern struct lien_control_state lien_control_state; /* start.c */

/* --verify. Called after SAVE: records checksums of the arena's data. */
void lien_verify_keep(struct lien_control *control);
/* Compares the arena's data with its checksum. Returns 0 or -EBADMSG. */
int lien_verify_host(struct lien_control *control, const struct lien_item *item);
/* Marks filled items (LIEN_ITEM_FILLING) as back; those to be compared that differ from the saved
 * data become empty. Returns 0, -EBADMSG, or a CUresult. */
int lien_verify_device(struct lien_control *control);

/* Returns a device that may read and write a mapping, the memory's own if possible; -1: none. */
int lien_item_device(const struct lien_wire_item *wire);
/* Has the application made the primary context of any device? */
int lien_devices_any(const struct lien_driver *driver);
/* Makes the device's primary context current and gives it a stream. -ENODEV if the application has
 * not made that context: the library never makes it. */
int lien_device_use(struct lien_control *control, int ordinal, struct lien_device **out);
/* Copies between a mapping's first bytes and `bytes`. */
int lien_device_transfer(struct lien_control *control, uint32_t ordinal, uint64_t va,
	uint8_t bytes[LIEN_WIRE_MARK_BYTES], int write);
/* While memory is away, keeps the application from ending contexts into which it will be
 * restored. */
void lien_devices_close(struct lien_control *control);

/* reply.c. Sends a reply, with descriptors that stay the caller's. Returns 0, or why it did not
 * reach the agent. */
int lien_control_reply(int fd, const struct lien_wire_header *header, const void *body, size_t size,
	const int *fds, unsigned fds_count);
/* The same for the order that is carried out: a reply other than the last one. */
int lien_control_send(struct lien_control *control, int fd, const void *body, size_t size);
/* Records a failure in the reply and returns result. The first failure is kept. */
int lien_control_fail(struct lien_control *control, int result, uint64_t where, const char *what);
/* Clears a recorded failure after a retry succeeded. */
void lien_control_forgive(struct lien_control *control);

#endif
