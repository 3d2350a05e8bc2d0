// SPDX-License-Identifier: BSD-2-Clause
/* Replaces agent/join in build/lien-without-join. */
#include "agent/join/join.h"

#define WITHOUT "this agent was built without agent/join"

int lien_join_start(struct lien_agent *agent, bool ras)
{
	(void)agent, (void)ras;
	return 0;
}

void lien_join_tick(struct lien_agent *agent)
{
	(void)agent;
}

void lien_join_stop(struct lien_agent *agent)
{
	(void)agent;
}

void lien_attach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	(void)pids, (void)count;
	lien_reply_error(client, WITHOUT);
}

void lien_attach_expect(struct lien_agent *agent, const struct lien_viewer *viewer,
	const uint32_t *pids, unsigned count)
{
	(void)agent, (void)viewer, (void)pids, (void)count;
}

bool lien_attach_before(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	(void)client, (void)pids, (void)count;
	return false;
}

void lien_detach_start(struct lien_client *client, const uint32_t *pids, unsigned count)
{
	(void)pids, (void)count;
	lien_reply_error(client, WITHOUT);
}

void lien_compare_start(struct lien_client *client, const uint32_t *pids, unsigned count,
	bool repair, unsigned timeout_ms)
{
	(void)pids, (void)count, (void)repair, (void)timeout_ms;
	lien_reply_error(client, WITHOUT);
}

void lien_ipc_connect_request(struct lien_client *client, json_t *request)
{
	(void)request;
	lien_reply_error(client, WITHOUT);
}

void lien_walks_lost(struct lien_agent *agent, const struct lien_event *event)
{
	(void)agent, (void)event;
}

void lien_walks_call(struct lien_agent *agent, const struct lien_event *event)
{
	(void)agent, (void)event;
}

bool lien_walks_own(struct lien_agent *agent, const struct lien_event *event)
{
	(void)agent, (void)event;
	return false;
}

void lien_walk_end(struct lien_agent *agent, struct lien_process *process, const char *error)
{
	(void)agent, (void)process, (void)error;
}

bool lien_ras_refresh(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	(void)agent, (void)viewer;
	return false;
}

/* No such orders are sent. */
void lien_walks_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	(void)agent, (void)pid, (void)reply;
}

void lien_detach_reply(struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply)
{
	(void)agent, (void)pid, (void)reply;
}
