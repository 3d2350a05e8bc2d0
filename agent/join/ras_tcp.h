/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernel's table of TCP sockets: whose is the other end? For agent/join/ras_ask.c. */
#ifndef LIEN_RAS_TCP_H
#define LIEN_RAS_TCP_H

#include <stdbool.h>
#include <stdint.h>

/*
 * True when the socket that this connected one, in the network namespace of the process, speaks to
 * is in the same namespace and the user's. It must have been accepted: older kernels name the user
 * only then.
 */
bool lien_tcp_other_end_is(int fd, uint32_t pid, uint32_t uid);

#endif
