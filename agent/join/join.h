/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Joins processes that were not watched from their first call on, and lets processes leave. This is
 * everything that the rest of the agent knows of the folder. build/lien-without-join is linked with
 * tests/integration/without_join.c instead: it watches, offloads and restores jobs that
 * `lien run` started after it.
 */
#ifndef LIEN_JOIN_H
#define LIEN_JOIN_H

#include "agent/server/client.h"
#include "agent/views/views.h"

/* Starts asking NCCL's RAS service if `ras`. Call it before there are threads and before privileges
 * are dropped. 0 or -errno. */
int lien_join_start(struct lien_agent *agent, bool ras);
void lien_join_tick(struct lien_agent *agent);
/* Call it while the graph still exists. */
void lien_join_stop(struct lien_agent *agent);

/* Requests. Each answers the client when it is done with every process. Without pids it takes all
 * of the viewer's processes that it concerns. */
/* Gives processes the control library, reads their state from the driver, and adopts them. */
void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* Does the same before an offload, for processes that it could then move. Returns true if there are
 * any: the client goes on when each is attached or cannot be. */
bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count);
/* Marks the processes (none named: all) that this would give the library (lien_process.joins). */
void lien_attach_expect(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count);
/* Has control libraries leave their processes as they found them. */
void lien_detach_start(struct lien_client *client, const uint32_t *pids, unsigned count);
/* Compares the graph with the driver, and repairs the graph if `repair`. */
void lien_compare_start(struct lien_client *client, const uint32_t *pids, unsigned count,
	bool repair, unsigned timeout_ms);

/* Connects the client to a process's socket for legacy IPC in another network namespace, and passes
 * it the connection with the answer. */
void lien_ipc_connect_request(struct lien_client *client, json_t *request);

/* Take events that the graph has applied: of a process some were lost; it has made a call. */
void lien_walks_lost(struct lien_agent *agent, const struct lien_event *event);
void lien_walks_call(struct lien_agent *agent, const struct lien_event *event);
/* Does a control library make this call to read the driver's state? The graph does not need it. */
bool lien_walks_own(struct lien_agent *agent, const struct lien_event *event);
/* Ends the reading of a process's state early. */
void lien_walk_end(struct lien_agent *agent, struct lien_process *process, const char *error);

/* Asks NCCL's RAS service about the processes that the viewer sees, unless that has just been done.
 * Returns true while it is being asked. */
bool lien_ras_refresh(struct lien_agent *agent, const struct lien_viewer *viewer);

/* For struct lien_above: replies to the folder's orders. */
void lien_walks_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
void lien_detach_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);

#endif
