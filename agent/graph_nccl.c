// SPDX-License-Identifier: BSD-2-Clause
/* Registrations (network cards' too), and which streams are being captured. */
#include <errno.h>
#include <stdlib.h>

#include "agent/event_check.h"
#include "agent/graph_internal.h"

/* NULL: out of memory, or a communicator that is not known and not to be made. */
static struct lien_registration_list *registrations_of(struct lien_graph *graph,
	struct lien_process *process, const struct lien_event *event, bool make)
{
	struct lien_comm *comm;

	if (lien_event_library(event->type) == LIEN_LIB_IBVERBS)
		return &process->cards;
	comm = lien_comm_find(process, event->reg.comm);
	if (!comm && make) /* made before NCCL was probed */
		comm = lien_comm_new(graph, process, event->reg.comm);
	return comm ? &comm->registrations : NULL;
}

static struct lien_registration *registration_find(
	struct lien_registration_list *list, uint64_t handle)
{
	struct lien_registration *registration;

	LIST_FOREACH (registration, list, next)
		if (registration->handle == handle)
			break;
	return registration;
}

int lien_graph_apply_deregister(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_registration_list *list = registrations_of(graph, process, event, false);
	struct lien_registration *registration;

	registration = list ? registration_find(list, event->reg.handle) : NULL;
	if (registration) {
		LIST_REMOVE(registration, next);
		free(registration);
	}
	return 0;
}

/* The call that gives back what this one registered. */
static unsigned end_of(unsigned call)
{
	switch (call) {
	case LIEN_CALL_NCCL_REGISTER:
		return LIEN_CALL_NCCL_DEREGISTER;
	case LIEN_CALL_NCCL_WINDOW_REGISTER:
		return LIEN_CALL_NCCL_WINDOW_DEREGISTER;
	}
	return LIEN_CALL_IBV_DEREG_MR;
}

int lien_graph_apply_register(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_registration_list *list = registrations_of(graph, process, event, true);
	struct lien_registration *registration;

	if (!list)
		return -ENOMEM;
	if (!event->reg.handle)
		return 0; /* NCCL's success without a handle: it does not register such memory */
	while ((registration = registration_find(list, event->reg.handle))) {
		if (lien_graph_apply_pending(
			    graph, process, end_of(event->type), event->reg.handle, 0))
			continue;
		if (list != &process->cards)
			break; /* NCCL counts: one handle for a buffer that is registered twice */
		/* One entry point of libibverbs may call another: the same region, told twice. */
		if (registration->va == event->reg.va && registration->bytes == event->reg.bytes)
			return 0;
		LIST_REMOVE(registration, next); /* its end was missed */
		free(registration);
	}
	registration = calloc(1, sizeof(*registration));
	if (!registration)
		return -ENOMEM;
	registration->va = event->reg.va;
	registration->bytes = event->reg.bytes;
	registration->handle = event->reg.handle;
	registration->window = event->type == LIEN_CALL_NCCL_WINDOW_REGISTER;
	registration->of_gpu = lien_registration_lies(process, registration);
	LIST_INSERT_HEAD(list, registration, next);
	return 0;
}

static struct lien_capture *capture_find(const struct lien_process *process, uint64_t stream)
{
	struct lien_capture *capture;

	LIST_FOREACH (capture, &process->captures, next)
		if (capture->stream == stream)
			break;
	return capture;
}

int lien_graph_apply_capture_begin(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	struct lien_capture *capture = capture_find(process, event->capture.stream);

	process->captured = true;
	if (capture)
		lien_graph_apply_pending(
			graph, process, LIEN_CALL_CU_STREAM_DESTROY, event->capture.stream, 0);
	if (capture_find(process, event->capture.stream))
		return 0; /* a stream has one at a time: the end of the one before was missed */
	capture = calloc(1, sizeof(*capture));
	if (!capture)
		return -ENOMEM;
	capture->stream = event->capture.stream;
	LIST_INSERT_HEAD(&process->captures, capture, next);
	return 0;
}

/* These leave a capture as it was; any other result ends it, most of them without a graph. */
static bool capture_goes_on(int result)
{
	return result == 1 /* INVALID_VALUE: none on this stream */ || result == 400 ||
	       result == 903 /* UNMATCHED: not the origin */ || result == 908 /* WRONG_THREAD */;
}

static void capture_drop(struct lien_process *process, uint64_t stream)
{
	struct lien_capture *capture = capture_find(process, stream);

	if (!capture)
		return;
	LIST_REMOVE(capture, next);
	free(capture);
}

int lien_graph_apply_capture_end(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	if (!capture_goes_on(event->result))
		capture_drop(process, event->capture.stream);
	return 0;
}

/* A capture under way ends with its stream. */
int lien_graph_apply_stream_destroy(
	struct lien_graph *graph, struct lien_process *process, const struct lien_event *event)
{
	(void)graph;
	capture_drop(process, event->capture.stream);
	return 0;
}
