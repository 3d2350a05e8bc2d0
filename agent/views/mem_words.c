// SPDX-License-Identifier: BSD-2-Clause
/* `mem` by one aspect of the memory: the names of who asked, for what, and where it is. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/views/internal.h"

const struct lien_uuid *lien_allocation_gpu(const struct lien_allocation *allocation)
{
	return allocation->owner ? lien_ordinals_uuid(allocation->owner->ordinals,
					   allocation->prop.location_id)
				 : NULL;
}

static int print_rank(char **text, const struct lien_comm *comm)
{
	json_t *group = lien_view_group(comm);
	int n;

	if (comm->rank < 0)
		n = asprintf(text, "unknown rank of %s", json_string_value(group));
	else
		n = asprintf(text, "rank %d/%d of %s", comm->rank, comm->nranks,
			json_string_value(group));
	json_decref(group);
	return n;
}

/* A process in several groups is named after the largest one, or the oldest of the largest. */
static const struct lien_comm *naming_comm(struct lien_process *process)
{
	const struct lien_comm *best = NULL;
	struct lien_comm *comm;

	RB_FOREACH (comm, lien_comm_tree, &process->comms)
		if (comm->rank >= 0 &&
			(!best || comm->nranks > best->nranks ||
				(comm->nranks == best->nranks && comm->number < best->number)))
			best = comm;
	return best;
}

static int print_owner(char **text, const struct lien_allocation *allocation)
{
	if (!allocation->owner_pid)
		return asprintf(text, "an unknown process");
	return asprintf(text, "process %u%s", allocation->owner_pid,
		allocation->owner ? "" : ", which has exited");
}

static int print_process(
	char **text, const struct lien_allocation *sample, struct lien_process *process)
{
	const struct lien_comm *comm = process ? naming_comm(process) : NULL;

	if (!process)
		return print_owner(text, sample);
	if (!comm)
		return asprintf(text, "process %u, no communicator", process->pid);
	return print_rank(text, comm);
}

static int print_comm(char **text, const struct lien_allocation *allocation)
{
	const struct lien_comm *comm = lien_allocation_comm(allocation);

	if (comm)
		return print_rank(text, comm);
	return asprintf(text, "%s communicator", allocation->comm ? "destroyed" : "no");
}

static int print_device(
	char **text, const struct lien_allocation *sample, const struct lien_node *node)
{
	const struct lien_uuid *uuid = lien_allocation_gpu(sample);
	const struct lien_node_device *device = uuid ? lien_node_find(node, uuid) : NULL;
	char name[LIEN_UUID_TEXT], *owner = NULL;
	int n;

	if (!lien_allocation_on_device(sample))
		return asprintf(text, "host memory");
	if (uuid) {
		lien_uuid_print(device ? &device->uuid : uuid, name);
		return device ? asprintf(text, "GPU %u (%s)", device->index, name)
			      : asprintf(text, "%s", name);
	}
	if (print_owner(&owner, sample) < 0)
		return -1;
	n = sample->prop.location_id >= 0
		    ? asprintf(text, "device %d of %s", sample->prop.location_id, owner)
		    : asprintf(text, "unknown device of %s", owner);
	free(owner);
	return n;
}

char *lien_view_site(const struct lien_site *site)
{
	const char *call = site && site->outer ? lien_call_name(site->outer) : NULL;
	char *text = NULL;
	int n;

	if (!site)
		return strdup("unknown");
	call = call ? call : "unknown call";
	if (!site->file)
		n = asprintf(&text, "%s from 0x%" PRIx64, call, site->offset);
	else if (site->symbol)
		n = asprintf(&text, "%s from %s %s+0x%" PRIx64, call, site->file->text,
			site->symbol->text, site->into);
	else
		n = asprintf(&text, "%s from %s+0x%" PRIx64, call, site->file->text, site->offset);
	return n < 0 ? NULL : text;
}

char *lien_mem_words(enum lien_mem_by by, const struct lien_allocation *sample,
	struct lien_process *process, const struct lien_node *node)
{
	const char *owner, *tag = lien_allocation_tag(sample);
	char *text = NULL;
	bool inferred;
	int n = 0;

	switch (by) {
	case LIEN_MEM_BY_OWNER:
		owner = lien_allocation_attributed(sample, &inferred);
		n = asprintf(&text, "%s%s", owner, inferred ? ", probably" : "");
		break;
	case LIEN_MEM_BY_CALLSITE:
		return lien_view_site(sample->site);
	case LIEN_MEM_BY_RANK:
		n = print_process(&text, sample, process);
		break;
	case LIEN_MEM_BY_COMM:
		n = print_comm(&text, sample);
		break;
	case LIEN_MEM_BY_DEVICE:
		n = print_device(&text, sample, node);
		break;
	default:
		if (!tag)
			tag = lien_allocation_tag_known(sample) ? "no tag" : "tag not known";
		n = asprintf(&text, "%s", tag);
	}
	return n < 0 ? NULL : text;
}
