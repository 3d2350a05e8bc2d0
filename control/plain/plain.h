/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Plain device memory (cuMemAlloc and what belongs to it) that can be moved: the application gets
 * blocks (heap.h) of chunks of virtual memory, each one allocation of cuMemCreate(), instead of the
 * driver's own allocations. Only in a process that had this library from its start, so that every
 * plain allocation is ours or stays the driver's for good, and not with LIEN_PLAIN=1 in its
 * environment.
 *
 * A call that is not about our memory goes to the driver unchanged: other addresses, sizes of 0, a
 * thread without a context, a device that cannot do it, a failure. So errors are the driver's own.
 *
 * Functions that call the driver are in the section of translate.h: the calls are the
 * application's.
 */
#ifndef LIEN_CONTROL_PLAIN_H
#define LIEN_CONTROL_PLAIN_H

#include "control/driver/translate.h"

/* The constructor calls it. */
void lien_plain_start(void);
/* From now on new memory is the driver's. What has been handed out stays ours. */
void lien_plain_stop(void);
/* Undoes the control library's cuDevicePrimaryCtxRetain(). If the application has released the
 * context before, that was its end, and that of its plain memory. */
void lien_plain_primary_release(const struct lien_driver *driver, CUdevice device);
/* Returns whether this is plain memory of the control library's own. */
int lien_plain_wait_keeps(CUdeviceptr address);
/* For the child of a fork(): closes the sockets that others ask for the parent's memory. */
void lien_plain_forked(void);

#endif
