/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Chooses the files that are probed: those that the system names, and copies that processes map.
 * Anybody can call any number of files libcuda.so.1, so each user has a limited number of them,
 * they are probed one at a time, and a file is dropped when no process maps it any more.
 *
 * A process that maps a file beyond that limit is LIEN_INCOMPLETE_UNPROBED until there is room; so
 * is one that maps a file which some process has rewritten in memory (loader/probes/code.h), until
 * that one has ended.
 */
#ifndef LIEN_PROBING_H
#define LIEN_PROBING_H

#include <jansson.h>

#include "agent/core/agent.h"

int lien_probing_start(struct lien_agent *agent);
void lien_probing_stop(struct lien_agent *agent);

/* Probes a file that was there when the agent started. False: its user has no room for it now. */
bool lien_probing_found(struct lien_agent *agent, const struct lien_library_file *file);
/* Queues a file that a process has mapped and that is not probed. False: there is no room. */
bool lien_probing_mapped(struct lien_agent *agent, const struct lien_event *event);
/* Returns the milliseconds until lien_probing_turn() has something to do; -1: no file is waiting.
 */
int lien_probing_wait_ms(struct lien_agent *agent);
enum lien_probing_outcome {
	LIEN_PROBING_GOES_ON,
	LIEN_PROBING_DONE,    /* the file has been probed, or will not be */
	LIEN_PROBING_REFUSED, /* it is not probed: no room, or a process has rewritten it */
};

/* Takes one step with one waiting file: each may take as long as a turn of the loop should. Copies
 * the event that reported the file. */
enum lien_probing_outcome lien_probing_turn(struct lien_agent *agent, struct lien_event *event);
/* Returns the probed file that the process has mapped; NULL: it is not probed. */
const struct lien_probed_file *lien_probing_mapped_file(
	const struct lien_agent *agent, const struct lien_library_map *map);
/* Does the process map a file that there was no room for? */
bool lien_probing_refuses(const struct lien_agent *agent, const struct lien_process *process);
/* Registers a copy of the control library that a process has mapped. */
void lien_probing_control(struct lien_agent *agent, uint32_t pid, const char *path);
void lien_probing_tick(struct lien_agent *agent);

/* The users who have more files than are probed, as far as the viewer may see them. */
json_t *lien_probing_view(const struct lien_agent *agent, const struct lien_viewer *viewer);

#endif
