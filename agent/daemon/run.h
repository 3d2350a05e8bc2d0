/* SPDX-License-Identifier: BSD-2-Clause */
/* Running the agent. */
#ifndef LIEN_RUN_H
#define LIEN_RUN_H

#include <stdbool.h>
#include <stdint.h>

/* How an orderly stop treats the probes in running jobs, unless memory is away. */
enum lien_on_stop {
	LIEN_ON_STOP_USED,   /* keeps them while a process uses CUDA; with none, detaches */
	LIEN_ON_STOP_DETACH, /* removes them: jobs pay nothing; the next agent starts afresh */
	LIEN_ON_STOP_KEEP,   /* leaves them, and the journal, for the next agent */
};

struct lien_agent_config {
	const char *socket;
	const char *const *libraries; /* more files to probe; NULL-terminated or NULL */
	const char *control;	 /* the control library that `lien run` uses; NULL: not installed */
	bool no_multi, no_bound; /* see struct lien_probes_config */
	unsigned threads;	 /* threads that use CUDA and are followed; 0: the default */
	unsigned ring_mib;	 /* size of the ring buffer, a power of 2; 0: the default */
	bool no_journal;	 /* everything known is lost when the agent ends */
	uint64_t journal_limit;	 /* bytes beyond which a snapshot replaces it */
	/* bytes of all host arenas together; 0: only the host's own limit */
	uint64_t host_limit;
	/* percent of the host's available memory that is pinned before it is needed; 0: none */
	unsigned prepare_percent;
	bool prepare_limited;  /* also for processes in memory cgroups with a limit */
	bool no_ras;	       /* do not ask NCCL's RAS */
	bool no_attach;	       /* inject control libraries only on request */
	bool has_metrics_user; /* `metrics` shows this user the processes of all: */
	uint32_t metrics_user;
	enum lien_on_stop on_stop;
};

/* Runs until SIGTERM or SIGINT. 0, or -errno after a message on stderr. */
int lien_agent_run(const struct lien_agent_config *config);

/* Removes what agents with that socket have left: pins, journal and state. Without force,
 * -ECANCELED if running processes would lose by it. 0, or -errno after a message. */
int lien_agent_clean(const char *socket, bool force);

#endif
