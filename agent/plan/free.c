// SPDX-License-Identifier: BSD-2-Clause
#include "agent/plan/free.h"

#include <errno.h>
#include <stdlib.h>

/* Items that move together, in the list from `first`. */
struct whole {
	unsigned first, count;
	uint64_t cost;
	bool taken;
};

/* What one of them frees on one GPU. */
struct gain {
	unsigned gpu, whole;
	uint64_t bytes, cost;
	uint32_t pid;
	bool in;
};

static int item_cmp(const void *a, const void *b)
{
	const struct lien_free_item *x = a, *y = b;

	if (x->whole != y->whole)
		return x->whole < y->whole ? -1 : 1;
	return (x->gpu > y->gpu) - (x->gpu < y->gpu);
}

/* By GPU; there, by cost for each byte, then the large ones first. */
static int gain_cmp(const void *a, const void *b)
{
	const struct gain *x = a, *y = b;
	unsigned __int128 costs_x = (unsigned __int128)x->cost * y->bytes;
	unsigned __int128 costs_y = (unsigned __int128)y->cost * x->bytes;

	if (x->gpu != y->gpu)
		return x->gpu < y->gpu ? -1 : 1;
	if (costs_x != costs_y)
		return costs_x < costs_y ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	if (x->pid != y->pid)
		return x->pid < y->pid ? -1 : 1;
	return (x->whole > y->whole) - (x->whole < y->whole);
}

/* Fills both lists, which have room for all items. Returns the number of gains. */
static unsigned collect(const struct lien_free_item *items, unsigned count, struct whole *wholes,
	struct gain *gains, struct lien_free_gpu *gpus)
{
	unsigned i, gains_count = 0, wholes_count = 0;
	struct whole *whole = NULL;
	struct gain *gain = NULL;

	for (i = 0; i < count; i++) {
		if (!whole || items[i].whole != items[whole->first].whole) {
			whole = &wholes[wholes_count++];
			*whole = (struct whole){.first = i};
			gain = NULL;
		}
		if (!gain || gain->gpu != items[i].gpu) {
			gain = &gains[gains_count++];
			*gain = (struct gain){.gpu = items[i].gpu,
				.whole = wholes_count - 1,
				.pid = items[i].pid};
		}
		whole->count++;
		whole->cost += items[i].cost;
		gain->bytes += items[i].bytes;
		gpus[items[i].gpu].movable += items[i].bytes;
	}
	for (i = 0; i < gains_count; i++)
		gains[i].cost = wholes[gains[i].whole].cost;
	return gains_count;
}

static void take(struct lien_free_item *items, struct whole *whole, struct lien_free_gpu *gpus)
{
	unsigned i;

	for (i = whole->first; i < whole->first + whole->count; i++) {
		items[i].chosen = true;
		gpus[items[i].gpu].chosen += items[i].bytes;
	}
	whole->taken = true;
}

/* Takes enough of the gains of one GPU. */
static void choose(struct lien_free_item *items, struct whole *wholes, struct gain *gains,
	unsigned count, struct lien_free_gpu *gpus)
{
	struct lien_free_gpu *gpu = &gpus[gains[0].gpu];
	uint64_t sum = 0, cost = 0, least = UINT64_MAX, need;
	unsigned i, last = count;

	if (gpu->chosen >= gpu->wanted)
		return;
	need = gpu->wanted - gpu->chosen;
	for (i = 0; i < count; i++) {
		if (wholes[gains[i].whole].taken)
			continue;
		if (gains[i].bytes < need - sum) {
			gains[i].in = true;
			sum += gains[i].bytes;
			cost += gains[i].cost;
		} else if (cost + gains[i].cost < least) { /* with it, it is enough */
			least = cost + gains[i].cost;
			last = i;
		}
	}
	/* What came before may be too much with the last one. */
	for (sum = gains[last].bytes, i = 0; i < last; i++)
		sum += gains[i].in ? gains[i].bytes : 0;
	for (i = last; i-- > 0;)
		if (gains[i].in && sum - gains[i].bytes >= need) {
			gains[i].in = false;
			sum -= gains[i].bytes;
		}
	for (i = 0; i <= last; i++)
		if (gains[i].in || i == last)
			take(items, &wholes[gains[i].whole], gpus);
}

int lien_free_choose(struct lien_free_item *items, unsigned count, struct lien_free_gpu *gpus,
	unsigned gpus_count)
{
	struct whole *wholes = calloc(count + 1, sizeof(*wholes));
	struct gain *gains = calloc(count + 1, sizeof(*gains));
	unsigned i, from, gains_count;
	int err = wholes && gains ? 0 : -ENOMEM;

	for (i = 0; i < gpus_count; i++)
		gpus[i].movable = gpus[i].chosen = 0;
	for (i = 0; i < count; i++)
		items[i].chosen = false;
	if (!err && count)
		qsort(items, count, sizeof(*items), item_cmp);
	gains_count = err ? 0 : collect(items, count, wholes, gains, gpus);
	for (i = 0; !err && i < gpus_count; i++)
		if (gpus[i].movable < gpus[i].wanted)
			err = -ENOSPC;
	if (gains_count)
		qsort(gains, gains_count, sizeof(*gains), gain_cmp);
	for (i = from = 0; !err && i < gains_count; i++)
		if (i + 1 == gains_count || gains[i + 1].gpu != gains[i].gpu) {
			choose(items, wholes, &gains[from], i + 1 - from, gpus);
			from = i + 1;
		}
	free(wholes);
	free(gains);
	return err;
}
