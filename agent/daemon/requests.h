/* SPDX-License-Identifier: BSD-2-Clause */
/* What clients may ask (docs/protocol.md), and the client as the server and the requests know it.
 */
#ifndef LIEN_REQUESTS_H
#define LIEN_REQUESTS_H

#include <jansson.h>

#include "agent/daemon/agent.h"
#include "agent/views/views.h"

struct lien_user;

struct lien_client {
	LIST_ENTRY(lien_client) next;
	struct lien_source source;
	struct lien_agent *agent;
	struct lien_viewer viewer; /* who it is, as the kernel says (SO_PEERCRED) */
	struct lien_user *user;	   /* all clients of that user */
	TAILQ_ENTRY(lien_client) turn;
	bool queued; /* among those whose request is to be handled */
	char *in, *out;
	size_t in_length, out_length, out_room;
	size_t in_at;		    /* where the next line begins; these two count from there: */
	size_t line_end;	    /* behind its newline; 0: it is not whole yet */
	size_t searched;	    /* no newline before */
	size_t out_sent;	    /* of out_length: what is left follows */
	json_t *postponed;	    /* a request that is handled later; NULL: none */
	bool until_quiet;	    /* then: when no probes are being taken away, or else after the
				       transaction that is under way */
	uint64_t t_quiet;	    /* since when that is waited for; 0: it is not */
	bool waiting;		    /* for the transaction: its requests after that one wait too */
	struct lien_answer *answer; /* or for this, not NULL then, */
	struct lien_compare *compare; /* or this, */
	struct lien_attach *attach;   /* or this, */
	struct lien_detach *detach;   /* or this */
	bool recording;		      /* gets every event, binary */
	bool ended;		      /* will ask no more; to be closed when it has its answer */
	bool broken;		      /* to be closed */
};

/* The client has its answer: its next request may be handled. */
void lien_client_go_on(struct lien_client *client);
/* The request is handled after the transaction that is under way; or when no probes are being taken
 * away. */
void lien_client_postpone(struct lien_client *client, json_t *request, bool until_quiet);
/* So many more of its user's answers are being made by copies of the agent; how many there are. */
unsigned lien_client_answers(struct lien_client *client, int more);
/* It gets every event from now on. */
void lien_client_record(struct lien_client *client);

/* Answers a request (NULL: no JSON), or begins what will be answered later. */
void lien_request(struct lien_client *client, json_t *request);
/* An offload that has waited until processes had control libraries. */
void lien_request_attached(struct lien_client *client, json_t *request);
/* The transaction that the client waits for has ended. */
void lien_request_done(struct lien_client *client);

void lien_reply_write(struct lien_client *client, const void *data, size_t size);
/* These three take the reference. */
void lien_reply_send(struct lien_client *client, json_t *message);
void lien_reply_result(struct lien_client *client, json_t *result);
void lien_reply_error(struct lien_client *client, const char *error);
/* One that another attempt, a little later, may not meet. */
void lien_reply_busy(struct lien_client *client, const char *error);

/* status.c: the answer, NULL without memory. */
json_t *lien_agent_status(struct lien_agent *agent, const struct lien_viewer *viewer);
/* A part of it: the host arenas of all processes together. */
json_t *lien_agent_host(struct lien_agent *agent);
/* comms.c: the answer, NULL without memory; and how many communicators the kernel side counts. */
json_t *lien_agent_comms(struct lien_agent *agent, const struct lien_viewer *viewer);
unsigned lien_agent_comms_counted(struct lien_agent *agent);
/* What the kernel side has counted; the caller frees. -errno: nothing of it, and *counted NULL. */
int lien_agent_counted(struct lien_agent *agent, struct lien_counted **counted, size_t *count);

#endif
