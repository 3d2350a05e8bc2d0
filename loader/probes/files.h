/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who has exported GPU memory as an open file, now: read from the kernel's table of open files when
 * asked, because a close is not a call that is probed. Files on their way between processes, in a
 * socket, are in no table and are not seen. What lien itself exports for a restore it closes
 * itself; that is not told.
 */
#ifndef LIEN_FILES_H
#define LIEN_FILES_H

#include "loader/probes/probes.h"

/*
 * *files is for the caller to free(). 0; -EOPNOTSUPP: this kernel has no iterators, or does not let
 * us; -errno.
 */
int lien_files_read(
	const struct lien_probes *probes, struct lien_probe_open_file **files, unsigned *count);

#endif
