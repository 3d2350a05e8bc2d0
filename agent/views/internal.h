/* SPDX-License-Identifier: BSD-2-Clause */
/* Parts of several answers, shared by the views' own files. All return new references. */
#ifndef LIEN_VIEWS_INTERNAL_H
#define LIEN_VIEWS_INTERNAL_H

#include <inttypes.h>

#include "agent/views/views.h"

/* "0x7f00": addresses and handles do not fit JSON's numbers. */
static inline json_t *lien_view_hex(uint64_t value)
{
	return json_sprintf("0x%" PRIx64, value);
}

/* Names a communicator's group by the start of the unique id, which is NCCL's random magic. */
static inline json_t *lien_view_group(const struct lien_comm *comm)
{
	return json_sprintf("%016" PRIx64, lien_comm_group(comm));
}

/* Returns the GPU that device memory lies on; NULL: its owner's ordinals are not known. */
const struct lien_uuid *lien_allocation_gpu(const struct lien_allocation *allocation);
json_t *lien_view_allocation(const struct lien_allocation *allocation);
/* Lists the handles that the viewer sees. */
json_t *lien_view_handles(
	const struct lien_allocation *allocation, const struct lien_viewer *viewer);
json_t *lien_view_mapping(const struct lien_mapping *mapping);

#endif
