/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's end of a control library: orders out, replies in. Takes the socket from the process
 * with pidfd_getfd(), so it needs no path, no namespace and no credentials to be agreed on: whoever
 * may trace a process may order it. One order at a time: a transaction's waits
 * for a short one that is under way, without holding up the agent.
 */
#ifndef LIEN_LINK_H
#define LIEN_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/wire.h>

#include "agent/core/asker.h"

struct lien_link;

/* Reads lien_control_state. -EAGAIN: its constructor has not run yet; -EPROTO: another version;
 * -ENOTCONN: it is at its end (LIEN_WIRE_END);
 * -ESRCH, -EPERM, -ETIMEDOUT: see loader/discover/untrusted.h. */
int lien_link_state(
	uint32_t pid, const struct lien_control_place *place, struct lien_control_state *state);

/* Whether a control thread has run in it: then memory of the process may be away. */
bool lien_link_started(uint32_t pid, const struct lien_control_state *state);

/* Takes the socket. -EBUSY: another agent has it; -EAGAIN: the control thread does not run (yet);
 * -ESTALE: what the process shows is not its own (a forked copy) or the socket is not the one it
 * made; -errno. */
int lien_link_open(struct lien_link **out, uint32_t pid, const struct lien_control_state *state);
void lien_link_close(struct lien_link *link);

int lien_link_fd(const struct lien_link *link);
/* The process that the link was opened to has not ended. */
bool lien_link_alive(const struct lien_link *link);
/* Readable when the process has ended. */
int lien_link_pidfd(const struct lien_link *link);

/*
 * Sends, or keeps a copy until the order under way has been answered (lien_link_next()).
 * order->seq is remembered and put into the replies, so that late replies to others are told apart.
 * -EBUSY: another order is under way, or waits; -EAGAIN: the process does not read; -ENOMEM.
 */
int lien_link_send(struct lien_link *link, enum lien_asker asker,
	const struct lien_wire_header *order, const void *body, const int *fds, unsigned fds_count);
/* Whose order is under way. */
enum lien_asker lien_link_asked(const struct lien_link *link);
/* Whose order waits for that. */
enum lien_asker lien_link_waiting(const struct lien_link *link);
/* After the last reply to an order: sends the one that waits. 0, also if there is none; -errno. */
int lien_link_next(struct lien_link *link);
/* Forgets an order that waits; one that is on the wire is not taken back. */
void lien_link_cancel(struct lien_link *link, enum lien_asker asker);

struct lien_reply {
	enum lien_asker asker;
	struct lien_wire_header header; /* .seq is the order's */
	const void *body;		/* valid until the next receive on any link */
	int fds[LIEN_WIRE_FDS_MAX];	/* the receiver's */
	unsigned fds_count;
};

/* 1: a reply to the order under way; 0: none waits; -errno: the link is broken. Malformed messages
 * and replies to earlier orders are dropped, some at a time: there may be more when it returns 0.
 * Descriptors are taken from replies to EXPORT alone. */
int lien_link_receive(struct lien_link *link, struct lien_reply *reply);

/* Closes the descriptors that came with a reply. */
void lien_link_discard(struct lien_reply *reply);

#endif
