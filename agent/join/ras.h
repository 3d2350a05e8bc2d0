/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The communicators of processes that ran before they were watched, as NCCL's RAS names them. A
 * thread asks RAS and searches the processes' memory (agent/ras/ras_match.h); the results go into
 * the graph as events (LIEN_EVENT_FOUND), and are kept for the views.
 *
 * No answer counts across users or network namespaces: it counts only for processes that live in
 * the namespace in which it was given, and that belong to the user whose socket gave it.
 */
#ifndef LIEN_RAS_H
#define LIEN_RAS_H

#include "agent/core/agent.h"
#include "agent/ras/report.h"

struct lien_ras;

/* agent->netns is there. */
int lien_ras_start(struct lien_agent *agent);
void lien_ras_stop(struct lien_agent *agent);
void lien_ras_tick(struct lien_agent *agent);

#endif
