/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent: one thread, one epoll loop. Reads what the probes report, keeps the graph, holds the
 * links to the control libraries, serves clients and drives one transaction at a time. What may
 * take long, reading symbols (sites.c) and asking NVML (node.c), is done by threads of their own,
 * which know nothing of the rest (worker.h). Shared by the agent's own files.
 */
#ifndef LIEN_AGENT_H
#define LIEN_AGENT_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/reread/adoption.h"
#include "agent/graph/graph.h"
#include "agent/offload/host.h"
#include "agent/journal/journal.h"
#include "agent/link/link.h"
#include "agent/daemon/loop.h"
#include "agent/offload/plan.h"
#include "agent/offload/transaction.h"
#include "agent/offload/wish.h"
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
struct lien_compare;
struct lien_attach;
struct lien_detach;
struct lien_worker;

struct lien_server;
struct lien_sites;
struct lien_agent_node;
struct lien_probing;
struct lien_ras;

/* What an orderly stop does with the probes in running jobs, unless memory is away. */
enum lien_on_stop {
	LIEN_ON_STOP_DETACH, /* takes them off: jobs pay nothing; the next agent begins anew */
	LIEN_ON_STOP_KEEP,   /* leaves them, and the journal, for the next agent */
};

struct lien_agent {
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
	struct lien_wish wish;		      /* then */
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
	LIST_HEAD(, lien_compare) compares;
	LIST_HEAD(, lien_attach) attaches;
	LIST_HEAD(, lien_detach) detaches;
	LIST_HEAD(, lien_injector) injectors; /* attach.c */
	int control;			      /* the control library's file; -1: not installed */

	struct lien_journal *journal; /* NULL: none is kept */
	char *journal_path;
	uint64_t journal_limit;
	char journal_problem[300]; /* why none is kept, or not all was taken over; "": all is well
				    */
	uint64_t taken_over;	   /* events that an earlier agent saw */
	enum lien_on_stop on_stop;
	bool ring_resumed; /* the ring's next record may be in the journal */
};

/* Jobs wait for the agent's main thread, and for those that look for it: these come before whatever
 * keeps the processors busy. What takes long has the usual rank (setpriority()). */
#define LIEN_NICE (-10)

struct lien_agent_config {
	const char *socket;
	const char *const *libraries; /* more files to probe; NULL-terminated or NULL */
	const char *control; /* the control library that `lien run` uses; NULL: not installed */
	bool no_multi;
	unsigned threads;	/* that use CUDA and are followed; 0: the usual number */
	unsigned ring_mib;	/* of the ring buffer, a power of 2; 0: the usual size */
	bool no_journal;	/* all that is known goes with the agent */
	uint64_t journal_limit; /* bytes, from which on a snapshot replaces it */
	uint64_t host_limit;	/* bytes of all host arenas together; 0: none but the host's own */
	bool no_prepare;	/* none is made before it is needed */
	bool no_ras;		/* NCCL's RAS is not asked; */
	bool ras_text;		/* it is, also of versions that answer in words only */
	bool no_attach;		/* control libraries are put into processes on request alone */
	enum lien_on_stop on_stop;
};

/* Runs until SIGTERM or SIGINT. 0, or -errno after a message on stderr. */
int lien_agent_run(const struct lien_agent_config *config);

/* Removes what agents of that socket left: pins, journal and state. 0, or -errno after a message.
 */
int lien_agent_clean(const char *socket);

/* A line for the system's log: "<6>lien agent: ..." when stderr is not a terminal. Levels as
 * syslog's.
 */
void lien_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t lien_now_ns(void);
int lien_agent_watch(struct lien_agent *agent, struct lien_source *source, uint32_t events);

/* An event that the agent makes itself, now; its body and .size are the caller's if it has one. */
struct lien_event lien_agent_event_of(uint32_t pid, uint64_t start, unsigned type);
/* Applies an event to the graph and hands it to those who record. */
void lien_agent_event(struct lien_agent *agent, const struct lien_event *event);
/* Takes in all that the probes have reported so far. */
void lien_agent_consume(struct lien_agent *agent);

/* resume.c: going on where an earlier agent was stopped or killed. */

/* Reads the journal into the graph, and says to the probes which one it was. 0 or -errno. */
int lien_resume_read(struct lien_agent *agent, const struct lien_agent_config *config,
	struct lien_probes_config *probes);
/* Once the probes are open: goes on with it, or begins anew. 0 or -errno. */
int lien_resume_begin(struct lien_agent *agent, uint64_t new_journal);
/* Before each record of the ring. False: it was applied by the agent before. */
bool lien_resume_record(struct lien_agent *agent, const struct lien_event *event);
/* Adds an event to the journal, if one is kept. */
void lien_resume_note(struct lien_agent *agent, const struct lien_event *event);
/* The processes that ended unseen. */
void lien_resume_ends(struct lien_agent *agent);
/* When all libraries are probed again. */
void lien_resume_settle(struct lien_agent *agent);
/* Leaves it all to the next agent; nothing, if none could go on with it. */
void lien_resume_stop(struct lien_agent *agent, bool started);

/* watch.c: processes and their libraries. */
int lien_watch_start(struct lien_agent *agent, const char *const *libraries);
/* Is the pid still that of the process that began then? It may run another program by now: that is
 * told by events. */
bool lien_watch_runs(uint32_t pid, uint64_t start);
/* The start time of the process, as its events have it; 0: there is no such process. */
uint64_t lien_watch_start_of(struct lien_agent *agent, uint32_t pid);
/* What may have been missed of the processes that the journal tells of. */
void lien_watch_resume(struct lien_agent *agent);
/* After the graph has taken in an event that tells of a process or a library. */
void lien_watch_event(struct lien_agent *agent, const struct lien_event *event);
void lien_watch_tick(struct lien_agent *agent);
/* The process that had the pid then. */
bool lien_watch_has_ended(uint32_t pid, uint64_t start);
/* The same, or it is about to: its first thread is in exit. */
bool lien_watch_is_ending(uint32_t pid, uint64_t start);
/* Looks for a control library that the process may have got a moment ago. */
void lien_watch_look(struct lien_agent *agent, struct lien_process *process);
/* The agent's part of a process, made if it is not there. NULL: out of memory. */
struct lien_tracked *lien_watch_track(struct lien_agent *agent, struct lien_process *process);
/* The control library at the known place takes no orders: all driver calls that it makes are the
 * application's. */
void lien_watch_passes_on(struct lien_agent *agent, struct lien_process *process);
void lien_watch_process_end(void *agent, struct lien_process *process);
/* May this viewer order the process about? All its user ids, now, are the viewer's. */
bool lien_watch_owned(const struct lien_process *process, const struct lien_viewer *viewer);
/* Probes the file that the event tells of, where its process still maps it, on this user's account.
 * 0, -ETIMEDOUT: the process keeps whoever looks waiting; -errno: it cannot be probed. */
int lien_watch_attach(struct lien_agent *agent, const struct lien_event *event, uint32_t user);
/* That has been done, or is not to be done. */
void lien_watch_probed(struct lien_agent *agent, const struct lien_event *event);
/* There is no room for that: the process is incomplete. */
void lien_watch_unprobed(struct lien_agent *agent, const struct lien_event *event);
/* The file that the process has mapped; NULL: it is not probed. */
const struct lien_probed_file *lien_watch_probed_file(
	const struct lien_agent *agent, const struct lien_library_map *map);
/* Has the process a network card open that reaches memory by itself? */
bool lien_watch_uses_cards(uint32_t pid);
/* Has this machine network cards that reach memory by themselves? */
bool lien_watch_cards(void);

/* orders.c: transactions over links. 0, or -errno with one line in error. `flags`: as of
 * lien_transaction_set(). */
int lien_orders_offload(struct lien_agent *agent, const struct lien_selection *selection,
	const struct lien_offload_how *how, bool *nothing, char *error, size_t error_size);
/* What an offload would do; `selection->open` is filled in. */
int lien_orders_plan(struct lien_agent *agent, const struct lien_selection *selection,
	struct lien_plan *plan, char *error, size_t error_size);
/* Of the selection its pids and its viewer. */
int lien_orders_restore(struct lien_agent *agent, const struct lien_selection *selection,
	uint32_t flags, unsigned timeout_ms, bool *nothing, char *error, size_t error_size);
/* The host arenas of these processes (none: of all that the viewer sees), as far as nothing lies in
 * them. */
int lien_orders_release(struct lien_agent *agent, const struct lien_selection *selection,
	bool *nothing, char *error, size_t error_size);
/* What a transaction acts through. */
struct lien_transaction_ops lien_orders_ops(struct lien_agent *agent);
/* No other transaction is under way. 0, or -EBUSY and why. */
int lien_orders_ready(struct lien_agent *agent, char *error, size_t size);
/* Whose order a process has under way, or waits for its turn. */
enum lien_asker lien_orders_asked(const struct lien_tracked *tracked);
enum lien_asker lien_orders_waiting(const struct lien_tracked *tracked);
/* What such an order does: "reading its memory". */
const char *lien_orders_words(enum lien_asker asker);
/* Forgets the transaction, which has ended. */
void lien_orders_end(struct lien_agent *agent);
void lien_orders_unlink(struct lien_tracked *tracked);
int lien_orders_link(struct lien_agent *agent, struct lien_process *process,
	const struct lien_control_state *state);
void lien_orders_tick(struct lien_agent *agent);
/* At the agent's end: waits, not long, for the short orders that are under way. */
void lien_orders_finish(struct lien_agent *agent);

/* server.c */
int lien_server_start(struct lien_agent *agent, const char *path);
void lien_server_stop(struct lien_agent *agent);
/* In a copy of the agent: closes the sockets, which are the agent's. */
void lien_server_close_inherited(struct lien_agent *agent);
bool lien_server_recording(const struct lien_agent *agent);
/* uid: of its process; NULL: not known, so root's alone. */
void lien_server_event(
	struct lien_agent *agent, const struct lien_event *event, const uint32_t *uid);
void lien_server_progress(
	struct lien_agent *agent, enum lien_phase phase, unsigned done, unsigned of);
/* The transaction has ended: its client gets the answer. */
void lien_server_transaction_done(struct lien_agent *agent);
/* There is none any more: requests that wait for the end of one have their turn. */
void lien_server_resume(struct lien_agent *agent);
/* Does a request that has waited for the end of a transaction wait for its turn? */
bool lien_server_has_postponed(const struct lien_agent *agent);
/* Does one wait until no probes are being taken away? */
bool lien_server_waits_for_quiet(const struct lien_agent *agent);
/* Lets go of clients that do not read what they asked for. */
void lien_server_tick(struct lien_agent *agent);
/* Does a client wait for an answer to its next request? */
bool lien_server_has_requests(const struct lien_agent *agent);
/* Handles one request: users in turn, and the clients of a user in turn. */
void lien_server_request(struct lien_agent *agent);

#endif
