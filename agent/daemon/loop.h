/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's loop. One turn is what the agent does between two looks at its sources. First what
 * the kernel side has reported is put into the graph, a limited number of records in each turn;
 * then, when the graph has all that was reported until a source became ready, the source is
 * handled. Requests of clients come last, one in each turn, users in turn.
 */
#ifndef LIEN_LOOP_H
#define LIEN_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_agent;
struct lien_event;

/* Until the agent is told to stop, and no transaction is under way. */
void lien_loop_run(struct lien_agent *agent);
/* What the agent does from now on in this turn; static texts, such as "request" and "check". */
void lien_loop_part(struct lien_agent *agent, const char *kind, const char *name);

/* ring.c: reading what the kernel side reports. */

/* For struct lien_above. */
void lien_ring_event(struct lien_agent *agent, const struct lien_event *event);
void lien_ring_consume(struct lien_agent *agent);
/* For struct lien_probes_config. */
int lien_ring_record(void *agent, const struct lien_event *event, size_t size);
int lien_ring_start(struct lien_agent *agent);
/* True: the graph has all that had been reported when this was asked for the first time, until it
 * was true. Else takes in some of it. */
bool lien_ring_caught_up(struct lien_agent *agent);
/* Is there something to take in? */
bool lien_ring_behind(struct lien_agent *agent);
void lien_ring_tick(struct lien_agent *agent);
/* The time has come to wait for it again. */
void lien_ring_wake(struct lien_agent *agent, uint64_t now);

#endif
