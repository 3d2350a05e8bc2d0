/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent: one thread and one epoll loop. It reads what the probes report, keeps the graph, holds
 * the links to the control libraries, serves clients and drives one transaction at a time. Slow
 * work, such as reading symbols (sites.c) or asking NVML (node.c), runs in threads of its own that
 * know nothing of the rest (jobs.h). All of the agent's own files share this header. Their order
 * is core < server < link < quiesce < orders < join < processes < daemon; no file includes one from
 * a later layer.
 */
#ifndef LIEN_AGENT_H
#define LIEN_AGENT_H

#include <bsd/sys/queue.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/core/log.h"
#include "agent/graph/devices.h"
#include "agent/graph/graph.h"
#include "agent/plan/host.h"
#include "agent/plan/plan.h"
#include "agent/transaction/transaction.h"
#include "agent/reread/adoption.h"
#include "loader/probes/files.h"
#include "loader/probes/probes.h"

/* The module that gives an order and gets the replies. */
enum lien_asker {
	LIEN_ASK_NOBODY,
	LIEN_ASK_HELLO,	  /* the first question */
	LIEN_ASK_GATE,	  /* opens what an earlier agent has shut */
	LIEN_ASK_WALK,	  /* walks.c */
	LIEN_ASK_PREPARE, /* prepare.c */
	/* The next two wait for the order under way: */
	LIEN_ASK_END, /* detach.c */
	LIEN_ASK_TRANSACTION,
	LIEN_ASK_COUNT,
};

/* Where a control library's code and state are in its process's memory. */
struct lien_control_place {
	uint64_t text, text_end; /* its code */
	uint64_t state;		 /* address of lien_control_state; 0: the library is not ours */
};

/* A file descriptor that epoll watches. */
struct lien_source {
	int fd;
	void (*ready)(struct lien_source *source, uint32_t events);
	const char *name;
	/* handled once the graph has everything that was reported before it was ready */
	bool reacts;
	uint64_t mark; /* for that (daemon/run.c) */
};

#define LIEN_LATE_MAX 16

/* The agent's part of a process (struct lien_process.agent). */
struct lien_tracked {
	struct lien_agent *agent;
	uint32_t pid;
	struct lien_control_place place; /* .state 0: no control library found */
	struct lien_link *link;
	struct lien_source orders; /* the link's socket */
	struct lien_source life;   /* the process's pidfd */
	/* its control thread has run, as far as the agent has seen */
	bool started;
	bool heard;			 /* it has said what it holds, to this agent */
	uint64_t t_called;		 /* last call that may have woken its control thread */
	uint64_t t_woken;		 /* when a signal was last ordered for it */
	struct lien_walk *walk;		 /* the driver is being read for this process */
	uint64_t t_lost;		 /* when events of it were last lost */
	uint64_t t_reread, reread_delay; /* no automatic re-read before; current delay */
	bool look_again; /* its mappings could not be read in time: see processes/watch.c */
	/* During an order for its host arena: the bytes that are missing; the order adds a part of
	 * them. */
	uint64_t preparing_bytes;
	bool arena_released;	/* on request: do not prepare before its next offload */
	uint64_t prepare_bytes; /* bytes it could offload at the last look */
	uint64_t prepared_at;	/* events of all processes, plus 1, when it had enough */
	uint64_t t_prepare;	/* do not prepare before */
	unsigned multicast;	/* its devices that support multicast */
	bool objects;		/* it maps what cuMemCreate did not make: multicast objects, */
	bool own_objects;	/* of which some may be its own alone */
	bool gate_all;		/* memory other than NCCL's is being moved or is away */
	unsigned comms_away;	/* communicators that its gate tells apart from others */
	bool gate_shared;     /* its gate's probes may be in all processes: nobody else is there */
	uint32_t gate_mapped; /* libraries mapped when the gate was attached to them */
	uint64_t t_gate;      /* memory of it is away, and its gate is to be made then; 0: no */
	uint64_t t_cover;     /* do not look at what it has loaded before */
	/* When its gate was made for the transaction, it was shut, and held this. */
	bool gate_was_shut, gate_was_all;
	bool let_go_later;	      /* its gate has threads that it would not hold now */
	uint32_t late[LIEN_LATE_MAX]; /* found late by agent/quiesce/quiesce.c */
	unsigned late_count;
	bool gate_mixed; /* memory is away that may be several communicators' */
	struct lien_probe_shut gate_held;
	uint32_t gate_unheld;	 /* unheld threads that the log has named */
	enum lien_on_use on_use; /* of the last offload */
	/* A use brings back all that is away: no offload has named communicators or tags. */
	bool use_all;
	uint64_t t_use;		  /* no check for threads that need offloaded memory before */
	struct lien_since *since; /* its counts at the last rest (agent/quiesce/standings.c) */
	uint64_t since_number;	  /* of that rest */
	uint64_t t_told;	  /* the log has named threads held up to this time */
};

struct lien_walk;
struct lien_jobs;

struct lien_server;
struct lien_elsewhere;
struct lien_outcomes;
struct lien_sites;
struct lien_daemon;
struct lien_probing;
struct lien_ras;
struct lien_netns;

struct lien_link;
struct lien_reply;
struct lien_transfer;

/* Gets the events whose types are in this range. */
struct lien_subscriber {
	unsigned first, last;
	void (*event)(struct lien_agent *agent, const struct lien_event *event);
};

/* Calls from these modules to those above them. */
struct lien_above {
	/* An event reaches them in this order. An entry without a function ends the table. */
	const struct lien_subscriber *subscribers;
	bool (*consume)(struct lien_agent *agent, bool all);
	/* Reads what a process has mapped by now, and looks for its control library. */
	void (*look)(struct lien_agent *agent, struct lien_process *process);
	/* Takes note of a file that is a control library, under the process's name for it. */
	void (*control_file)(struct lien_agent *agent, uint32_t pid, const char *path);
	/* Open files were read: open_files.h. */
	void (*files_read)(struct lien_agent *agent);
	/* Replies to orders, indexed by who gave the order. NULL: no module above wants them. */
	void (*reply[LIEN_ASK_COUNT])(
		struct lien_agent *agent, uint32_t pid, const struct lien_reply *reply);
	/* As lien_orders_restore(). */
	int (*restore)(struct lien_agent *agent, const struct lien_selection *selection,
		const struct lien_how *how, bool *nothing, char *error, size_t error_size);
};

/* How long the loop's turns took since the agent started. A turn is the work between two looks at
 * the sources (agent/daemon/run.c); its longest part names it. */
struct lien_turns {
	uint64_t count, requests;
	/* The longest turn, without the time that it waited for a processor; and the CPU time of
	 * the agent's thread in it. */
	uint64_t longest_ns, longest_cpu_ns;
	uint64_t longest_ready_ns; /* longest time that a turn waited for a processor */
	char longest_in[48];	   /* the part of it that took longest: "source orders" */
	unsigned most_requests;	   /* handled in one turn */
	unsigned most_records;	   /* taken from the ring in one turn */
	uint64_t answers;	   /* made by copies of the agent (daemon/requests.h) */
	unsigned most_answers;	   /* at a time, for one user other than root */
	/* The current turn. */
	uint64_t t_begun, cpu_begun, ready_begun, t_part, longest_part_ns;
	int schedstat; /* the thread's /proc file */
	const char *part[2], *longest_part[2];
	unsigned turn_requests, turn_records;
};

/* A user whose offload gave way to another user's request. */
struct lien_gave_way {
	struct lien_viewer who;
	uint64_t t; /* when; 0: nobody */
};

#define LIEN_GAVE_WAY 16

struct lien_agent {
	const struct lien_above *above;
	int epoll;
	bool stopping;
	uint64_t t_finish; /* give no more short orders, and end by then; 0: not yet */
	struct lien_turns turns;
	uint64_t token_base; /* of what it moves: see lien_agent_moved() */
	struct lien_graph *graph;
	struct lien_jobs *jobs;
	struct lien_probes *probes;
	struct lien_source ring, signals;
	struct lien_server *server;
	struct lien_sites *sites;
	struct {
		struct lien_node now; /* NVML's last answer */
		uint64_t t_now;	      /* 0: never asked */
		uint64_t t_outdated;  /* not to be used if it is from before */
	} node;
	struct lien_open_files {
		struct lien_files files;
		int err;
		uint64_t t; /* when it was begun to be read; 0: never */
	} open_files;
	struct lien_daemon *daemon; /* what only agent/daemon knows */
	struct lien_probing *probing;
	struct {
		uint32_t pid; /* looked at last */
		uint64_t t_look;
	} rewritten; /* processes/rewritten.c */
	struct lien_netns *netns;
	struct lien_ras *ras; /* NULL: NCCL's RAS is not asked */
	/* leave what is known of processes to the next agent */
	bool ended;
	struct lien_transaction *transaction; /* NULL: none */
	struct lien_plan plan;		      /* of the transaction, if it is an offload */
	struct lien_transfer *transfer;	      /* the request for that offload */
	struct lien_adoption adoption;	      /* of the transaction; .count 0: it is none */
	bool transaction_ended;		      /* the loop frees it */
	bool transaction_own;	 /* the agent started it on its own: others wait for it */
	struct lien_blame blame; /* of the last request for a transaction that failed */
	uint64_t t_transaction;
	struct lien_viewer transaction_of;	      /* who asked for it */
	struct lien_gave_way gave_way[LIEN_GAVE_WAY]; /* the last ones, oldest overwritten first */
	unsigned next_gave_way;
	struct lien_elsewhere *elsewhere;  /* of the transaction, if other nodes take part */
	struct lien_outcomes *outcomes;	   /* of such transactions */
	struct lien_totals totals;	   /* of all that have ended */
	struct lien_shortfalls shortfalls; /* of the last offload that had any, */
	bool fell_short;		   /* which is the last one of all */
	uint64_t t_process_end;		   /* when one was last taken out of the graph */
	uint64_t t_swept;
	uint32_t swept; /* the last process checked for being alive */
	bool loaded;	/* some process's control thread has yet to start, */
	bool waking;	/* and may do so now */
	unsigned walks; /* processes that are being read from the driver */
	bool no_attach;
	bool prepare_limited;	  /* also in memory cgroups with a limit */
	unsigned prepare_percent; /* of the host's available memory that is pinned in advance */
	uint64_t host_limit;	  /* of all processes' host arenas together; 0: no limit */
	struct lien_host_files host;
	bool is_copy; /* daemon/requests.h: does not act, and does not read reports */
	LIST_HEAD(, lien_join_job) joins; /* join/job.h */
	int control;			  /* the control library's file; -1: not installed */
	uint64_t taken_over;		  /* events that an earlier agent saw */
};

/* Did this agent move what has this token (struct lien_wire_item), and no earlier one? */
static inline bool lien_agent_moved(const struct lien_agent *agent, uint64_t token)
{
	return token >> 32 == agent->token_base >> 32;
}

/* Returns the agent's part of a process, and makes it if necessary. NULL: out of memory. */
struct lien_tracked *lien_agent_track(struct lien_agent *agent, struct lien_process *process);

int lien_agent_watch(struct lien_agent *agent, struct lien_source *source, uint32_t events);

/*
 * Returns an event that the agent itself makes, with the current time. The caller fills in the
 * body, if there is one, and .size.
 */
struct lien_event lien_agent_event_of(uint32_t pid, uint64_t start, unsigned type);
/* Passes an event of the kernel side or of the agent itself to its subscribers: the graph, and
 * those around it. */
void lien_agent_event(struct lien_agent *agent, const struct lien_event *event);
/* Tells both that these are the reasons now why the process is not known whole. */
void lien_agent_set_incomplete(
	struct lien_agent *agent, const struct lien_process *process, uint32_t reasons);
/* Takes in everything that the probes have reported so far, however long it takes: for the agent's
 * start and end. */
static inline void lien_agent_consume(struct lien_agent *agent)
{
	agent->above->consume(agent, true);
}

/*
 * The same within a turn of the loop. Returns false if it stopped before the end, because jobs have
 * reported more than one turn has time for: the graph is older than the call.
 */
bool lien_agent_catch_up(struct lien_agent *agent);

struct lien_counted;
/* Returns what the kernel side has counted of collectives; the caller frees it. On error returns
 * -errno and sets *counted to NULL. */
int lien_agent_counted(struct lien_agent *agent, struct lien_counted **counted, size_t *count);

/* The loop's turns: turns.c. Call these in the loop's thread. */
void lien_turns_start(struct lien_turns *turns);
void lien_turns_stop(struct lien_turns *turns);
void lien_turn_begin(struct lien_turns *turns);
void lien_turn_end(struct lien_turns *turns);
/*
 * Names what the agent does from now on in this turn. Both strings are static, such as "request"
 * and "check".
 */
void lien_turn_part(struct lien_agent *agent, const char *kind, const char *name);

#endif
