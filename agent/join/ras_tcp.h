/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the owner of a connection's other end in the kernel's table of TCP sockets. For
 * agent/join/ras_ask.c.
 */
#ifndef LIEN_RAS_TCP_H
#define LIEN_RAS_TCP_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Returns true when the peer of this connected socket, which lies in the process's network
 * namespace, lies in the same namespace and belongs to the user. The connection must have been
 * accepted: older kernels name the user only then.
 */
bool lien_tcp_other_end_is(int fd, uint32_t pid, uint32_t uid);

#endif
