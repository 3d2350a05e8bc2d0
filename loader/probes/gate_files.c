// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/gate_files.h"

#include <errno.h>
#include <sys/stat.h>

#include "loader/probes/gate_links.h"

static bool has_contents(const struct lien_gate_file *file, const struct stat *st)
{
	return file->size == st->st_size && file->changed.tv_sec == st->st_ctim.tv_sec &&
	       file->changed.tv_nsec == st->st_ctim.tv_nsec;
}

static void note_contents(struct lien_gate_file *file, const struct stat *st)
{
	file->size = st->st_size;
	file->changed = st->st_ctim;
}

static bool has_file(const struct lien_probes *probes, const struct lien_gate *gate,
	const struct stat *st, bool all)
{
	const dev_t device = lien_gate_links_device(probes, st);
	const struct lien_gate_file *file;
	unsigned i;

	for (i = 0; i < gate->files_count; i++) {
		file = &gate->files[i];
		if (file->links->device == device && file->links->inode == st->st_ino &&
			file->all >= all && has_contents(file, st))
			return true;
	}
	return false;
}

static struct lien_gate_file *find(struct lien_gate *gate, const struct lien_gate_links *links)
{
	unsigned i;

	for (i = 0; i < gate->files_count; i++)
		if (gate->files[i].links == links)
			return &gate->files[i];
	return NULL;
}

int lien_gate_file_add(struct lien_probes *probes, struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait)
{
	struct lien_gate_links *links;
	struct lien_gate_file *file;
	int err;

	if (has_file(probes, gate, st, all))
		return 0;
	if (gate->files_count == LIEN_GATE_FILES)
		return -EMFILE;
	err = lien_gate_links_get(probes, gate, fd, st, library, all, wait, &links);
	if (err)
		return err > 0 ? 0 : err;
	file = find(gate, links);
	if (file) /* its calls are where they were */
		lien_gate_links_put(probes, links);
	else
		file = &gate->files[gate->files_count++];
	file->links = links;
	file->all |= all;
	note_contents(file, st);
	return 0;
}

void lien_gate_files_put(struct lien_probes *probes, struct lien_gate *gate)
{
	while (gate->files_count)
		lien_gate_links_put(probes, gate->files[--gate->files_count].links);
}
