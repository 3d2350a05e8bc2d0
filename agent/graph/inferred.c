// SPDX-License-Identifier: BSD-2-Clause
/* Infers whose memory it is, where nobody saw who asked for it. */
#include <string.h>

#include "agent/graph/devices.h"
#include "agent/graph/graph.h"

#define GROUPS_MAX 128 /* names of groups that are compared, for each process */

static const char nccl[] = "nccl";

/* The groups that a process is in, by NCCL's name for them and by their unique ids. */
struct groups {
	uint64_t name[GROUPS_MAX];
	unsigned count;
	bool unnamed; /* it may be in groups that nobody could name */
};

static void add_name(struct groups *groups, uint64_t name)
{
	if (name && groups->count < GROUPS_MAX)
		groups->name[groups->count++] = name;
}

static void list_groups(struct lien_process *process, struct groups *groups)
{
	struct lien_comm *comm;
	uint64_t name;

	groups->count = 0;
	groups->unnamed = false;
	RB_FOREACH (comm, lien_comm_tree, &process->comms) {
		memcpy(&name, comm->id, sizeof(name));
		add_name(groups, name);
		add_name(groups, comm->hash);
		groups->unnamed |= lien_comm_unnamed(comm);
		if (groups->count == GROUPS_MAX)
			return;
	}
	if (!groups->count)
		groups->unnamed |= process->incomplete & LIEN_INCOMPLETE_NCCL;
}

/* Are they ranks of one communicator, or is nothing known of their communicators that says no? */
static bool may_be_ranks(struct lien_process *a, struct lien_process *b)
{
	struct groups of_a, of_b;
	unsigned i, j;

	list_groups(a, &of_a);
	list_groups(b, &of_b);
	for (i = 0; i < of_a.count; i++)
		for (j = 0; j < of_b.count; j++)
			if (of_a.name[i] == of_b.name[j])
				return true;
	return of_a.unnamed && of_b.unnamed;
}

/* Returns the device that a process numbers so. NULL: not known. */
static const struct lien_uuid *device_of(const struct lien_process *process, int32_t ordinal)
{
	const struct lien_ordinals *ordinals = process->ordinals;

	return ordinals && ordinal >= 0 && (unsigned)ordinal < ordinals->count
		       ? &ordinals->uuid[ordinal]
		       : NULL;
}

/* NCCL shares memory with the ranks on other devices, and programs also with their helpers on the
 * same one. Returns false only if no other device has access. */
static bool reaches_another_device(
	const struct lien_allocation *allocation, const struct lien_holding *holding)
{
	const struct lien_uuid *home = device_of(allocation->owner, allocation->prop.location_id);
	const struct lien_access_set *set;
	const struct lien_mapping *mapping;
	const struct lien_uuid *other;
	unsigned i;

	LIST_FOREACH (mapping, &holding->mappings, of_holding) {
		set = lien_mapping_access(mapping);
		for (i = 0; set && i < set->count; i++) {
			if (set->access[i].location_type != allocation->prop.location_type)
				continue;
			other = device_of(holding->process, set->access[i].location_id);
			if (!home || !other || !lien_uuid_equal(home, other))
				return true;
		}
	}
	return false;
}

static bool seems_nccls(const struct lien_allocation *allocation)
{
	const struct lien_holding *holding;

	if (!allocation->found || !allocation->owner || lien_allocation_by_address(allocation))
		return false;
	LIST_FOREACH (holding, &allocation->holdings, of_allocation)
		if (holding->process != allocation->owner &&
			reaches_another_device(allocation, holding) &&
			may_be_ranks(allocation->owner, holding->process))
			return true;
	return false;
}

const char *lien_allocation_attributed(const struct lien_allocation *allocation, bool *inferred)
{
	const char *library = lien_allocation_library(allocation);

	*inferred = !strcmp(library, "unknown") && seems_nccls(allocation);
	return *inferred ? nccl : library;
}
