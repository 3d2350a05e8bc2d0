/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Handles that the application kept from before a restore still reach their memory: the pointers to
 * the driver's handle functions that libraries cached in their data are replaced by ours, which
 * translate (names.h) and call the driver. No code is changed: the agent's probes sit on the
 * driver's first instructions. Pointers on heaps and stacks are not found; NVIDIA's own runtime and
 * driver are left alone.
 */
#ifndef LIEN_CONTROL_TRANSLATE_H
#define LIEN_CONTROL_TRANSLATE_H

#include "control/driver.h"

/* Where the translating functions are: their calls are the application's. */
extern const char __start_lien_translate[], __stop_lien_translate[];

/* While the gate is shut, threads that pass a handle whose memory is away wait; with `all` those
 * that pass any: it may be about to go, or to come back. */
void lien_translate_hold_all(int all);
/* Is nobody between looking up a handle and the driver's answer? */
int lien_translate_idle(void);
/* The same, and from now on nobody is: those that the agent lets in wait, too, until hold_all(). */
int lien_translate_settle(void);

/* To be called before anything is installed. May wait for a thread that loads a library, so not
 * while threads are held back. */
void lien_translate_prepare(const struct lien_driver *driver);
/* Replaces what has been cached since the last time, or, unless `always`, only if something was
 * loaded since then. Takes about 20 ms in a process with PyTorch. */
void lien_translate_install(int always);
/* Puts the driver's functions back where ours stand. 1: no pointer of ours was ever given to
 * anybody; 0: somebody may have copied one, so the code must stay, and passes handles on as they
 * are. To be called when no name means anything else than it looks like. As prepare(), it may wait.
 */
int lien_translate_remove(void);

#endif
