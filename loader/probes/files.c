// SPDX-License-Identifier: BSD-2-Clause
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.skel.h"
#include "loader/probes/files.h"

static struct files_bpf *load(const struct lien_probes *probes)
{
	struct files_bpf *skel = files_bpf__open();
	struct stat pidns;

	if (!skel)
		return NULL;
	if (stat("/proc/self/ns/pid", &pidns)) {
		files_bpf__destroy(skel);
		return NULL;
	}
	skel->rodata->lien_pidns = pidns.st_ino;
	if (bpf_map__reuse_fd(skel->maps.shares, lien_probes_shares_fd(probes)) ||
		files_bpf__load(skel)) {
		files_bpf__destroy(skel);
		return NULL;
	}
	return skel;
}

static int read_all(int fd, struct lien_probe_open_file **files, unsigned *count)
{
	struct lien_probe_open_file found[256];
	struct lien_probe_open_file *more;
	unsigned n;
	ssize_t size;

	/* EAGAIN: many files passed without one to tell of. */
	while ((size = read(fd, found, sizeof(found))) > 0 || (size < 0 && errno == EAGAIN)) {
		if (size < 0)
			continue;
		n = size / sizeof(found[0]);
		more = realloc(*files, (*count + n) * sizeof(**files));
		if (!more)
			return -ENOMEM;
		*files = more;
		memcpy(*files + *count, found, n * sizeof(found[0]));
		*count += n;
	}
	return size < 0 ? -errno : 0;
}

int lien_files_read(
	const struct lien_probes *probes, struct lien_probe_open_file **files, unsigned *count)
{
	struct files_bpf *skel = load(probes);
	struct bpf_link *link;
	int fd, err;

	*files = NULL;
	*count = 0;
	if (!skel)
		return -EOPNOTSUPP;
	link = bpf_program__attach_iter(skel->progs.lien_files, NULL);
	fd = link ? bpf_iter_create(bpf_link__fd(link)) : -1;
	err = fd < 0 ? -EOPNOTSUPP : read_all(fd, files, count);
	if (fd >= 0)
		close(fd);
	bpf_link__destroy(link);
	files_bpf__destroy(skel);
	if (err) {
		free(*files);
		*files = NULL;
		*count = 0;
	}
	return err;
}
