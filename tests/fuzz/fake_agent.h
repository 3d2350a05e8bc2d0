/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An agent without BPF for the fuzz targets: its server, requests, orders, walks and transactions
 * are the real ones, over real sockets; the probes have nothing to tell, the clock is moved by
 * hand.
 */
#ifndef LIEN_FAKE_AGENT_H
#define LIEN_FAKE_AGENT_H

#include "agent/daemon/requests.h"
#include "agent/join/walks.h"

/* Two processes, RANKS of one communicator, that share memory. One is this process, the other a
 * child that does nothing: the agent takes the sockets of both with pidfd_getfd(). */
#define FAKE_RANKS 2

struct fake_agent {
	struct lien_agent agent;
	uint32_t pid[FAKE_RANKS];
	int control[FAKE_RANKS]; /* the control libraries' ends of their sockets */
	char socket[64];
};

extern uint64_t fake_now; /* ns; moves on by itself, too, with each look at it */

/* Starts the server and the child; once. */
void fake_agent_start(struct fake_agent *fake);
/* A new graph, with the links to both control libraries if wanted. */
void fake_agent_fill(struct fake_agent *fake, bool linked);
/* Drops the graph, and what is under way. */
void fake_agent_clear(struct fake_agent *fake);
/* A client's socket. */
int fake_agent_connect(const struct fake_agent *fake);
/* What the agent's loop does until there is nothing more to do. */
void fake_agent_run(struct fake_agent *fake);

#endif
