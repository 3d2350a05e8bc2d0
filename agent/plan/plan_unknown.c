// SPDX-License-Identifier: BSD-2-Clause
/* Memory that an offload does not select, because nobody knows whose it is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan/plan_internal.h"

static bool is_process(const void *rows, unsigned row, const void *key)
{
	return ((const struct lien_unknown *)rows)[row].pid == *(const uint32_t *)key;
}

/* NULL: out of memory. */
static struct lien_unknown *row_of(
	struct lien_plan *plan, struct lien_unknown_rows *rows, uint32_t pid)
{
	unsigned room = rows->room ? 2 * rows->room : 16;
	struct lien_unknown *grown;
	int row;

	if (plan->unknown_count == rows->room) {
		grown = realloc(plan->unknown, room * sizeof(*grown));
		if (!grown)
			return NULL;
		plan->unknown = grown;
		rows->room = room;
	}
	row = lien_places_find(
		&rows->places, lien_places_mix(0, pid), is_process, plan->unknown, &pid);
	if (row < 0)
		return NULL;
	if ((unsigned)row == plan->unknown_count)
		plan->unknown[plan->unknown_count++] =
			(struct lien_unknown){.pid = pid, .read = true};
	return &plan->unknown[row];
}

int lien_unknown_add(struct lien_plan *plan, struct lien_unknown_rows *rows,
	const struct lien_allocation *allocation, bool movable)
{
	struct lien_unknown *row = row_of(plan, rows, allocation->owner_pid);

	if (!row)
		return -ENOMEM;
	row->allocations++;
	row->bytes += allocation->bytes;
	if (movable) {
		row->movable += allocation->bytes;
		plan->nameless += allocation->bytes;
	}
	return 0;
}

bool lien_plan_unread(const struct lien_process *process)
{
	return process->cuda && !process->ended && !process->held_items &&
	       process->incomplete & LIEN_INCOMPLETE_LATE;
}

int lien_unknown_add_unread(struct lien_plan *plan, struct lien_unknown_rows *rows,
	struct lien_graph *graph, const struct lien_choice *choice)
{
	struct lien_unknown *row;
	struct lien_process *process;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process)) {
		if (!lien_plan_unread(process) ||
			!lien_viewer_sees(&choice->selection->viewer, process) ||
			!lien_choice_has_pid(choice, process->pid))
			continue;
		row = row_of(plan, rows, process->pid);
		if (!row)
			return -ENOMEM;
		row->read = false;
	}
	return 0;
}

static int by_pid(const void *a, const void *b)
{
	const struct lien_unknown *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

void lien_unknown_end(struct lien_plan *plan, struct lien_unknown_rows *rows)
{
	if (plan->unknown_count)
		qsort(plan->unknown, plan->unknown_count, sizeof(plan->unknown[0]), by_pid);
	lien_places_free(&rows->places);
}
