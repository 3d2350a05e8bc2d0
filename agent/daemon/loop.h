/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The agent's loop. One turn is the work between two looks at the sources. First the loop puts what
 * the kernel side has reported into the graph, a limited number of records per turn. When the graph
 * has everything reported before a source became ready, the loop handles that source. Clients'
 * requests come last, one per turn, users in turn.
 */
#ifndef LIEN_LOOP_H
#define LIEN_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_agent;
struct lien_event;

/* Runs until the agent is asked to stop and no transaction is under way. */
void lien_loop_run(struct lien_agent *agent);

/* ring.c: reads what the kernel side reports. */

/* For struct lien_above. */
void lien_ring_event(struct lien_agent *agent, const struct lien_event *event);
bool lien_ring_consume(struct lien_agent *agent, bool all);
/* For struct lien_probes_config. */
int lien_ring_record(void *agent, const struct lien_event *event, size_t size);
int lien_ring_start(struct lien_agent *agent);
/*
 * Returns true once the graph has everything that was reported before the first call with this
 * mark. Otherwise applies some of it and returns false; call again until it returns true. *mark is
 * a position in the ring, 0 before the first call and afterwards. Each waiter needs a mark of its
 * own: with another's, it would act on a graph that is older than what it waits for.
 */
bool lien_ring_caught_up(struct lien_agent *agent, uint64_t *mark);
/* Applies a turn's share of what was reported. */
void lien_ring_step(struct lien_agent *agent);
void lien_ring_tick(struct lien_agent *agent);
/* Watches the ring again if it is time to. */
void lien_ring_wake(struct lien_agent *agent, uint64_t now);

#endif
