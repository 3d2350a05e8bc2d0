/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's end of a control library: sends orders, receives replies. It takes the socket from
 * the process with pidfd_getfd(), so the two need not agree on a path, a namespace or credentials:
 * whoever may trace a process may give it orders. One order at a time: a transaction's order waits
 * for a short one that is under way, without blocking the agent.
 */
#ifndef LIEN_LINK_H
#define LIEN_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/wire.h>

#include "agent/core/agent.h"

/* Others read .fd, .pidfd, .asked and .waiting.asker; the rest is link.c's. */
struct lien_link {
	int fd;	   /* its socket */
	int pidfd; /* readable once the process has ended */
	/* the process's memory file, locked: one agent at a time may have it */
	int mem;
	uint16_t order;	       /* its type */
	uint32_t seq;	       /* of the last order sent */
	uint32_t order_seq;    /* the sender's number for it */
	enum lien_asker asked; /* who gave it; LIEN_ASK_NOBODY: none is under way */
	/* An order that waits until the current one has been answered. */
	struct lien_waiting {
		enum lien_asker asker; /* LIEN_ASK_NOBODY: there is none */
		struct lien_wire_header header;
		void *body;
		int *fds;
		unsigned fds_count;
	} waiting;
};

/* Reads lien_control_state. -EAGAIN: its constructor has not run yet; -EPROTO: another version;
 * -ENOTCONN: it has ended (LIEN_WIRE_END); -ESRCH, -EPERM, -ETIMEDOUT: see
 * loader/discover/untrusted.h. */
int lien_link_state(
	uint32_t pid, const struct lien_control_place *place, struct lien_control_state *state);

/* Has a control thread run in it? Then memory of the process may be away. */
bool lien_link_started(uint32_t pid, const struct lien_control_state *state);

/* Takes the socket. -EBUSY: another agent has it; -EAGAIN: the control thread does not run (yet);
 * -ESTALE: the state is not the process's own (a forked copy), or the socket is not the one it
 * made; or -errno. */
int lien_link_open(struct lien_link **out, uint32_t pid, const struct lien_control_state *state);
void lien_link_close(struct lien_link *link);

/* Returns true while the process that the link was opened to has not ended. */
bool lien_link_alive(const struct lien_link *link);
/*
 * Sends an order, or keeps a copy until the current one has been answered (lien_link_next()).
 * Remembers order->seq and puts it into the replies, so that late replies to other orders are told
 * apart. -EBUSY: another order is under way, or waits; -EAGAIN: the process does not read; -ENOMEM.
 */
int lien_link_send(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count);
/*
 * Sends the order that waits; call this after the last reply to an order. 0, also if there is none;
 * -errno.
 */
int lien_link_next(struct lien_link *link);
/* Drops an order that waits; one that was sent is not taken back. */
void lien_link_cancel(struct lien_link *link, enum lien_asker asker);

struct lien_reply {
	enum lien_asker asker;
	struct lien_wire_header header; /* .seq is the order's */
	const void *body;		/* valid until the next receive on any link */
	int fds[LIEN_WIRE_FDS_MAX];	/* owned by the receiver */
	unsigned fds_count;
};

/* 1: a reply to the order under way; 0: none waits; -errno: the link is broken. Drops malformed
 * messages and replies to earlier orders, a limited number at a time: there may be more when it
 * returns 0. Accepts descriptors only with replies to EXPORT. */
int lien_link_receive(struct lien_link *link, struct lien_reply *reply);

/* Closes the descriptors that came with a reply. */
void lien_link_discard(struct lien_reply *reply);

#endif
