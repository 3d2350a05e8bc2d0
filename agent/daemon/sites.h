/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Names for the places in the code that ask for memory. A file is opened when memory is first asked
 * for from it, and stays open until no process maps it: so its symbols can be read after the
 * process has ended, and when the file has been deleted or lies in a container. They are read when
 * somebody asks, or when the file's last process has ended.
 */
#ifndef LIEN_SITES_H
#define LIEN_SITES_H

#include <stdbool.h>

#include "agent/core/agent.h"

struct lien_sites;

int lien_sites_start(struct lien_agent *agent);
void lien_sites_stop(struct lien_agent *agent);

/* Has the names read that are not known yet. True while that is under way: what is asked of the
 * graph now has offsets in their place. */
bool lien_sites_resolve(struct lien_agent *agent);

/* A process has ended: files that it alone mapped are let go, soon. */
void lien_sites_process_end(struct lien_agent *agent);
void lien_sites_tick(struct lien_agent *agent);

#endif
