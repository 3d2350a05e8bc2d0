/* SPDX-License-Identifier: BSD-2-Clause */
/* A client, as known to the server and to the code that answers it. */
#ifndef LIEN_CLIENT_CONNECTION_H
#define LIEN_CLIENT_CONNECTION_H

#include <bsd/sys/queue.h>
#include <jansson.h>

#include "agent/core/agent.h"

struct lien_user;

/*
 * Work that a client waits for, and that may go on without the client. Embedded in the work's own
 * structure.
 */
struct lien_client_job {
	/* The client goes away. */
	void (*drop)(struct lien_client_job *job);
};

/* What a client waits for before its next request is handled. */
enum lien_wait {
	LIEN_WAIT_NOTHING,
	LIEN_WAIT_TRANSACTION, /* the end of the transaction, which is its answer */
	LIEN_WAIT_JOB,	       /* lien_client.job */
	LIEN_WAIT_TURN,	       /* no transaction is under way */
	LIEN_WAIT_QUIET,       /* no probes are being removed, or open files have been read */
};

struct lien_client {
	LIST_ENTRY(lien_client) next;
	struct lien_source source;
	struct lien_agent *agent;
	struct lien_viewer viewer; /* the user, from the kernel (SO_PEERCRED) */
	struct lien_user *user;	   /* shared by all clients of that user */
	TAILQ_ENTRY(lien_client) turn;
	bool queued; /* in the list of clients with a request */
	char *in, *out;
	size_t in_length, out_length, out_room;
	size_t in_at;	   /* where the next line begins; the next two count from here */
	size_t line_end;   /* behind its newline; 0: the line is incomplete */
	size_t searched;   /* no newline before this */
	size_t out_sent;   /* of out_length: the rest follows */
	int passed;	   /* a descriptor that goes with the next byte; -1: none */
	uint64_t mark;	   /* of its next request, once that has its turn (lien_server_mark()) */
	json_t *postponed; /* a request that is handled again after the wait; NULL: none */
	enum lien_wait waits;
	struct lien_client_job *job; /* NULL: none */
	/* when the request was handled first, or last after another wait than LIEN_WAIT_QUIET */
	uint64_t t_asked;
	bool attached;	 /* the request has attached to processes since */
	bool may_cancel; /* the request that waits can be cancelled */
	bool cancelled;	 /* it is not to be carried out */
	bool recording;	 /* gets every event, binary */
	bool ended;	 /* asks no more; close it when it has its answer */
	bool broken;	 /* close it */
};

/* The client has its answer: its next request may be handled. */
void lien_client_go_on(struct lien_client *client);
/* The request is handled again after the wait. */
void lien_client_postpone(struct lien_client *client, json_t *request, enum lien_wait waits);
/*
 * Adds to the number of its user's answers that copies of the agent are making; returns that
 * number.
 */
unsigned lien_client_answers(struct lien_client *client, int more);
/* Makes the client get every event from now on. */
void lien_client_record(struct lien_client *client);

void lien_reply_write(struct lien_client *client, const void *data, size_t size);
/* The next two take over the reference. */
void lien_reply_send(struct lien_client *client, json_t *message);
void lien_reply_result(struct lien_client *client, json_t *result);
/* An empty result that comes with the descriptor, which it takes over. */
void lien_reply_pass(struct lien_client *client, int fd);
void lien_reply_error(struct lien_client *client, const char *error);
void lien_reply_failure(struct lien_client *client, const char *error, struct lien_blame blame);
/* The request itself is wrong: a member that makes no sense, or a name that nothing has. Returns
 * false. */
bool lien_reply_invalid(struct lien_client *client, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* An error that may be gone a little later. */
void lien_reply_busy(struct lien_client *client, const char *error, struct lien_blame blame);

#endif
