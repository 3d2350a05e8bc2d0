/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which files are probed: those that the system names, and copies that processes map. Anybody can
 * call any number of files libcuda.so.1, so a user has a limited number of them, they are probed
 * one at a time, and a file that nobody maps any more is let go.
 *
 * A process that maps one beyond that limit is LIEN_INCOMPLETE_UNPROBED until there is room.
 */
#ifndef LIEN_PROBING_H
#define LIEN_PROBING_H

#include <jansson.h>

#include "agent/core/agent.h"

int lien_probing_start(struct lien_agent *agent);
void lien_probing_stop(struct lien_agent *agent);

/* A file that was there when the agent started: probed at once, if its user may have more. */
void lien_probing_found(struct lien_agent *agent, const struct lien_library_file *file);
/* A process has mapped a file that is not probed: it waits for its turn. */
void lien_probing_mapped(struct lien_agent *agent, const struct lien_event *event);
/* Probes one of those that wait. In how many ms there is another one to be tried; -1: none waits.
 */
int lien_probing_turn(struct lien_agent *agent);
/* Does the process map a file that there was no room for? */
bool lien_probing_refuses(const struct lien_agent *agent, const struct lien_process *process);
/* A copy of the control library that a process has mapped: it is known from now on. */
void lien_probing_control(struct lien_agent *agent, uint32_t pid, const char *path);
/* A process has ended, or has let go of files. */
void lien_probing_process_end(struct lien_agent *agent);
void lien_probing_tick(struct lien_agent *agent);

/* Users who have more files than are probed, as far as the viewer sees them. */
json_t *lien_probing_view(const struct lien_agent *agent, const struct lien_viewer *viewer);

#endif
