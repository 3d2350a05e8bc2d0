/* SPDX-License-Identifier: BSD-2-Clause */
/* See join.h for the request. */
#ifndef LIEN_IPC_CONNECT_H
#define LIEN_IPC_CONNECT_H

#include "agent/core/agent.h"

/* Call it before there are threads. 0 or -errno. */
int lien_ipc_connect_start(struct lien_agent *agent);
void lien_ipc_connect_stop(struct lien_agent *agent);

#endif
