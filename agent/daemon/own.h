/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a process asks about its own communicators, which it knows by address and not by the group's
 * name: for the NCCL calls that the control library adds (docs/nccl-calls.md).
 */
#ifndef LIEN_OWN_H
#define LIEN_OWN_H

#include <jansson.h>

#include "agent/server/client.h"

/* Finds the communicator at an address ("0x5580") of the client's process. NULL after an error
 * reply: there is none, or its group is not known. */
struct lien_comm *lien_own_comm(struct lien_client *client, const char *address);
/* Writes a group's name as requests and answers have it. */
#define LIEN_OWN_NAME 17
void lien_own_name(const struct lien_comm *comm, char name[LIEN_OWN_NAME]);
/*
 * Replaces the member `comms_made` of a request, if there is one, by `comms`: the groups of the
 * communicators that the client's process made in these periods. *none: there are no such
 * communicators. Returns false after an error reply.
 */
bool lien_own_made(struct lien_client *client, json_t *request, bool *none);
/* The operation `comm`: a communicator of the client's process, and its memory there. */
void lien_own_request(struct lien_client *client, json_t *request);

#endif
