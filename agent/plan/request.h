/* SPDX-License-Identifier: BSD-2-Clause */
/* The arguments of an offload, kept until it ends: it is planned again when the job is at rest. */
#ifndef LIEN_OFFLOAD_REQUEST_H
#define LIEN_OFFLOAD_REQUEST_H

#include "agent/plan/plan.h"

/* The fate of a thread that needs memory that is away. */
enum lien_on_use {
	LIEN_ON_USE_WAIT,    /* it waits for a restore */
	LIEN_ON_USE_RESTORE, /* the agent begins a restore for it */
	LIEN_ON_USE_IGNORE,  /* the client has promised that there is none: threads run on */
};

struct lien_offload_how {
	uint32_t flags;	     /* as for lien_transaction_offload() */
	uint64_t host_limit; /* bytes of the participants' host arenas together; 0: no limit */
	unsigned timeout_ms;
	enum lien_on_use on_use;
};

struct lien_restore_how {
	unsigned timeout_ms;
	bool lazy; /* as for lien_transaction_divide() */
};

struct lien_offload_request {
	struct lien_selection selection; /* the request owns what it points to */
	struct lien_offload_how how;
	uint64_t events; /* events that the graph had when it was planned */
	uint64_t t_rest; /* since when all are at rest, if it has to be planned again; 0: not yet */
	bool no_context; /* a process turned out to have no context in which lien could copy */
};

/* -ENOMEM: the request is empty. */
int lien_offload_request_copy(struct lien_offload_request *request,
	const struct lien_selection *selection, const struct lien_offload_how *how);
/* With lien_selection.free: when it is planned again, only the plan's processes take part. -ENOMEM.
 */
int lien_offload_request_limit(struct lien_offload_request *request, const struct lien_plan *plan);
void lien_offload_request_clear(struct lien_offload_request *request);

#endif
