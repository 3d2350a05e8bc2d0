/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CONTEXTS_H
#define LIEN_CONTEXTS_H

#include <lien/event.h>

struct lien_agent;
struct lien_process;

/* Before the probes are opened. 0 or -errno. */
int lien_contexts_start(struct lien_agent *agent);
void lien_contexts_stop(struct lien_agent *agent);
/* After the graph has taken in an event: a process maps the driver, is found, makes a context. */
void lien_contexts_event(struct lien_agent *agent, const struct lien_event *event);
void lien_contexts_tick(struct lien_agent *agent);
/* When all that is known of an earlier agent's processes is in the graph. */
void lien_contexts_resume(struct lien_agent *agent);
/* Closes a link, for which the kernel makes a thread wait: not this one. */
void lien_contexts_close(int fd);
void lien_contexts_process_end(struct lien_agent *agent, const struct lien_process *process);

#endif
