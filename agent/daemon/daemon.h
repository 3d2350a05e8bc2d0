/* SPDX-License-Identifier: BSD-2-Clause */
/* The part of the agent's state that only the files of agent/daemon/ use. */
#ifndef LIEN_DAEMON_H
#define LIEN_DAEMON_H

#include "agent/core/agent.h"
#include "agent/daemon/run.h"
#include "agent/journal/journal.h"

#define LIEN_OTHERS_MAX 16

struct lien_daemon {
	uint64_t t_start;
	/* run.c: the ring */
	bool consuming;	       /* it is being read: do not enter again */
	uint64_t t_ring;       /* epoll ignores it until then; 0: it does not */
	unsigned records_left; /* limit for this turn */
	uint64_t t_records;    /* when this turn began to read it */
	uint64_t lost_seen;
	LIST_HEAD(, lien_answer) answers; /* requests.c */
	bool has_metrics_user;		  /* this user sees everybody's metrics: */
	uint32_t metrics_user;
	struct lien_others {
		bool looking;
		uint64_t t_looked; /* 0: never */
		uint32_t pids[LIEN_OTHERS_MAX];
		unsigned count;
	} others;			/* status.c: agents that watch the same processes */
	struct lien_together *together; /* NULL: nobody has asked yet */
	/* resume.c */
	struct lien_journal *journal; /* NULL: the agent keeps none */
	char *journal_path;
	uint64_t journal_limit;
	uint64_t t_recorded; /* when the last record of the ring was made */
	/* why there is none, or part was not taken over; "": no problem */
	char journal_problem[300];
	enum lien_on_stop on_stop;
	bool ring_resumed; /* the ring's next record may be in the journal */
};

#endif
