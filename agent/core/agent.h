/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent: one thread, one epoll loop. Reads what the probes report, keeps the graph, holds the
 * links to the control libraries, serves clients and drives one transaction at a time. What may
 * take long, reading symbols (sites.c) and asking NVML (node.c), is done by threads of their own,
 * which know nothing of the rest (worker.h). Shared by the agent's own files: core < server < link
 * < quiesce < orders < join < daemon, and nobody includes what is behind.
 */
#ifndef LIEN_AGENT_H
#define LIEN_AGENT_H

#include <bsd/sys/queue.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/core/asker.h"
#include "agent/core/log.h"
#include "agent/core/turns.h"
#include "agent/graph/graph.h"
#include "agent/journal/journal.h"
#include "agent/offload/host.h"
#include "agent/offload/plan.h"
#include "agent/offload/transaction.h"
#include "agent/offload/request.h"
#include "agent/reread/adoption.h"
#include "loader/probes/probes.h"

/* Something epoll watches. */
struct lien_source {
	int fd;
	void (*ready)(struct lien_source *source, uint32_t events);
	const char *name;
	bool reacts; /* the graph is to have all that was reported before, first */
};

/* The agent's part of a process (struct lien_process.agent). */
struct lien_tracked {
	struct lien_agent *agent;
	uint32_t pid;
	struct lien_control_place place; /* .state 0: no control library found */
	struct lien_link *link;
	struct lien_source orders;	 /* the link's socket */
	struct lien_source life;	 /* its pidfd */
	bool started;			 /* its control thread has run, as far as was seen */
	uint64_t t_first;		 /* first time it was looked for */
	uint64_t t_woken;		 /* last time a signal was ordered for it */
	struct lien_walk *walk;		 /* it is being read from the driver */
	uint64_t t_lost;		 /* last time that events of it were lost */
	uint64_t t_reread, reread_delay; /* not to be read by itself before; and then */
	struct lien_ordinals *ordinals;	 /* NULL: not known */
	bool unread;			 /* its mappings could not be read in time */
	bool follow_later;		 /* nor be followed: see contexts.c */
	/* While an order for its host arena is under way: what is missing, of which it adds a part.
	 */
	uint64_t preparing_bytes;
	bool arena_released;	 /* on request: not prepared before its next offload */
	uint64_t prepare_bytes;	 /* what it could offload, when that was last looked at */
	uint64_t prepared_at;	 /* events of all processes, and 1, when it had enough */
	uint64_t t_prepare;	 /* not before */
	unsigned multicast;	 /* devices of it that support that */
	bool strange;		 /* it maps what is no memory of cuMemCreate's */
	bool gate_all;		 /* more than NCCL's memory is moved, or away */
	uint32_t gate_mapped;	 /* libraries mapped, when the gate was attached to them */
	uint32_t gate_unheld;	 /* threads that the log has named as not held */
	enum lien_on_use on_use; /* of the last offload */
	uint64_t t_use;		 /* not to be looked at before: whether it needs what is away */
	uint64_t t_told;	 /* those that were held up to then have been named in the log */
};

struct lien_walk;
struct lien_worker;

struct lien_server;
struct lien_sites;
struct lien_agent_node;
struct lien_probing;
struct lien_ras;

struct lien_link;
struct lien_reply;

/* What the modules here leave to those above them. */
struct lien_above {
	void (*event)(struct lien_agent *agent, const struct lien_event *event);
	void (*consume)(struct lien_agent *agent);
	/* Looks what a process has mapped by now, and for its control library. */
	void (*look)(struct lien_agent *agent, struct lien_process *process);
	/* A file that is a control library, as the process has it. */
	void (*control_file)(struct lien_agent *agent, uint32_t pid, const char *path);
	/* Replies to orders, by who gave them. NULL: nobody above wants them. */
	void (*reply[LIEN_ASK_COUNT])(
		struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
	/* As lien_orders_restore(). */
	int (*restore)(struct lien_agent *agent, const struct lien_selection *selection,
		uint32_t flags, unsigned timeout_ms, bool *nothing, char *error, size_t error_size);
	/* Of a transaction that is an adoption: what to ask when all are at rest, the answers while
	 * they still are, its end. */
	int (*adopt_plan)(void *agent, struct lien_adoption **out, char *why, size_t size);
	void (*adopt_answered)(void *agent);
	void (*adopt_done)(struct lien_agent *agent, const struct lien_transaction_result *result);
};

struct lien_agent {
	const struct lien_above *above;
	int epoll;
	bool stopping;
	bool finishing;	       /* the loop has ended: no more short orders */
	bool consuming;	       /* the ring: not to be entered again */
	uint64_t t_ring;       /* until then it is not waited for; 0: it is */
	uint64_t ring_until;   /* the graph is to have all up to this position; 0: any will do */
	unsigned records_left; /* to be taken from the ring in this turn */
	uint64_t t_records;    /* when that began */
	struct lien_turns turns;
	uint64_t t_start;
	uint64_t token_base;
	struct lien_graph *graph;
	struct lien_probes *probes;
	struct lien_source ring, signals;
	struct lien_server *server;
	struct lien_sites *sites;
	struct lien_agent_node *node;
	struct lien_probing *probing;
	struct lien_ras *ras;		      /* NULL: NCCL's RAS is not asked */
	bool ended;			      /* what is known of processes is for the next agent */
	uint64_t t_contexts;		      /* when those that are followed were looked at */
	struct lien_transaction *transaction; /* NULL: none */
	struct lien_plan plan;		      /* of the transaction, if it is an offload */
	struct lien_offload_request request;		      /* then */
	bool adopting;			      /* the transaction is an adoption */
	struct lien_adoption adoption;	      /* of the transaction, if it is one */
	uint32_t *adopted;		      /* then: the processes that have been read */
	unsigned adopted_count;
	uint32_t *at_rest; /* and those that are brought to rest */
	unsigned at_rest_count;
	bool transaction_ended; /* to be freed by the loop */
	bool transaction_own;	/* the agent has started it by itself: others wait for it */
	uint64_t t_transaction;
	struct lien_viewer transaction_of; /* who asked for it */
	uint64_t lost_seen;
	uint64_t t_swept;
	uint32_t swept;	 /* the last process of which it was asked whether it still lives */
	unsigned waking; /* processes whose control thread is to start */
	unsigned walks;	 /* processes that are being read from the driver */
	bool no_prepare, no_attach;
	uint64_t host_limit; /* of all processes' host arenas together; 0: none */
	struct lien_host_files host;
	bool is_copy; /* answers.h: not to act, nor to read what is reported */
	LIST_HEAD(, lien_answer) answers;
	LIST_HEAD(, lien_join_job) joins; /* join/job.h */
	LIST_HEAD(, lien_injector) injectors; /* attach.c */
	int control;			      /* the control library's file; -1: not installed */

	struct lien_journal *journal; /* NULL: none is kept */
	char *journal_path;
	uint64_t journal_limit;
	char journal_problem[300]; /* why none is kept, or not all was taken over; "": all is well
				    */
	uint64_t taken_over;	   /* events that an earlier agent saw */
	bool keep_probes;	   /* at an orderly stop */
	bool ring_resumed;	   /* the ring's next record may be in the journal */
};

/* The agent's part of a process, made if it is not there. NULL: out of memory. */
struct lien_tracked *lien_agent_track(struct lien_agent *agent, struct lien_process *process);

int lien_agent_watch(struct lien_agent *agent, struct lien_source *source, uint32_t events);

/* An event that the agent makes itself, now; its body and .size are the caller's if it has one. */
struct lien_event lien_agent_event_of(uint32_t pid, uint64_t start, unsigned type);
/* Applies an event to the graph and hands it to whom it concerns. */
void lien_agent_event(struct lien_agent *agent, const struct lien_event *event);
/* Takes in all that the probes have reported so far. */
void lien_agent_consume(struct lien_agent *agent);

#endif
