/* SPDX-License-Identifier: BSD-2-Clause */
/* An offload or a restore as a client has asked for it: of what, and how (docs/protocol.md). */
#ifndef LIEN_TRANSFER_H
#define LIEN_TRANSFER_H

#include <jansson.h>

#include <lien/wire.h>

#include "agent/plan/plan.h"

#define LIEN_SELECT_GPUS   256
#define LIEN_SELECT_GROUPS 1024
#define LIEN_SELECT_TAGS   256
_Static_assert(LIEN_SELECT_GROUPS + LIEN_SELECT_TAGS <= LIEN_WIRE_CHOSEN_MAX,
	"a restore names what is selected in one order");
#define LIEN_SELECT_PIDS    4096
#define LIEN_SELECT_DISCARD 1024

struct lien_transfer {
	struct lien_selection selection; /* its lists are below, its texts are the request's */
	struct lien_how how;
	json_t *request;
	bool dry_run;
	bool none; /* the client's process has none of the communicators that it asks for */
	uint32_t pids[LIEN_SELECT_PIDS];
	struct lien_uuid gpus[LIEN_SELECT_GPUS];
	uint64_t groups[LIEN_SELECT_GROUPS];
	const char *tags[LIEN_SELECT_TAGS];
	struct lien_discard discard[LIEN_SELECT_DISCARD];
	/* --- while it is carried out: an offload is planned again when the job is at rest --- */
	uint64_t events; /* events that the graph had when it was planned */
	uint64_t t_rest; /* since when all are at rest, if it has to be planned again; 0: not yet */
	bool no_context; /* a process turned out to have no context in which lien could copy */
};

/* Points the selection at this transfer's own lists. */
static inline void lien_transfer_point(struct lien_transfer *transfer)
{
	transfer->selection.pids = transfer->pids;
	transfer->selection.gpus = transfer->gpus;
	transfer->selection.groups = transfer->groups;
	transfer->selection.tags = transfer->tags;
	transfer->selection.discard = transfer->discard;
}

#endif
