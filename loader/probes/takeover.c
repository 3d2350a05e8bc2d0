// SPDX-License-Identifier: BSD-2-Clause
/* Finishes taking over: removes leftovers, and reports processes whose calls were missed. */
#include <bpf/bpf.h>
#include <stdio.h>

#include "loader/probes/probes_internal.h"
#include "loader/probes/threads.h"

static bool is_live(const struct lien_probes *probes, unsigned number)
{
	unsigned i;

	if (probes->system && probes->system->number == number)
		return true;
	for (i = 0; i < probes->files.count; i++)
		if (probes->files.items[i]->number == number)
			return true;
	for (i = 0; i < probes->following_count; i++)
		if (probes->following[i].number == number)
			return true;
	return false;
}

static bool drop_old(void *context, const char *name)
{
	struct lien_probes *probes = context;
	unsigned number;

	if (sscanf(name, "link-%u-", &number) == 1 && !is_live(probes, number))
		lien_pins_drop(probes->pins, name);
	return true;
}

struct strand {
	struct lien_probes *probes;
	void (*stranded)(void *context, uint32_t pid, uint64_t start);
	void *context;
};

/* A thread in a call whose return no probe will see. Removes the frame as well, because it would
 * hide later calls from the same place. */
static int strand(void *context, uint32_t ktid, const struct lien_thread *thread)
{
	const struct strand *strand = context;
	uint64_t depth = lien_thread_get(thread, LIEN_THREAD_DEPTH);
	unsigned i;

	for (i = 0; i < depth; i++)
		if (!is_live(strand->probes, lien_thread_attachment(thread, i)))
			break;
	if (i == depth)
		return 0;
	strand->stranded(strand->context, lien_thread_get(thread, LIEN_THREAD_PID),
		lien_thread_get(thread, LIEN_THREAD_START));
	bpf_map_delete_elem(bpf_map__fd(strand->probes->skel->maps.threads), &ktid);
	return 0;
}

int lien_probes_finish_takeover(struct lien_probes *probes,
	void (*stranded)(void *context, uint32_t pid, uint64_t start), void *context)
{
	struct strand what = {probes, stranded, context};
	int err;

	probes->taken_over = true;
	if (!probes->resumed)
		return 0;
	lien_pins_each(probes->pins, drop_old, probes);
	lien_attached_clear(&probes->old);
	err = lien_threads_each(probes, strand, &what);
	lien_keep_save(probes);
	return err;
}
