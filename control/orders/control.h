/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The control library's inside. One thread obeys the agent's orders; it decides nothing and knows
 * no other process. Everything here runs in that thread but the start (start.c), which runs in
 * whatever thread of the application is signalled, at the entry of a driver call.
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
	int held; /* a reference of ours keeps its primary context: longer, while memory is away */
	CUdevice device;
	CUcontext context;
	CUstream stream;
};

/* Marks that are written, or about to be: until they are put back the gate stays shut. */
struct lien_marks {
	struct lien_wire_adopt *mark;
	unsigned count, room;
	int written;	   /* here or elsewhere, as far as is known */
	uint64_t until_ns; /* none is written later: others may have been let go */
};

struct lien_control {
	const struct lien_driver *driver;
	struct lien_items items;
	struct lien_arena arena;
	struct lien_device devices[LIEN_DEVICES_MAX];
	struct lien_drain *drain;
	struct lien_wire_header reply;
	uint64_t generation; /* whose items the order means; 0: all */
	uint32_t flags;	     /* of the order */
	uint64_t staged;     /* the generation of what was staged last */
	struct lien_marks marks;
	int expired;   /* the agent was not heard of: what was staged for it was let go */
	long relaxed;  /* the thread whose calls leave captures alone */
	int ended;     /* by END: nothing is left but to say so, */
	int agent_end; /* and to close this socket of ours */
};

/*
 * Obeys orders that come in at fd. Returns when that is no longer the socket it was (`ino`): the
 * application may close descriptors that it does not know. What is away is kept for the next call.
 * Also after END, with both sockets closed.
 */
void lien_control_serve(int fd, uint64_t ino);
/* In a child of fork(): what is away is the parent's, and the child's driver does not know it. */
void lien_control_forked(void);
/* By which a socket is known again; 0: not open. Older glibc has fstat() elsewhere. */
uint64_t lien_control_inode(int fd);

/* Orders. 0, -errno or a CUresult; on failure reply.text says what, and reply.arg where. */
int lien_order_drain(struct lien_control *control, unsigned limit_ms);
/* nccl.c: looks for NCCL in the process. Takes the loader's lock. */
void lien_nccl_find(void);
/* Whether NCCL is done with what it does on these communicators in the background: 0, -ETIMEDOUT,
 * or -ENOSYS where it cannot be asked. */
int lien_nccl_idle(struct lien_control *control, const uint64_t *comms, unsigned count);
/* Its thread still waits for a device; ends that thread, which then must not, and frees. NULL:
 * there is none. */
int lien_drain_busy(struct lien_drain *drain);
void lien_drain_end(struct lien_drain *drain);
int lien_order_check(struct lien_control *control);
int lien_order_save(struct lien_control *control);
/* UNMAP with LIEN_WIRE_IMPORTED, DROP with LIEN_WIRE_OWNED. */
int lien_order_detach(struct lien_control *control, uint32_t kind);
int lien_order_create(struct lien_control *control);
/* What the devices need for what is away, and have: fills at most LIEN_DEVICES_MAX. How many. */
unsigned lien_order_room(struct lien_control *control, struct lien_wire_room *rooms);
/* Does the order that is being obeyed mean this allocation? */
int lien_order_means(const struct lien_control *control, const struct lien_item *item);
/* Exports one allocation. */
int lien_order_export(struct lien_control *control, struct lien_item *item, int *fd);
/* Maps an import again, if it is away. */
int lien_order_import(struct lien_control *control, uint64_t token, int fd);
/* Items that are no longer needed, of a transaction (0: of all); makes their place in the arena
 * free, and gives back what is held of them. */
void lien_order_forget(struct lien_control *control, unsigned states, uint64_t generation);
/* What others import of these stays exportable, whatever the application does from now on. */
void lien_order_lend(struct lien_control *control, unsigned states, uint64_t generation);
/* Imports that will never be there again: those of them that are away are forgotten. */
void lien_order_give_up(
	struct lien_control *control, const struct lien_wire_share *shares, unsigned count);
/* FINISH with FILLED: is all that was copied on the device, as it was saved? */
int lien_order_filled(struct lien_control *control);
/* With the order's flags. */
int lien_order_finish(struct lien_control *control, uint32_t flags);
/* Asks the driver what is mapped in the ranges, and sends it to fd; stops after limit_us. */
int lien_order_walk(struct lien_control *control, int fd, const struct lien_wire_range *ranges,
	unsigned count, uint64_t limit_us);

/* What the driver does not tell of memory that was there before the agent (adopt.c). */
int lien_order_count(
	struct lien_control *control, int fd, struct lien_wire_adopt *adopt, unsigned count);
int lien_order_marks(
	struct lien_control *control, const struct lien_wire_adopt *adopt, unsigned count);
int lien_order_mark(struct lien_control *control);
int lien_order_look(struct lien_control *control, int fd);
/* The first bytes of what the process's own descriptors export, at most `room`. How many. */
unsigned lien_descriptors_look(
	struct lien_control *control, struct lien_wire_adopt *seen, unsigned room);
/* Between a mapping's first bytes and `bytes`. */
int lien_adopt_transfer(struct lien_control *control, uint32_t ordinal, uint64_t va,
	uint8_t bytes[LIEN_WIRE_MARK_BYTES], int write);
/* Also when the agent is not heard of any more. What cannot be put back is tried again. */
int lien_order_unmark(struct lien_control *control);

/* Pins a chunk more of host memory, for that device, if the arena has not as many bytes. */
int lien_order_prepare(struct lien_control *control, uint64_t bytes, uint64_t ordinal);
/* Gives back the part of the arena that nothing needs. */
int lien_order_release(struct lien_control *control);

/* end.c: leaves the process as it was before there was a control library, but for the library
 * itself. On success reply.arg and .arg2 are as wire.h says of END, and the thread is to end. Else
 * nothing is changed, or a part of the arena given back. */
int lien_order_end(struct lien_control *control);
/* start.c. No control thread is started any more, by whoever: 0, or -EBUSY. Until
 * lien_start_allow().
 */
int lien_start_forbid(void);
void lien_start_allow(void);
/* In a child of fork(): its control thread does not run. */
void lien_start_forked(void);
/* Gives back the signal, and says so in lien_control_state. Returns the agent's end of the sockets,
 * to be closed. */
int lien_start_undo(void);

/* --verify. After SAVE: what is in the arena is what has to come back. */
void lien_verify_keep(struct lien_control *control);
/* Is it still? 0 or -EBADMSG. */
int lien_verify_host(struct lien_control *control, const struct lien_item *item);
/* What has been filled (LIEN_ITEM_FILLING) is back, unless it is to be compared, and differs from
 * what was saved: then it is empty. 0, -EBADMSG, or a CUresult. */
int lien_verify_device(struct lien_control *control);

/* A device that may read and write a mapping, the memory's own if it may; -1: none. */
int lien_item_device(const struct lien_wire_item *wire);
/* Makes the device's primary context current and gives it a stream. -ENODEV when the application
 * has not made that context: it is never made for it. */
/* -ENODEV: the application has no primary context there, and none is made. */
int lien_device_use(struct lien_control *control, int ordinal, struct lien_device **out);
/* While memory is away the application cannot end a context into which it is to come back. */
void lien_devices_close(struct lien_control *control);

/* Sends a reply that is not the last one. 0, or why it did not get to the agent. */
int lien_control_send(struct lien_control *control, int fd, const void *body, size_t size);
/* Notes a failure in the reply and returns result. The first one is kept. */
int lien_control_fail(struct lien_control *control, int result, uint64_t where, const char *what);
/* It has been tried again, with success. */
void lien_control_forgive(struct lien_control *control);

#endif
