/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Answers as JSON, in the shapes of docs/protocol.md. Each function returns a new reference, or
 * NULL when out of memory. They read the graph and change nothing.
 */
#ifndef LIEN_VIEWS_H
#define LIEN_VIEWS_H

#include <jansson.h>
#include <lien/probe.h>

#include "agent/graph/devices.h"
#include "agent/graph/graph.h"
#include "agent/plan/plan.h"
#include "agent/transaction/transaction.h"

/* Exports that are open files of some process now, or on their way (pid 0); empty if that cannot be
 * read. */
struct lien_view_files {
	const struct lien_probe_open_file *file;
	unsigned count;
	bool known; /* false: count is 0, but open exports may exist */
};

json_t *lien_view_ps(struct lien_graph *graph, const struct lien_viewer *viewer);

/* Memory by one aspect of it, the largest part first. */
enum lien_mem_by {
	LIEN_MEM_BY_OWNER,
	LIEN_MEM_BY_RANK,
	LIEN_MEM_BY_COMM,
	LIEN_MEM_BY_DEVICE,
	LIEN_MEM_BY_CALLSITE,
	LIEN_MEM_BY_TAG,
	/* Without an aspect: by process, owner, kind and tag; the second is
	   lien_view_mem_devices()'s. */
	LIEN_MEM_BY_KIND,
	LIEN_MEM_BY_KIND_AND_DEVICE,
};

/* Parses "owner", "rank", ...; -1: none of these. */
int lien_mem_by_parse(const char *name, enum lien_mem_by *by);
/* Counts the memory that one process owns or imports, or that of all when pid is 0. */
json_t *lien_view_mem(struct lien_graph *graph, const struct lien_viewer *viewer,
	enum lien_mem_by by, uint32_t pid, const struct lien_node *node);
/*
 * Parts of metrics: `mem`'s rows by device too; and the device memory of the whole node by GPU,
 * whoever asks.
 */
json_t *lien_view_mem_devices(
	struct lien_graph *graph, const struct lien_viewer *viewer, const struct lien_node *node);
json_t *lien_view_mem_node(struct lien_graph *graph, const struct lien_node *node);
json_t *lien_view_totals(const struct lien_totals *totals);
/* A part of ps. */
json_t *lien_view_dead(struct lien_graph *graph, const struct lien_viewer *viewer);
json_t *lien_view_graph(struct lien_graph *graph, const struct lien_viewer *viewer);
/* The calls counted for a communicator, as the kernel side names it: see struct lien_probe_traffic.
 */
struct lien_counted {
	struct lien_probe_comm comm;
	struct lien_probe_traffic traffic;
};
/* For sorting: by process and communicator. */
static inline int lien_counted_cmp(const void *a, const void *b)
{
	const struct lien_counted *x = a, *y = b;

	if (x->comm.pid != y->comm.pid)
		return x->comm.pid < y->comm.pid ? -1 : 1;
	return (x->comm.comm > y->comm.comm) - (x->comm.comm < y->comm.comm);
}

/* Sorts `counted` as a side effect; NULL: nothing was counted. `pending`: NCCL's RAS is being
 * asked. now_ns: CLOCK_MONOTONIC. */
json_t *lien_view_comms(struct lien_graph *graph, const struct lien_viewer *viewer,
	struct lien_counted *counted, size_t count, bool pending, uint64_t now_ns);
/* May the process have communicators whose making was not seen? */
bool lien_comms_may_lack(const struct lien_process *process);
/*
 * Also returns NULL when there is no such process or address: `error` then says which, else it is
 * "".
 */
json_t *lien_view_holders(struct lien_graph *graph, const struct lien_viewer *viewer, uint32_t pid,
	uint64_t address, const struct lien_view_files *files, char *error, size_t error_size);

/*
 * Lists the devices by UUID and the processes that may use them; with `explained` also what these
 * use.
 */
json_t *lien_view_gpus(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_node *node, bool explained);

/* A graph, its viewer, and what else is known: for the answers that come from one table. */
struct lien_view_source {
	struct lien_graph *graph;
	const struct lien_viewer *viewer; /* NULL: sees everything */
	const struct lien_node *node;
	/* it is not known what an offload would do, or which processes take orders */
	bool recorded;
	bool pending; /* an answer about devices or call sites is outstanding */
	struct lien_view_files files;
	/* Returns a process's use of a communicator; false: none. NULL: not known for any. */
	bool (*traffic)(
		void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic);
	void *context;
	uint64_t now_ns;  /* CLOCK_MONOTONIC */
	uint64_t idle_ns; /* a communicator counts as idle after that long without a call */
};

/* Is this a request that a graph answers: `ps`, `mem`, `comms`, `graph`, `holders`, `check`? */
bool lien_view_has(const char *op);
/* NULL: `error` says why; "": out of memory. */
json_t *lien_view_dispatch(const struct lien_view_source *source, const json_t *request,
	char *error, size_t error_size);
/* Oddities in the memory of this node: `check`. */
json_t *lien_findings(const struct lien_view_source *source);

/* Shows what an offload would do. */
json_t *lien_view_plan(const struct lien_plan *plan);
/* Shows what a transaction did; the plan and the shortfalls are an offload's, or NULL. */
json_t *lien_view_result(const struct lien_transaction *transaction, const struct lien_plan *plan,
	const struct lien_shortfalls *shortfalls);
/* Lists those of processes that the viewer sees. NULL: there are none. */
json_t *lien_view_shortfalls(struct lien_graph *graph, const struct lien_viewer *viewer,
	const struct lien_shortfalls *shortfalls);

/* Parts of several answers. */
/* "cuMemAlloc_v2 from libtorch_cuda.so c10::f+0x12", or "... libtorch_cuda.so+0x1234" with the
 * place in the file. The caller frees; NULL: out of memory. */
char *lien_view_site(const struct lien_site *site);
/* Returns the kind of host memory; NULL for any other memory. Each kind has one address. */
const char *lien_host_kind(const struct lien_allocation *allocation);
/* Host memory that lien itself has pinned for offloaded memory; it has no row. */
#define LIEN_ARENA_LIBRARY "lien-control"
static inline bool lien_is_arena(const struct lien_allocation *allocation)
{
	return allocation->origin == LIEN_ORIGIN_REGISTERED &&
	       !strcmp(lien_allocation_library(allocation), LIEN_ARENA_LIBRARY);
}

#endif
