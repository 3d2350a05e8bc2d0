/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Processes that were not watched from their first call on, and those that are to leave: everything
 * that the rest of the agent knows of this folder. `build/lien-without-join` is built without
 * it (without.c): that watches, offloads and restores what was started by `lien run` after it.
 */
#ifndef LIEN_JOIN_H
#define LIEN_JOIN_H

#include "agent/server/client.h"
#include "agent/views/views.h"

/* Starts to ask NCCL's RAS service if `ras`; before there are threads, and before rights are given
 * up. 0 or -errno. */
int lien_join_start(struct lien_agent *agent, bool ras);
void lien_join_tick(struct lien_agent *agent);
/* While the graph is still there. */
void lien_join_stop(struct lien_agent *agent);

/*
 * Requests. Each answers the client when every process has come to its end; `pids`: none, all of the
 * client's that it concerns.
 */
/* Gives processes the control library, reads what they had before they were watched, and adopts
 * them. */
void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* The same before an offload, for processes that could be moved then. True: go_on is called when
 * each is, or cannot, unless the client is gone; a reference to `request` is kept until then.
 * False: there are none. */
bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count,
	json_t *request, void (*go_on)(struct lien_client *client, json_t *request));
/* Has control libraries leave their processes as they were. */
void lien_detach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* Compares the graph with the driver, and repairs it if asked to. */
void lien_compare_start(struct lien_client *client, const uint32_t *pids, unsigned count,
	bool repair, unsigned timeout_ms);

/* An event that the graph has taken in. */
void lien_walks_event(struct lien_agent *agent, const struct lien_event *event);
/* Is this a call that the control library makes to read the driver's state? The graph need not
 * know. */
bool lien_walks_own(struct lien_agent *agent, const struct lien_event *event);
/* The process ends: so does the reading of its state. */
void lien_walk_end(struct lien_agent *agent, struct lien_process *process, const char *error);

/* What NCCL's RAS service says of the viewer's processes, which are asked again unless that has just
 * been done. Valid until the agent's loop goes on. */
struct lien_view_ras lien_ras_refresh(struct lien_agent *agent, const struct lien_viewer *viewer);

/* For struct lien_above: replies to this folder's orders, and the transaction that adopts. */
void lien_walks_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
void lien_detach_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
int lien_adopt_plan(void *agent, struct lien_adoption **out, char *why, size_t size);
void lien_adopt_answered(void *agent);
void lien_adopt_done(struct lien_agent *agent, const struct lien_transaction_result *result);

#endif
