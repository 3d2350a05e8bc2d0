/* SPDX-License-Identifier: BSD-2-Clause */
/* Running the agent. */
#ifndef LIEN_RUN_H
#define LIEN_RUN_H

#include <stdbool.h>
#include <stdint.h>

/* What an orderly stop does with the probes in running jobs, unless memory is away. */
enum lien_on_stop {
	LIEN_ON_STOP_DETACH, /* takes them off: jobs pay nothing; the next agent begins anew */
	LIEN_ON_STOP_KEEP,   /* leaves them, and the journal, for the next agent */
};

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
	bool no_ras;		/* NCCL's RAS is not asked */
	bool no_attach;		/* control libraries are put into processes on request alone */
	enum lien_on_stop on_stop;
};

/* Runs until SIGTERM or SIGINT. 0, or -errno after a message on stderr. */
int lien_agent_run(const struct lien_agent_config *config);

/* Removes what agents of that socket left: pins, journal and state. 0, or -errno after a message.
 */
int lien_agent_clean(const char *socket);

#endif
