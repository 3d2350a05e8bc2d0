/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sockets in other network namespaces. To enter a namespace takes CAP_SYS_ADMIN, which the agent
 * gives up. So a helper process keeps that right and no other, receives namespaces and returns
 * sockets. It reads nothing else and connects to nobody. It ends with the agent.
 */
#ifndef LIEN_NETNS_H
#define LIEN_NETNS_H

#include <stdint.h>

struct lien_netns;

/*
 * Returns a TCP socket in the process's network namespace, or with AF_UNIX a SOCK_SEQPACKET one,
 * not connected, O_CLOEXEC and non-blocking; -errno when the process has ended or cannot be
 * inspected. Waits 2 s at most for the helper, and for other threads.
 */
int lien_netns_socket(struct lien_netns *netns, uint32_t pid, int family);
/* Returns the namespace's number; 0: not known. */
uint64_t lien_netns_of(uint32_t pid);

#endif
