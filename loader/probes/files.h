/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The exports of GPU memory that are open files now. Read on
 * demand from the kernel, because close() is not probed: its table of open files says which
 * processes have them; the count of references to a file says whether there are more, because a
 * file on its way through a socket is in no table. lien closes the files that it exports itself for
 * a restore; they are not reported. Also the processes that have the driver of GPUDirect Storage
 * open.
 */
#ifndef LIEN_FILES_H
#define LIEN_FILES_H

#include "loader/probes/probes.h"

struct lien_files {
	/* One of each process and export, sorted by export and pid. With pid 0: more references
	 * than processes are known to have, and `fd` is how many. */
	struct lien_probe_open_file *open;
	unsigned count;
	uint64_t *exports; /* numbers of those that are open, sorted; a new one may be missing */
	unsigned exports_count;
	uint32_t *storage; /* processes */
	unsigned storage_count;
};

/* `before`: what was read last. Takes some milliseconds if files are on their way that were not
 * then. The caller must lien_files_clear(). Returns 0 or -errno. */
int lien_files_read(const struct lien_probes *probes, const struct lien_files *before,
	struct lien_files *files);
void lien_files_clear(struct lien_files *files);

#endif
