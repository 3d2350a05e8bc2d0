// SPDX-License-Identifier: BSD-2-Clause
/* Contexts: memory that was allocated in one goes with it. */
#include <errno.h>
#include <stdlib.h>

#include "agent/graph/internal.h"

static struct lien_context *context_find(struct lien_process *process, uint64_t value)
{
	struct lien_context key = {.value = value};

	return RB_FIND(lien_context_tree, &process->contexts, &key);
}

uint32_t lien_context_number(struct lien_process *process, uint64_t value)
{
	const struct lien_context *context = context_find(process, value);

	return context ? context->number : 0;
}

/* Returns the number of the mapping's context. Memory allocated or opened in a context goes with
 * it. Memory with handles and pools belong to no context. */
static uint32_t in_context(const struct lien_mapping *mapping)
{
	const struct lien_allocation *allocation = mapping->holding->allocation;

	if (mapping->imported)
		return mapping->opened ? mapping->context : 0;
	return lien_allocation_by_address(allocation) && allocation->origin != LIEN_ORIGIN_POOL &&
			       allocation->owner == mapping->holding->process
		       ? allocation->context
		       : 0;
}

/* 0: none, or not known. */
static uint64_t context_of(const struct lien_mapping *mapping)
{
	struct lien_context key = {.number = in_context(mapping)};
	const struct lien_context *context = RB_FIND(
		lien_context_number_tree, &mapping->holding->process->context_numbers, &key);

	return context ? context->value : 0;
}

static struct lien_mapping *next_in_context(struct lien_graph *graph, struct lien_process *process,
	uint64_t from, const struct lien_context *context)
{
	struct lien_mapping *mapping = lien_process_overlap(process, from, UINT64_MAX - from);

	while (mapping && in_context(mapping) != context->number)
		mapping = lien_process_visits(graph, process)
				  ? RB_NEXT(lien_mapping_tree, &process->mappings, mapping)
				  : NULL;
	return mapping;
}

/* Frees memory allocated in the context, unless a call that has yet to return has freed it. */
static void context_drop(
	struct lien_graph *graph, struct lien_process *process, struct lien_context *context)
{
	struct lien_mapping *mapping;
	uint64_t from = 0;

	while ((mapping = next_in_context(graph, process, from, context))) {
		from = mapping->va;
		if (!lien_mapping_apply_pending(graph, mapping))
			lien_mapping_drop(graph, mapping);
	}
	RB_REMOVE(lien_context_tree, &process->contexts, context);
	RB_REMOVE(lien_context_number_tree, &process->context_numbers, context);
	free(context);
}

int lien_graph_apply_context_destroy(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_context *context = context_find(process, event->context.context);

	if (!context)
		lien_graph_odd(graph, process);
	else
		context_drop(graph, process, context);
	return 0;
}

/* Every retain returns the same primary context; other contexts are new. */
int lien_graph_apply_context(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	bool primary = event->type == LIEN_CALL_CU_CONTEXT_PRIMARY;
	struct lien_context *context;

	while ((context = context_find(process, event->context.context)) &&
		!(primary && context->primary))
		if (!lien_pending_apply(graph, process, LIEN_CALL_CU_CONTEXT_DESTROY,
			    context->value, 0, lien_graph_apply_context_destroy))
			context_drop(graph, process, context);
	if (!context) {
		context = calloc(1, sizeof(*context));
		if (!context)
			return -ENOMEM;
		context->value = event->context.context;
		context->number = ++process->next_context;
		RB_INSERT(lien_context_tree, &process->contexts, context);
		RB_INSERT(lien_context_number_tree, &process->context_numbers, context);
	}
	context->device = event->context.device;
	context->primary = primary;
	process->no_context &= !primary;
	return 0;
}

/* The mapping's context may be going, with everything allocated in it. */
bool lien_context_apply_pending(struct lien_graph *graph, const struct lien_mapping *mapping)
{
	uint64_t context = context_of(mapping);

	return context &&
	       lien_pending_apply(graph, mapping->holding->process, LIEN_CALL_CU_CONTEXT_DESTROY,
		       context, 0, lien_graph_apply_context_destroy);
}
