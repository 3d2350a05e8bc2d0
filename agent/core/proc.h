/* SPDX-License-Identifier: BSD-2-Clause */
/* What /proc tells of a process now, without the agent or its graph. None of it waits. */
#ifndef LIEN_PROC_H
#define LIEN_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_process;
struct lien_viewer;

/* When the process started, in clock ticks as LIEN_START_TICKS() has them; 0: there is none. */
uint64_t lien_proc_start(uint32_t pid);
/* Is the pid still that of the process that began then? It may run another program by now: that is
 * told by events. */
bool lien_proc_runs(uint32_t pid, uint64_t start);
/* No thread of it runs any more. A process whose first thread has ended may go on, and looks like
 * one that waits for its parent. */
bool lien_proc_has_ended(uint32_t pid, uint64_t start);
/* The same, or it is about to: its first thread is in exit. */
bool lien_proc_is_ending(uint32_t pid, uint64_t start);

/* Its name, "" when it is not known. */
void lien_proc_command(uint32_t pid, char *command, size_t size);
/* Its effective user; root where it is not known. */
uint32_t lien_proc_uid(uint32_t pid);
/* May this viewer order the process about? All its user ids, now, are the viewer's. */
bool lien_proc_owned(const struct lien_process *process, const struct lien_viewer *viewer);

/* Has the process a network card open that reaches memory by itself? True if that cannot be seen.
 */
bool lien_proc_uses_cards(uint32_t pid);
/* Has this machine network cards that reach memory by themselves? */
bool lien_cards(void);

#endif
