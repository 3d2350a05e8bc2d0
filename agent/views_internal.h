/* SPDX-License-Identifier: BSD-2-Clause */
/* What the views say alike. */
#ifndef LIEN_VIEWS_INTERNAL_H
#define LIEN_VIEWS_INTERNAL_H

#include <inttypes.h>
#include <string.h>

#include "agent/views.h"

/* Addresses and handles. */
static inline json_t *lien_view_hex(uint64_t value)
{
	return json_sprintf("0x%" PRIx64, value);
}

/* Names a communicator's group: the start of the unique id is NCCL's random magic. */
static inline json_t *lien_view_group(const struct lien_comm *comm)
{
	uint64_t magic;

	memcpy(&magic, comm->id, sizeof(magic));
	return json_sprintf("%016" PRIx64, magic);
}

#endif
