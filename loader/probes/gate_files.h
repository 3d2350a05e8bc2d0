/* SPDX-License-Identifier: BSD-2-Clause */
/* The files that a process's gate has its links on. */
#ifndef LIEN_GATE_FILES_H
#define LIEN_GATE_FILES_H

#include "loader/probes/probes_internal.h"

/*
 * Puts the gate on a file, once for the same contents. A file that has been rewritten in place has
 * its calls at other places, so it gets links once more; those before stay, because the process may
 * still run what was there. fd, `all` and `wait` as for lien_gate_links_get(). Returns 0;
 * -EINPROGRESS: call again; -errno.
 */
int lien_gate_file_add(struct lien_probes *probes, struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait);
/* Gives back all links of the gate. */
void lien_gate_files_put(struct lien_probes *probes, struct lien_gate *gate);

#endif
