/* SPDX-License-Identifier: BSD-2-Clause */
/* What an offload was asked for, kept until it ends: it is planned again when the job is at rest.
 */
#ifndef LIEN_OFFLOAD_REQUEST_H
#define LIEN_OFFLOAD_REQUEST_H

#include "agent/offload/plan.h"

/* What happens to a thread that needs memory which is away. */
enum lien_on_use {
	LIEN_ON_USE_WAIT,    /* it waits for a restore */
	LIEN_ON_USE_RESTORE, /* a restore is begun for it */
	LIEN_ON_USE_FAIL,    /* its process is ended by SIGABRT */
};

struct lien_offload_how {
	uint32_t flags;	     /* as of lien_transaction_set() */
	uint64_t host_limit; /* of the host arenas of those that take part; 0: none */
	unsigned timeout_ms;
	enum lien_on_use on_use;
};

struct lien_offload_request {
	struct lien_selection selection; /* what it points to is the request's own */
	struct lien_offload_how how;
	uint64_t events; /* that the graph knew when it was planned */
};

/* -ENOMEM: the request is empty. */
int lien_offload_request_copy(struct lien_offload_request *request, const struct lien_selection *selection,
	const struct lien_offload_how *how);
void lien_offload_request_clear(struct lien_offload_request *request);

#endif
