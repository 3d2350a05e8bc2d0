/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Attaching uprobes in threads of its own. The kernel changes probes one by one, and each change
 * waits for every other one on the machine and for the address spaces of all processes that map the
 * file: attaching a few hundred takes 5 ms on an idle machine and 500 ms while as many are being
 * taken away (measured on 6.18, 2 cores). The agent's loop cannot wait for that.
 */
#ifndef LIEN_MAKE_LINK_H
#define LIEN_MAKE_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "loader/probes/uprobe_multi.h"

struct lien_making;

struct lien_link_wish {
	int program_fd;
	const uint64_t *offsets, *cookies;
	unsigned count; /* 0: no link */
	struct lien_uprobe_multi_how how;
};

#define LIEN_LINKS_AT_ONCE 2

/* Begins to make up to LIEN_LINKS_AT_ONCE links, in this order; what the wishes and the fd of the
 * file refer to is copied. 0; -errno: *making is NULL. */
int lien_making_begin(struct lien_making **making, int file_fd, const struct lien_link_wish *wishes,
	unsigned count);
/* 0: links[] has their fds, -1 for one without places; -EINPROGRESS: not yet, call it again;
 * -errno: none is made. But for -EINPROGRESS *making is gone and NULL. */
int lien_making_wait(struct lien_making **making, int *links);
/* Whatever it has made, or will make, is taken away. NULL is allowed. */
void lien_making_abandon(struct lien_making **making);

/* From now on lien_making_wait() waits so long, in all, and only once for one that takes longer; no
 * limit unless told. For one thread. */
void lien_making_allow(unsigned ms);
/* Are links being made? Nobody can fork() for much of that time. */
bool lien_making_busy(void);

#endif
