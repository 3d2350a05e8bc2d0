/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The processes that export GPU memory as an open file now. Read on demand from the kernel's table
 * of open files, because close() is not probed. Files in flight between processes, in a socket, are
 * in no table and are not seen. lien closes the files that it exports itself for a restore; they
 * are not reported.
 */
#ifndef LIEN_FILES_H
#define LIEN_FILES_H

#include "loader/probes/probes.h"

/* The caller must free() *files. Returns 0 or -errno. */
int lien_files_read(
	const struct lien_probes *probes, struct lien_probe_open_file **files, unsigned *count);

#endif
