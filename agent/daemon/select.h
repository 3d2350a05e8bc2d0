/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads from requests which processes and memory they name, and how to move it (docs/protocol.md).
 */
#ifndef LIEN_SELECT_H
#define LIEN_SELECT_H

#include <jansson.h>

#include "agent/core/transfer.h"
#include "agent/server/client.h"

/*
 * These return NULL after an error reply; else what they have read, valid until the next request is
 * read. lien_read_transfer() reads `pids` and `timeout_ms` alone. Names are resolved as the client
 * sees them: 0 is its own process, `comms_made` becomes `comms` in the request itself.
 */
struct lien_transfer *lien_read_transfer(struct lien_client *client, json_t *request);
struct lien_transfer *lien_read_offload(struct lien_client *client, json_t *request);
struct lien_transfer *lien_read_restore(struct lien_client *client, json_t *request);

/* Without the member: false. Returns false after an error reply. */
bool lien_read_flag(struct lien_client *client, json_t *request, const char *name, bool *value);
/* 0 is the client's own process: it need not know the agent's number for that. */
void lien_name_client(const struct lien_client *client, json_t *pid);
/*
 * The operation `comm`: a communicator of the client's process, and its memory there. The process
 * knows it by address and not by the group's name: for the NCCL calls that the control library adds
 * (docs/nccl-calls.md).
 */
void lien_own_request(struct lien_client *client, json_t *request);

#endif
