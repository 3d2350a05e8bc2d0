// SPDX-License-Identifier: BSD-2-Clause
/* Removes the probes of a file while others stay. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader/probes/close_later.h"
#include "loader/probes/uprobe_close.h"
#include "loader/probes/probes_internal.h"

struct dropped {
	struct lien_attached *attached;
	unsigned count;
	int fds[];
};

/* For each link, the kernel waits for everything that runs in the probes. */
static void free_dropped(void *arg)
{
	struct dropped *dropped = arg;
	unsigned i;

	for (i = 0; i < dropped->count; i++)
		if (dropped->fds[i] >= 0)
			lien_uprobe_close(dropped->fds[i]);
	lien_attached_free(dropped->attached);
	free(dropped);
}

void lien_probes_drop(struct lien_probes *probes, dev_t device, ino_t inode)
{
	struct lien_attached *attached = lien_attached_find(probes, device, inode);
	struct lien_attached_list *list = &probes->files;
	struct dropped *dropped;
	unsigned i;

	dropped = attached ? malloc(sizeof(*dropped) + attached->pins * sizeof(int)) : NULL;
	if (!dropped)
		return;
	for (i = 0; list->items[i] != attached; i++)
		;
	list->items[i] = list->items[--list->count];
	dropped->attached = attached;
	dropped->count = attached->pins;
	memset(dropped->fds, 0xff, attached->pins * sizeof(int));
	lien_keep_drop(probes, attached, dropped->fds);
	attached->pins = 0; /* closing the fds is now final */
	lien_keep_save(probes);
	lien_close_later_by(free_dropped, dropped);
}
