// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/files.h"

#include "loader/probes/probes_internal.h"

int lien_files_read(
	const struct lien_probes *probes, struct lien_probe_open_file **files, unsigned *count)
{
	void *found;
	int err = lien_iterator_read(probes->files_reader, sizeof(**files), &found, count);

	*files = found;
	return err;
}
