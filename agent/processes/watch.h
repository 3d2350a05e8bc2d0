/* SPDX-License-Identifier: BSD-2-Clause */
/* Processes and their libraries. */
#ifndef LIEN_WATCH_H
#define LIEN_WATCH_H

#include "agent/core/agent.h"

int lien_watch_start(struct lien_agent *agent, const char *const *libraries);
/* Checks what may have been missed of the processes in the journal. */
void lien_watch_resume(struct lien_agent *agent);
/* The next four take events that the graph has applied: any, which may have woken the process's
 * control thread; a library is mapped, a process is found; it makes a context, and is followed. */
void lien_watch_call(struct lien_agent *agent, const struct lien_event *event);
void lien_watch_library(struct lien_agent *agent, const struct lien_event *event);
void lien_watch_process(struct lien_agent *agent, const struct lien_event *event);
void lien_watch_context(struct lien_agent *agent, const struct lien_event *event);
/* Follows contexts again, once the graph has everything known of an earlier agent's processes. */
void lien_watch_follow(struct lien_agent *agent);
void lien_watch_tick(struct lien_agent *agent);
/* Takes one step with one file that waits to be probed. */
void lien_watch_turn(struct lien_agent *agent);
/* Reads what the process has mapped by now, and looks for its control library. */
void lien_watch_look(struct lien_agent *agent, struct lien_process *process);
void lien_watch_process_end(void *agent, struct lien_process *process);

/*
 * rewritten.c: looks, one process a second, for those that have rewritten functions of CUDA or NCCL
 * in their memory since they were probed (loader/probes/code.h), and marks them
 * LIEN_INCOMPLETE_REWRITTEN: these calls are not seen any more. A thread reads them.
 */
void lien_rewritten_tick(struct lien_agent *agent);

#endif
