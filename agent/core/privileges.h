/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the agent may do, once it has started: attach probes, look into processes, read files. It
 * gives up the rest, CAP_SYS_ADMIN above all unless this kernel attaches no probe without it.
 */
#ifndef LIEN_PRIVILEGES_H
#define LIEN_PRIVILEGES_H

#include <stdbool.h>

/* No program that this process starts could gain rights. Before all else. */
void lien_privileges_begin(void);
/* Of the calling thread, for good, bounding set included; others drop their own. 0 or -errno. */
int lien_privileges_drop(void);
/* The same, but CAP_SYS_ADMIN is what is kept, and nothing else: agent/join/netns.h. */
int lien_privileges_keep_netns(void);
/* Of the agent: as lien_privileges_drop(), and keeps CAP_SYS_ADMIN if probes of that kind turn out
 * to need it: then 1. (Single ones do from Linux 6.16 on, uprobe-multi links do not.) */
int lien_privileges_try_drop(bool multi);

#endif
