/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads a process's present state from /proc, without the agent or its graph. No function here
 * blocks. */
#ifndef LIEN_PROC_H
#define LIEN_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_process;
struct lien_viewer;

/*
 * Returns when the process started, in clock ticks as LIEN_START_TICKS() has them; 0: no such
 * process.
 */
uint64_t lien_proc_start(uint32_t pid);
/* Does the pid still belong to the process that started then? It may run another program by now;
 * events report that. */
bool lien_proc_runs(uint32_t pid, uint64_t start);
/* Returns true when no thread of the process runs any more. If only its first thread has ended, the
 * process may go on, although it looks like a zombie. */
bool lien_proc_has_ended(uint32_t pid, uint64_t start);
/* Like lien_proc_has_ended(), but also true when its first thread is exiting. */
bool lien_proc_is_ending(uint32_t pid, uint64_t start);

/* Returns 'T': stopped by a signal, 't': by a debugger; 0: neither, as far as can be told. */
char lien_proc_stopped(uint32_t pid);
#define LIEN_REMEDY_SIZE 48
/* Returns true if it is stopped and so takes no orders, and what lets it go on: "kill -CONT 812",
 * "debugger: process 99". A tracer's stop that is over in a moment does not count. */
bool lien_proc_halted(uint32_t pid, char remedy[static LIEN_REMEDY_SIZE]);
/* The same in words; NULL: it runs. */
const char *lien_proc_halted_words(uint32_t pid);
/* Returns 0, or -EBUSY and an error: lien_proc_halted(). */
int lien_proc_check_goes_on(uint32_t pid, char *error, size_t size);

/* The process's name; "" if it is not known. */
void lien_proc_command(uint32_t pid, char *command, size_t size);
/*
 * May this viewer give the process orders? All of the process's current user ids must be the
 * viewer's.
 */
bool lien_proc_owned(const struct lien_process *process, const struct lien_viewer *viewer);

/* Does the process have a network card open that accesses memory by itself, or GDRCopy's driver?
 * True if that cannot be determined. */
bool lien_proc_uses_cards(uint32_t pid);
/* Does this machine have any such? */
bool lien_proc_cards(void);
/* Is a descriptor on its way to the process, in one of its sockets? True if that cannot be
 * determined (before Linux 5.6). */
bool lien_proc_awaits_files(uint32_t pid);

#endif
