/* SPDX-License-Identifier: BSD-2-Clause */
/* The parts of a request that name GPUs, communicators and tags (docs/protocol.md, `offload`). */
#ifndef LIEN_SELECT_H
#define LIEN_SELECT_H

#include <jansson.h>

#include <lien/wire.h>

#include "agent/server/client.h"

#define LIEN_SELECT_GPUS   256
#define LIEN_SELECT_GROUPS 1024
#define LIEN_SELECT_TAGS   256
_Static_assert(LIEN_SELECT_GROUPS + LIEN_SELECT_TAGS <= LIEN_WIRE_CHOSEN_MAX,
	"a restore names what is selected in one order");

/* What a selection points to. */
struct lien_selected {
	struct lien_uuid gpus[LIEN_SELECT_GPUS];
	uint64_t groups[LIEN_SELECT_GROUPS];
	const char *tags[LIEN_SELECT_TAGS]; /* the request's */
};

/* Reads `comms` alone, as lien_select_read(). */
bool lien_select_comms(struct lien_client *client, json_t *request,
	struct lien_selection *selection, struct lien_selected *selected);
/* Reads `tags` alone. */
bool lien_select_tags(struct lien_client *client, json_t *request, struct lien_selection *selection,
	struct lien_selected *selected);
/*
 * Reads `gpus`, `comms` and `tags`. Returns false after an error reply: nothing that the client
 * sees has that name, or it is not a name.
 */
bool lien_select_read(struct lien_client *client, json_t *request, struct lien_selection *selection,
	struct lien_selected *selected);
/* Is it a tag, as far as its characters and its length go? Otherwise replies with an error. */
bool lien_select_tag(struct lien_client *client, const char *text);

#endif
