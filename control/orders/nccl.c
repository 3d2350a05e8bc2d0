// SPDX-License-Identifier: BSD-2-Clause
/*
 * Non-blocking communicators: NCCL returns ncclInProgress when they are made, split or finalized,
 * and from collectives, and continues in a thread of its own. Only NCCL knows when it has finished
 * (ncclCommGetAsyncError, which any thread may call; NCCL 2.14 and later).
 */
#include <dlfcn.h>
#include <errno.h>

#include "control/orders/control.h"

#define NCCL_IN_PROGRESS 7

typedef int async_error_fn(void *comm, int *error);

static async_error_fn *async_error;

void lien_nccl_find(void)
{
	void *library, *symbol;

	if (async_error)
		return;
	library = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_NOW);
	symbol = library ? dlsym(library, "ncclCommGetAsyncError")
			 : dlsym(RTLD_DEFAULT, "ncclCommGetAsyncError");
	__atomic_store_n(&async_error, (async_error_fn *)symbol, __ATOMIC_RELEASE);
	/* Keep the reference, so that the function stays loaded. */
}

unsigned lien_nccl_working(const uint64_t *comms, unsigned count)
{
	unsigned i, working = 0;
	int error;

	for (i = 0; async_error && i < count; i++) {
		error = 0;
		working += !async_error((void *)comms[i], &error) && error == NCCL_IN_PROGRESS;
	}
	return working;
}

int lien_nccl_idle(struct lien_control *control, const uint64_t *comms, unsigned count)
{
	if (count && !async_error)
		return lien_control_fail(control, -ENOSYS, comms[0],
			"NCCL cannot be asked whether it is still at work");
	if (lien_nccl_working(comms, count))
		return lien_control_fail(
			control, -ETIMEDOUT, 0, "NCCL is still at work on a communicator");
	return 0;
}
