// SPDX-License-Identifier: BSD-2-Clause
/*
 * The last order: restores the process to its original state. Steps that can fail come first,
 * irreversible ones last. The library's code stays mapped: someone may have copied the address of
 * one of its functions, or have a frame of its handler on the stack.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/driver/cached.h"
#include "control/driver/gate.h"
#include "control/driver/names.h"
#include "control/driver/thread.h"
#include "control/driver/translate.h"
#include "control/memory/handles.h"
#include "control/orders/control.h"
#include "control/plain/plain.h"

#define FORBID_US    1000
#define FORBID_TRIES 1000

int lien_starting;

static int refuse(struct lien_control *control, const char *why)
{
	return lien_control_fail(control, -EBUSY, 0, why);
}

/* Refuses if the process needs what END would remove. */
static int check(struct lien_control *control)
{
	if (lien_items_any(&control->items, LIEN_ITEMS_MISSING | LIEN_ITEMS_RETURNED))
		return refuse(control, "memory of it is offloaded: `lien restore` first");
	if (lien_items_any_awaited(&control->items))
		return refuse(control, "an offload was cut short here: `lien restore` first");
	if (lien_gate_is_shut())
		return refuse(control, "its gate is shut: try again when that is open");
	if (control->marks.written)
		return refuse(control, "marks lie in its memory: try again");
	if (lien_handles_owed()) {
		lien_handles_release_owed(control->driver);
		if (lien_handles_owed())
			return refuse(control, "the driver has not taken back a reference yet");
	}
	if (lien_names_renamed())
		return refuse(control, "it uses handles from before a restore, which lien "
				       "translates: NCCL does until its communicators end");
	if (lien_drain_busy(control->drain))
		return refuse(control, "a device is still waited for: try again when it is idle");
	return 0;
}

static int give_back_arena(struct lien_control *control)
{
	int result;

	lien_order_forget(control, LIEN_ITEMS_UNTOUCHED, 0);
	result = control->arena.bytes ? lien_order_release(control) : 0;
	if (result)
		return result;
	free(control->arena.chunks);
	free(control->items.item);
	memset(&control->arena, 0, sizeof(control->arena));
	memset(&control->items, 0, sizeof(control->items));
	return 0;
}

static int forbid_start(struct lien_control *control)
{
	int tries;

	/* A thread that starts is making two sockets and a thread. */
	for (tries = 0; __atomic_exchange_n(&lien_starting, 1, __ATOMIC_ACQUIRE); tries++) {
		if (tries == FORBID_TRIES)
			return refuse(control, "its control thread is being started: try again");
		usleep(FORBID_US);
	}
	return 0;
}

/* Gives back the signal, and says so in lien_control_state. Returns the agent's end of the sockets,
 * or -1. */
static int undo_start(void)
{
	struct lien_control_state *state = &lien_control_state;
	int fd = state->agent_fd;

	lien_plain_stop();
	lien_signal_give_back();
	if (fd >= 0 && lien_control_inode(fd) != state->agent_ino)
		fd = -1; /* belongs to the application by now */
	state->agent_fd = -1;
	__atomic_store_n(&state->magic, LIEN_WIRE_MAGIC_ENDED, __ATOMIC_RELEASE);
	return fd;
}

int lien_order_end(struct lien_control *control)
{
	int result = check(control);

	if (result || (result = forbid_start(control)))
		return result;
	result = give_back_arena(control);
	if (result) {
		__atomic_store_n(&lien_starting, 0, __ATOMIC_RELEASE);
		return result;
	}
	lien_drain_end(control->drain);
	control->drain = NULL;
	lien_translate_hold_all(0);
	lien_cached_restore();
	lien_names_clear();
	control->agent_end = undo_start();
	control->ended = 1;
	return 0;
}
