/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `attach`: makes processes that were started without lien, for a client, like any other. Those
 * that lack the control library get it; of those that ran before they were watched, what they have
 * mapped is read from the driver, and then they are adopted (adoption.h), all together.
 */
#ifndef LIEN_ATTACH_H
#define LIEN_ATTACH_H

#include "agent/core/agent.h"

/* The adoption that one of them began has ended. */
void lien_attach_adopted(struct lien_agent *agent, const struct lien_transaction_result *result);
void lien_attach_stop(struct lien_agent *agent);

#endif
