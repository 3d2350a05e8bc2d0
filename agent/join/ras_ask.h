/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Asking NCCL's RAS (NCCL 2.24 and later, on unless NCCL_RAS_ENABLE=0): one thread of each process
 * that has communicators listens on a TCP port for clients, "localhost:28028" or what NCCL_RAS_ADDR
 * says (rasClientInitSocket() in src/ras/client_support.cc), in the process's network namespace.
 * All processes of one user share the port (SO_REUSEPORT), those of several jobs too, and the
 * kernel chooses who gets a connection: an answer is of one job, perhaps another one.
 *
 * What a client costs the job: the RAS threads pass the question on to all processes of the job
 * over connections of their own, each copies what it knows under a lock that only making and ending
 * communicators take, and the answers are merged. No GPU, no collective, no application thread
 * takes part. A client that goes away too early makes the asked thread spin until the answer is
 * there, 10 s at most: so it is waited for longer than that.
 *
 * Versions before 2.28.7 answer in words only, and are not asked: their answer names few
 * communicators, and from 2.27.3 on printing it can read outside of an array while a communicator
 * is being made (rasClientRunComms()).
 *
 * Blocking, with limits: for a thread of its own.
 */
#ifndef LIEN_RAS_ASK_H
#define LIEN_RAS_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "agent/ras/ras_parse.h"

#define LIEN_RAS_PORT	     28028
#define LIEN_RAS_DOORS_MAX   4
#define LIEN_RAS_ADDRESS_MAX 256

/* Where a user's sockets listen. */
struct lien_ras_door {
	socklen_t size;
	struct sockaddr_storage address;
};

/*
 * The listening sockets of that port that are the user's, in the process's network namespace; how
 * many. *others: somebody else's listen there.
 */
unsigned lien_ras_doors(uint32_t pid, uint32_t uid, uint16_t port,
	struct lien_ras_door doors[LIEN_RAS_DOORS_MAX], bool *others);

/* Where NCCL listens, by the process's environment as it was when the program started (what NCCL
 * reads in /etc/nccl.conf is not looked at). False: RAS is turned off. */
bool lien_ras_port_of(uint32_t pid, uint16_t *port);

/* The addresses of this node in the namespace of the socket: ranks elsewhere have others. */
unsigned lien_ras_own_addresses(
	int fd, uint32_t pid, struct lien_ras_host hosts[LIEN_RAS_ADDRESS_MAX]);

/*
 * Asks over a socket that is not connected; the answer is parsed. 0, or -errno with one line in
 * `problem`: who is at the other end is not the user, it is no RAS, it does not speak JSON, it did
 * not answer in time. The caller calls lien_ras_answer_clear().
 */
int lien_ras_ask(int fd, uint32_t pid, uint32_t uid, const struct lien_ras_door *door,
	struct lien_ras_answer *answer, char problem[LIEN_RAS_PROBLEM]);

#endif
