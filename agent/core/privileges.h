/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Limits what the agent may do once it has started: attach probes, look into processes, read files.
 * It gives up all other rights, CAP_SYS_ADMIN included unless this kernel needs it to attach
 * probes.
 */
#ifndef LIEN_PRIVILEGES_H
#define LIEN_PRIVILEGES_H

#include <stdbool.h>

/* Keeps programs that this process starts from gaining rights. Call it before everything else. */
void lien_privileges_begin(void);
/*
 * Drops the rights of the calling thread for good, bounding set included. Each thread drops its
 * own. 0 or -errno.
 */
int lien_privileges_drop(void);
/* Like lien_privileges_drop(), but keeps CAP_SYS_ADMIN and nothing else: agent/join/netns.h. */
int lien_privileges_keep_netns(void);
/* Like lien_privileges_drop(), but keeps CAP_SYS_ADMIN and returns 1 if probes of that kind turn
 * out to need it. (Single probes do from Linux 6.16 on; uprobe-multi links do not.) */
int lien_privileges_try_drop(bool multi);

#endif
