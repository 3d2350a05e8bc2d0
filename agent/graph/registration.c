// SPDX-License-Identifier: BSD-2-Clause
/* Buffers registered with communicators and with network cards. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/array.h"
#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"

/* NULL: out of memory, or an unknown communicator that is not to be made. */
static struct lien_registration_tree *registrations_of(
	struct lien_process *process, const struct lien_event *event, bool make)
{
	struct lien_comm *comm;

	if (lien_event_library(event->type) != LIEN_LIB_NCCL)
		return &process->cards;
	comm = lien_comm_find(process, event->reg.comm);
	if (!comm && make) /* made before NCCL was probed */
		comm = lien_comm_new(process, event->reg.comm);
	return comm ? &comm->registrations : NULL;
}

static struct lien_registration *registration_find(
	struct lien_registration_tree *list, uint64_t handle)
{
	struct lien_registration key = {.handle = handle}, *registration;

	registration = RB_NFIND(lien_registration_tree, list, &key);
	return registration && registration->handle == handle ? registration : NULL;
}

int lien_registration_name(struct lien_graph *graph, struct lien_registration *registration,
	const char card[LIEN_CARD_BYTES])
{
	char why[128];

	if (!card[0])
		return 0;
	registration->card = lien_graph_name(graph, card, LIEN_CARD_BYTES);
	if (!registration->card)
		return -ENOMEM;
	snprintf(why, sizeof(why),
		strcmp(card, LIEN_CARD_GDRCOPY)
			? "registered with network card %s (RDMA), which keeps the old memory"
			: "pinned by GDRCopy (%s), which keeps the old memory",
		registration->card->text);
	registration->why = lien_graph_name(graph, why, sizeof(why));
	return registration->why ? 0 : -ENOMEM;
}

static int apply_deregister(struct lien_process *process, const struct lien_event *event)
{
	struct lien_registration_tree *list = registrations_of(process, event, false);
	struct lien_registration *registration;

	registration = list ? registration_find(list, event->reg.handle) : NULL;
	if (registration)
		lien_registration_drop(list, registration);
	process->card_spans.known = false;
	return 0;
}

static int apply_register(struct lien_process *process, const struct lien_event *event)
{
	struct lien_registration_tree *list = registrations_of(process, event, true);
	const enum lien_kind end = lien_call_kind(event->type) == LIEN_KIND_register
					   ? LIEN_KIND_deregister
					   : LIEN_KIND_deregister_mr;
	struct lien_registration *registration;

	if (!list)
		return -ENOMEM;
	if (!event->reg.handle)
		/* NCCL reports success without a handle: it does not register such memory */
		return 0;
	while ((registration = registration_find(list, event->reg.handle))) {
		if (lien_pending_apply(process, end, event->reg.handle, 0))
			continue;
		if (list != &process->cards)
			/* NCCL counts: it returns one handle for a buffer registered twice */
			break;
		/*
		 * One entry point of libibverbs may call another: the same region, reported twice.
		 */
		if (registration->va == event->reg.va && registration->bytes == event->reg.bytes)
			return 0;
		lien_registration_drop(list, registration); /* its end was missed */
	}
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return -ENOMEM;
	registration->number = ++process->graph->next_registration;
	registration->va = event->reg.va;
	registration->bytes = event->reg.bytes;
	registration->handle = event->reg.handle;
	registration->window = event->type == LIEN_CALL_NCCL_WINDOW_REGISTER;
	registration->of_gpu = lien_registration_lies(process, registration);
	RB_INSERT(lien_registration_tree, list, registration);
	process->card_spans.known = false;
	return list == &process->cards && event->size >= LIEN_EVENT_SIZE(mr)
		       ? lien_registration_name(process->graph, registration, event->mr.card)
		       : 0;
}

bool lien_registration_lies(
	struct lien_process *process, const struct lien_registration *registration)
{
	return lien_process_mapping(process, registration->va) ||
	       lien_process_mapping(process, registration->va + registration->bytes - 1);
}

/* --- spans ------------------------------------------------------------------------------------ */

static const char unnamed[] = "registered with a network card (RDMA), which keeps the old memory";
static const char several[] =
	"registered with several network cards (RDMA), which keep the old memory";

/* Returns false if there is not enough memory. */
static bool list_spans(struct lien_spans *spans, struct lien_registration_tree *list)
{
	struct lien_registration *registration;

	spans->count = 0;
	RB_FOREACH (registration, lien_registration_tree, list) {
		if (!lien_range_sane(registration->va, registration->bytes))
			continue;
		if (lien_array_grow(
			    &spans->span, spans->count, &spans->room, sizeof(spans->span[0])))
			return false;
		spans->span[spans->count++] =
			(struct lien_span){registration->va, registration->va + registration->bytes,
				registration->why ? registration->why->text : unnamed};
	}
	return true;
}

static int span_cmp(const void *a, const void *b)
{
	const struct lien_span *x = a, *y = b;

	return x->va < y->va ? -1 : x->va > y->va;
}

static void spans_join(struct lien_spans *spans)
{
	struct lien_span *last = spans->span;
	unsigned i;

	if (!spans->count)
		return;
	qsort(spans->span, spans->count, sizeof(spans->span[0]), span_cmp);
	for (i = 1; i < spans->count; i++) {
		const struct lien_span *next = &spans->span[i];
		const bool same = !strcmp(next->why, last->why);

		if (next->va > last->end || (next->va == last->end && !same)) {
			*++last = *next;
			continue;
		}
		if (next->end > last->end)
			last->end = next->end;
		if (!same)
			last->why = several;
	}
	spans->count = last - spans->span + 1;
}

static int end_cmp(const void *span, const void *va)
{
	return ((const struct lien_span *)span)->end <= *(const uint64_t *)va ? -1 : 1;
}

const char *lien_mapping_card_keeps(const struct lien_mapping *mapping)
{
	struct lien_process *process = mapping->holding->process;
	struct lien_spans *spans = &process->card_spans;
	unsigned i;

	if (!spans->known) {
		if (!list_spans(spans, &process->cards))
			return unnamed;
		spans_join(spans);
		spans->known = true;
	}
	i = lien_array_at_least(
		spans->span, spans->count, sizeof(spans->span[0]), &mapping->va, end_cmp);
	return i < spans->count && spans->span[i].va < mapping->va + mapping->bytes
		       ? spans->span[i].why
		       : NULL;
}

#define apply_register_mr   apply_register
#define apply_deregister_mr apply_deregister

lien_apply_fn *const lien_register_effects[LIEN_KIND_COUNT] = {LIEN_REGISTER_KINDS(LIEN_EFFECT)};
