/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CONTEXTS_H
#define LIEN_CONTEXTS_H

#include <lien/event.h>

struct lien_agent;

/* After the graph has taken in an event: a process maps the driver, is found, makes a context. */
void lien_contexts_event(struct lien_agent *agent, const struct lien_event *event);
void lien_contexts_tick(struct lien_agent *agent);
/* When all that is known of an earlier agent's processes is in the graph. */
void lien_contexts_resume(struct lien_agent *agent);

#endif
