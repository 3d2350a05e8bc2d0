/* SPDX-License-Identifier: BSD-2-Clause */
/* One answer for several nodes: what each agent says, put together, with the node in each entry. */
#ifndef LIEN_TOOLS_NODES_VIEW_H
#define LIEN_TOOLS_NODES_VIEW_H

#include "tools/cli/nodes.h"

struct lien_nodes_view {
	struct lien_nodes_options options;
	/* --- its own --- */
	struct lien_nodes nodes;
	bool connected;
	json_t *results; /* the last, in the order of the nodes */
};

/* Asks all nodes, which are connected first. Returns the result, owned by the caller, or NULL after
 * a message, with *code. It has the member `nodes`, and what docs/protocol.md says of it. */
json_t *lien_nodes_view_query(struct lien_nodes_view *view, const struct lien_usage *usage,
	const char *socket, const json_t *request, int *code);
/* Calls each() for each node's own result of the last query. */
void lien_nodes_view_each(const struct lien_nodes_view *view,
	void (*each)(void *context, const char *node, const json_t *result), void *context);
void lien_nodes_view_free(struct lien_nodes_view *view);

#endif
