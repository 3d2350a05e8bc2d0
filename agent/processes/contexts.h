/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CONTEXTS_H
#define LIEN_CONTEXTS_H

#include <lien/event.h>

struct lien_agent;

/*
 * Call this after the graph has applied an event: a process maps the driver, is found, or makes a
 * context.
 */
void lien_contexts_event(struct lien_agent *agent, const struct lien_event *event);
void lien_contexts_tick(struct lien_agent *agent);
/* Call this when the graph has everything known of an earlier agent's processes. */
void lien_contexts_resume(struct lien_agent *agent);

#endif
