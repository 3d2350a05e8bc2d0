/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Names for the places in the code that ask for memory. A file is opened when code in it first asks
 * for memory, and stays open until no process maps it. So its symbols can be read even after the
 * process has ended or the file was deleted, and if the file is in a container. They are read when
 * a client asks, or when the file's last process has ended.
 */
#ifndef LIEN_SITES_H
#define LIEN_SITES_H

#include <stdbool.h>

#include "agent/core/agent.h"

struct lien_sites;

int lien_sites_start(struct lien_agent *agent);
void lien_sites_stop(struct lien_agent *agent);

/* Has the missing names read. Returns true while that is under way; until then answers show offsets
 * instead. */
bool lien_sites_resolve(struct lien_agent *agent);

/* Drops the files that only processes mapped which have ended. */
void lien_sites_tick(struct lien_agent *agent);

#endif
