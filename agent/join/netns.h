/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sockets in other network namespaces. Entering one takes CAP_SYS_ADMIN, which the agent gives up:
 * a process of its own keeps that right and no other, is told namespaces, and gives sockets. It
 * reads nothing else and connects to nobody. It ends with the agent.
 */
#ifndef LIEN_NETNS_H
#define LIEN_NETNS_H

#include <stdint.h>

struct lien_netns;

/* Before there are threads, and before rights are given up. 0 or -errno. */
int lien_netns_start(struct lien_netns **out);
/* The helper has ended then. What a thread that was left behind (agent/core/worker.h) still uses
 * stays.
 */
void lien_netns_stop(struct lien_netns *netns);

/*
 * A TCP socket in the process's network namespace, not connected, O_CLOEXEC and non-blocking;
 * -errno when it has ended or cannot be looked into. For one thread at a time. Waits 2 s at most.
 */
int lien_netns_socket(struct lien_netns *netns, uint32_t pid, int family);
/* The namespace's number, 0: not known. */
uint64_t lien_netns_of(uint32_t pid);

#endif
