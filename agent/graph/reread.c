// SPDX-License-Identifier: BSD-2-Clause
/* The effect on the graph of re-reading a process from the driver, apart from the made-up calls. */
#include "agent/graph/internal.h"

int lien_graph_apply_property(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_mapping *mapping = lien_process_mapping(process, event->property.va);

	struct lien_allocation *allocation = mapping ? mapping->holding->allocation : NULL;

	if (!mapping) {
		lien_graph_odd(graph, process);
		return 0;
	}
	allocation->prop = event->property.prop;
	if (allocation->origin != LIEN_ORIGIN_MULTICAST)
		lien_bindings_moved(allocation);
	return 0;
}

uint32_t lien_graph_round(const struct lien_graph *graph)
{
	return graph->round;
}

bool lien_process_whole(const struct lien_process *process)
{
	return !(process->incomplete & ~(LIEN_INCOMPLETE_ADOPTED | LIEN_INCOMPLETE_MULTICAST |
					       LIEN_INCOMPLETE_MULTICAST_OWN));
}

int lien_graph_apply_adopt(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_handle *handle = lien_handle_find(process, event->adopt.handle);
	struct lien_allocation *allocation = handle ? handle->holding->allocation : NULL;

	if (!handle) {
		lien_graph_odd(graph, process);
		return 0;
	}
	lien_handle_refer(handle, event->adopt.references);
	allocation->adopted = true;
	allocation->round = event->adopt.round;
	allocation->open = event->adopt.open;
	if (!handle->imported) /* an importer may map less than the whole */
		allocation->part = event->adopt.part;
	if (graph->round < event->adopt.round)
		graph->round = event->adopt.round;
	return 0;
}

int lien_graph_apply_reread(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	process->incomplete &= ~LIEN_INCOMPLETE_REREAD;
	process->no_context = false; /* it may have made one in a call that was lost */
	process->incomplete |=
		event->reread.doubts & (LIEN_INCOMPLETE_NCCL | LIEN_INCOMPLETE_CARDS);
	return 0;
}
