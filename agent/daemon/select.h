/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads from requests which processes and memory they name, and how to move it (docs/protocol.md).
 */
#ifndef LIEN_SELECT_H
#define LIEN_SELECT_H

#include <jansson.h>

#include <lien/wire.h>

#include "agent/server/client.h"

#define LIEN_SELECT_GPUS   256
#define LIEN_SELECT_GROUPS 1024
#define LIEN_SELECT_TAGS   256
_Static_assert(LIEN_SELECT_GROUPS + LIEN_SELECT_TAGS <= LIEN_WIRE_CHOSEN_MAX,
	"a restore names what is selected in one order");
#define LIEN_SELECT_PIDS    4096
#define LIEN_SELECT_DISCARD 1024

struct lien_transfer {
	struct lien_selection selection; /* points into the rest, and into the request */
	unsigned timeout_ms;
	struct lien_offload_how how;
	bool dry_run, lazy;
	bool none; /* the client's process has none of the communicators that it asks for */
	uint32_t pids[LIEN_SELECT_PIDS];
	struct lien_uuid gpus[LIEN_SELECT_GPUS];
	uint64_t groups[LIEN_SELECT_GROUPS];
	const char *tags[LIEN_SELECT_TAGS];
	struct lien_discard discard[LIEN_SELECT_DISCARD];
};

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
