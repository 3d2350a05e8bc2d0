/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's end of a control library: orders out, replies in. Takes the socket from the process
 * with pidfd_getfd(), so it needs no path, no namespace and no credentials to be agreed on: whoever
 * may trace a process may order it. One order at a time.
 */
#ifndef LIEN_LINK_H
#define LIEN_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/wire.h>

struct lien_link;

/* What a control library shows of itself in its process's memory. */
struct lien_control_place {
	uint64_t text, text_end; /* its code */
	uint64_t state;		 /* address of lien_control_state; 0: the library is not ours */
};

/* Reads lien_control_state. -EAGAIN: its constructor has not run yet; -EPROTO: another version;
 * -ENOTCONN: it is at its end (LIEN_WIRE_END);
 * -ESRCH, -EPERM, -ETIMEDOUT: see loader/untrusted.h. */
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

/* Sends; order->seq is remembered and put into the replies, so that late replies to others are told
 * apart. -EBUSY: an order is under way; -EAGAIN: the process does not read. */
int lien_link_send(struct lien_link *link, const struct lien_wire_header *order, const void *body,
	const int *fds, unsigned fds_count);

struct lien_reply {
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
