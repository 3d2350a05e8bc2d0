/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Asks NCCL's RAS (NCCL 2.24 and later, on unless NCCL_RAS_ENABLE=0). In each process that has
 * communicators, one thread listens on a TCP port for clients, at "localhost:28028" or at
 * NCCL_RAS_ADDR (rasClientInitSocket() in src/ras/client_support.cc), in the process's network
 * namespace. All processes of one user share the port (SO_REUSEPORT), even those of several jobs,
 * and the kernel picks the one that gets a connection. So an answer covers one job, perhaps a
 * different one.
 *
 * Cost to the job: the RAS threads pass the question on to all processes of the job over
 * connections of their own. Each copies what it knows under a lock that only making and ending
 * communicators take, and the answers are merged. No GPU, no collective and no application thread
 * takes part. If a client leaves too early, the asked thread spins until the answer is there, 10 s
 * at most; so lien waits longer than that.
 *
 * Versions before 2.28.7 answer only in words, and lien does not ask them: their answer names few
 * communicators, and from 2.27.3 on its printing can read outside an array while a communicator is
 * being made (rasClientRunComms()).
 *
 * These functions block, with limits: call them from a thread of their own.
 */
#ifndef LIEN_RAS_ASK_H
#define LIEN_RAS_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "agent/ras/ras.h"

#define LIEN_RAS_PORT	     28028
#define LIEN_RAS_DOORS_MAX   4
#define LIEN_RAS_ADDRESS_MAX 256

/* An address at which a user's sockets listen. */
struct lien_ras_door {
	socklen_t size;
	struct sockaddr_storage address;
};

/*
 * Returns the number of the user's sockets that listen on that port in the process's network
 * namespace, and their addresses. *others: somebody else listens there too.
 */
unsigned lien_ras_doors(uint32_t pid, uint32_t uid, uint16_t port,
	struct lien_ras_door doors[LIEN_RAS_DOORS_MAX], bool *others);

/*
 * Returns true when the peer of this connected socket, which lies in the process's network
 * namespace, lies in the same namespace and belongs to the user. The connection must have been
 * accepted: older kernels name the user only then.
 */
bool lien_tcp_other_end_is(int fd, uint32_t pid, uint32_t uid);

/* Returns the port at which NCCL listens, from the environment that the program started with (not
 * from /etc/nccl.conf, which NCCL reads too). False: RAS is turned off. */
bool lien_ras_port_of(uint32_t pid, uint16_t *port);

/*
 * Returns this node's addresses in the namespace of the socket: ranks on other nodes have others.
 */
unsigned lien_ras_own_addresses(
	int fd, uint32_t pid, struct lien_ras_host hosts[LIEN_RAS_ADDRESS_MAX]);

/*
 * Asks over a socket that is not connected, and parses the answer. Returns 0, or -errno with one
 * line in `problem`: the other end is not the user's, is not RAS, does not speak JSON, or did not
 * answer in time. The caller calls lien_ras_answer_clear().
 */
int lien_ras_ask(int fd, uint32_t pid, uint32_t uid, const struct lien_ras_door *door,
	struct lien_ras_answer *answer, char problem[LIEN_RAS_PROBLEM]);

#endif
