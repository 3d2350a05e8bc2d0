/* SPDX-License-Identifier: BSD-2-Clause */
/* Processes and their libraries. */
#ifndef LIEN_WATCH_H
#define LIEN_WATCH_H

#include "agent/core/agent.h"

int lien_watch_start(struct lien_agent *agent, const char *const *libraries);
/* Returns the start time of the process, as its events have it; 0: there is no such process. */
uint64_t lien_watch_start_of(struct lien_agent *agent, uint32_t pid);
/* Checks what may have been missed of the processes in the journal. */
void lien_watch_resume(struct lien_agent *agent);
/* Call this after the graph has applied an event about a process or a library. */
void lien_watch_event(struct lien_agent *agent, const struct lien_event *event);
void lien_watch_tick(struct lien_agent *agent);
/* Reads what the process has mapped by now, and looks for its control library. */
void lien_watch_look(struct lien_agent *agent, struct lien_process *process);
void lien_watch_process_end(void *agent, struct lien_process *process);
/* Probes the file that the event names, where its process still maps it, on this user's account. 0;
 * -ETIMEDOUT: the process is too slow to be read; -errno: the file cannot be probed. */
int lien_watch_attach(struct lien_agent *agent, const struct lien_event *event, uint32_t user);
/* The file has been probed, or will not be. */
void lien_watch_probed(struct lien_agent *agent, const struct lien_event *event);
/* There is no room to probe the file: marks the process incomplete. */
void lien_watch_unprobed(struct lien_agent *agent, const struct lien_event *event);
/* Marks a process that has rewritten its code. */
void lien_watch_rewritten(struct lien_agent *agent, const struct lien_process *process);
/* Returns the probed file that the process has mapped; NULL: it is not probed. */
const struct lien_probed_file *lien_watch_probed_file(
	const struct lien_agent *agent, const struct lien_library_map *map);

#endif
