/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * This node's part in a transaction over several nodes, as long as the transaction is under way:
 * what the coordinator has said (agent/nodes/part.h), what ranks on other nodes have begun, and
 * what the coordinator has been told. Without other nodes agent->elsewhere is NULL.
 */
#ifndef LIEN_ELSEWHERE_H
#define LIEN_ELSEWHERE_H

#include <jansson.h>

#include "agent/core/agent.h"
#include "agent/nodes/compare.h"
#include "agent/nodes/outcomes.h"
#include "agent/nodes/part.h"

struct lien_elsewhere {
	char id[LIEN_NODES_ID_MAX + 1];
	struct lien_part part;
	bool compared;			/* this has come from the coordinator: */
	struct lien_node_others others; /* sorted */
	json_t *report;			/* the last; NULL: none */
	bool report_due;		/* it has not been sent */
	struct lien_node_status said;	/* version 0: nothing yet */
};

/* Call this before the transaction starts; lease_ms: as in docs/protocol.md. -ENOMEM. */
int lien_elsewhere_begin(struct lien_agent *agent, const char *id, bool restore, unsigned lease_ms);
/* It has ended, or has not begun. */
void lien_elsewhere_end(struct lien_agent *agent);
/* For struct lien_transaction_ops (may_go_on). */
enum lien_go_on lien_elsewhere_may_go_on(void *agent, enum lien_point point);
/* Takes over what ranks elsewhere have begun. */
void lien_elsewhere_compare(struct lien_agent *agent, struct lien_node_others *others);
/* Is nobody to be let in, because all nodes are at rest? */
bool lien_elsewhere_holds(const struct lien_agent *agent);
/* The job was looked at, and this is the report (NULL: as before). `reached`: it may be at rest.
 * Takes it over. */
void lien_elsewhere_looked(struct lien_agent *agent, bool reached, json_t *report);
json_t *lien_elsewhere_status(const struct lien_node_status *status);
/* Is the transaction bound to go on whatever a user says? */
bool lien_elsewhere_is_committed(const struct lien_agent *agent);
/* Ends the wait for a coordinator that is not heard from, and undoes what it wants undone. */
void lien_elsewhere_tick(struct lien_agent *agent);
/* The transaction has this result: notes it, and tells the coordinator. */
void lien_elsewhere_ended(struct lien_agent *agent, const struct lien_transaction_result *result);

#endif
