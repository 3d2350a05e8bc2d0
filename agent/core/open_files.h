/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The exports that are open files now (loader/probes/files.h). They are read in a thread: users may
 * have very many files open, and the loop does not wait for them. The graph learns which exports
 * nobody can import any more.
 */
#ifndef LIEN_OPEN_FILES_H
#define LIEN_OPEN_FILES_H

#include "agent/core/agent.h"

/* Asks for a list that was begun at `since` (lien_now_ns()) or later. Returns 0: there is one, or
 * an error instead; -EINPROGRESS: ask again. */
int lien_open_files_ask(struct lien_agent *agent, uint64_t since);
/* Returns the last list, valid until the loop goes on, or the error that was met: see
 * struct lien_files. */
int lien_open_files_last(
	const struct lien_agent *agent, const struct lien_probe_open_file **files, unsigned *count);

#endif
