/* SPDX-License-Identifier: BSD-2-Clause */
/* A client, as the server and whoever answers it know it. */
#ifndef LIEN_CLIENT_CONNECTION_H
#define LIEN_CLIENT_CONNECTION_H

#include <bsd/sys/queue.h>
#include <jansson.h>

#include "agent/core/agent.h"

struct lien_user;

/* What a client waits for, and what may go on without it. Embedded in what has it. */
struct lien_client_job {
	/* The client goes. */
	void (*drop)(struct lien_client_job *job);
};

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
	size_t in_at;		     /* where the next line begins; these two count from there: */
	size_t line_end;	     /* behind its newline; 0: it is not whole yet */
	size_t searched;	     /* no newline before */
	size_t out_sent;	     /* of out_length: what is left follows */
	json_t *postponed;	     /* a request that is handled later; NULL: none */
	bool until_quiet;	     /* then: when no probes are being taken away, or else after the
					transaction that is under way */
	uint64_t t_quiet;	     /* since when that is waited for; 0: it is not */
	bool waiting;		     /* for the transaction: its requests after that one wait too */
	struct lien_client_job *job; /* or for this, not NULL then */
	bool recording;		     /* gets every event, binary */
	bool ended;		     /* will ask no more; to be closed when it has its answer */
	bool broken;		     /* to be closed */
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

void lien_reply_write(struct lien_client *client, const void *data, size_t size);
/* These three take the reference. */
void lien_reply_send(struct lien_client *client, json_t *message);
void lien_reply_result(struct lien_client *client, json_t *result);
void lien_reply_error(struct lien_client *client, const char *error);
/* One that another attempt, a little later, may not meet. */
void lien_reply_busy(struct lien_client *client, const char *error);

#endif
