/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The functions that the application gets instead of the driver's that take or return a handle
 * (interpose.h): handles that it kept from before a restore still reach their memory (names.h).
 */
#ifndef LIEN_CONTROL_TRANSLATE_H
#define LIEN_CONTROL_TRANSLATE_H

#include "control/driver/interpose.h"

/* The section of these functions: driver calls from here belong to the application. */
extern const char __start_lien_translate[] __attribute__((visibility("hidden"))),
	__stop_lien_translate[] __attribute__((visibility("hidden")));

#define LIEN_TRANSLATE_DECLARE(name)                                                               \
	extern __typeof__(name) lien_translate_##name __attribute__((visibility("hidden")));
LIEN_INTERPOSED_HANDLES(LIEN_TRANSLATE_DECLARE)
#undef LIEN_TRANSLATE_DECLARE

/* While the gate is shut, threads that pass a handle whose memory is away wait. With `all`, threads
 * that pass any handle wait: its memory may be about to go, or to come back. */
void lien_translate_hold_all(int all);
/* Returns true if no thread is between looking up a handle and the driver's answer. */
int lien_translate_idle(void);
/* Also lets no thread in from now on, not even those that the agent lets pass, until hold_all(). */
int lien_translate_wait_idle(void);
/* For the child of a fork(), which has one thread. */
void lien_translate_forked(void);

#endif
