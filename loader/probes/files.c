// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/graph/array.h"
#include "loader/probes/maps.h"

/* Whoever looks at a descriptor, by a system call or in /proc, has a reference while he does. */
#define LOOKS	3
#define LOOK_NS 1000000

static int by_share(const void *a, const void *b)
{
	const struct lien_probe_open_file *x = a, *y = b;

	if (x->share != y->share)
		return x->share < y->share ? -1 : 1;
	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return (x->fd > y->fd) - (x->fd < y->fd);
}

/* Returns the index of the first one that is of this share, or would come behind it. */
static unsigned first_of(const struct lien_probe_open_file *open, unsigned count, uint64_t share)
{
	unsigned low = 0, high = count, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (open[mid].share < share)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Returns how many of the first `count` are of the share. */
static unsigned known_of(const struct lien_probe_open_file *open, unsigned count, uint64_t share)
{
	const unsigned first = first_of(open, count, share);
	unsigned n;

	for (n = 0; first + n < count && open[first + n].share == share; n++)
		;
	return n;
}

/* The state of compare(). */
struct look {
	struct lien_files *files;
	unsigned known; /* open files of processes */
	unsigned room, exports_room;
};

static int compare(void *context, const void *key, const void *value)
{
	const struct lien_probe_export *export = value;
	struct look *look = context;
	struct lien_files *files = look->files;
	unsigned n;

	(void)key;
	if (export->control || export->counted == 1) /* it is closed */
		return 0;
	if (lien_array_grow(&files->exports, files->exports_count, &look->exports_room,
		    sizeof(*files->exports)))
		return -ENOMEM;
	files->exports[files->exports_count++] = export->number;
	n = known_of(files->open, look->known, export->number);
	if (export->counted <= n + 1) /* also if it has come since they were counted */
		return 0;
	if (lien_array_grow(&files->open, files->count, &look->room, sizeof(*files->open)))
		return -ENOMEM;
	files->open[files->count++] = (struct lien_probe_open_file){
		.share = export->number, .fd = export->counted - 1 - n};
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void sort(struct lien_files *files)
{
	if (files->exports_count)
		qsort(files->exports, files->exports_count, sizeof(*files->exports), by_number);
	if (files->count)
		qsort(files->open, files->count, sizeof(*files->open), by_share);
}

/* Splits off those that are no exports, which come first. */
static int take_storage(struct lien_files *files)
{
	unsigned i, n;

	for (n = 0; n < files->count && files->open[n].share == LIEN_PROBE_STORAGE; n++)
		;
	if (!n)
		return 0;
	files->storage = calloc(n, sizeof(*files->storage));
	if (!files->storage)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		if (!i || files->open[i].pid != files->open[i - 1].pid)
			files->storage[files->storage_count++] = files->open[i].pid;
	files->count -= n;
	memmove(files->open, files->open + n, files->count * sizeof(*files->open));
	return 0;
}

/* A process may have duplicated a descriptor very often: one of them tells as much. */
static void drop_duplicates(struct lien_files *files)
{
	unsigned i, n = 0;

	for (i = 0; i < files->count; i++)
		if (!i || files->open[i].share != files->open[i - 1].share ||
			files->open[i].pid != files->open[i - 1].pid)
			files->open[n++] = files->open[i];
	files->count = n;
}

/* Pid 0 comes first. */
static bool was_on_its_way(const struct lien_files *before, uint64_t share)
{
	const unsigned first = first_of(before->open, before->count, share);

	return first < before->count && before->open[first].share == share &&
	       !before->open[first].pid;
}

/* Returns whether an export has more references than are known, and had not before; or -errno. */
static int look(
	const struct lien_probes *probes, const struct lien_files *before, struct lien_files *files)
{
	struct look look = {.files = files};
	bool more = false;
	unsigned i;
	int err;

	*files = (struct lien_files){0};
	err = lien_iterator_read(probes->skel->links.lien_files, sizeof(*files->open),
		(void **)&files->open, &files->count);
	if (err)
		return err;
	look.room = files->count;
	sort(files);
	err = take_storage(files);
	look.known = files->count;
	if (!err)
		err = lien_map_each(probes->skel->maps.shares, compare, &look);
	if (err) {
		lien_files_clear(files);
		return err;
	}
	for (i = look.known; i < files->count && !more; i++)
		more = !was_on_its_way(before, files->open[i].share);
	sort(files);
	drop_duplicates(files);
	return more;
}

int lien_files_read(
	const struct lien_probes *probes, const struct lien_files *before, struct lien_files *files)
{
	const struct timespec nap = {.tv_nsec = LOOK_NS};
	int more = look(probes, before, files);

	for (int i = 1; i < LOOKS && more > 0; i++) {
		lien_files_clear(files);
		nanosleep(&nap, NULL);
		more = look(probes, before, files);
	}
	return more < 0 ? more : 0;
}

void lien_files_clear(struct lien_files *files)
{
	free(files->open);
	free(files->exports);
	free(files->storage);
	*files = (struct lien_files){0};
}
