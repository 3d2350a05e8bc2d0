/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The communicators of processes that ran before they were watched, as NCCL's RAS names them. RAS
 * is asked, and the processes' memory searched (agent/ras/ras_match.h), by a thread of its own;
 * what comes out is told to the graph as events (LIEN_EVENT_FOUND), and kept for the views.
 *
 * Nothing is believed across users or network namespaces: an answer counts for those processes
 * alone that live in the namespace in which it was given, and are of the user whose socket gave it.
 */
#ifndef LIEN_RAS_H
#define LIEN_RAS_H

#include "agent/core/agent.h"
#include "agent/ras/report.h"

struct lien_ras;

/* Before there are threads, and before rights are given up. */
int lien_ras_start(struct lien_agent *agent);
void lien_ras_stop(struct lien_agent *agent);
void lien_ras_tick(struct lien_agent *agent);

#endif
