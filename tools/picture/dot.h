/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TOOLS_GRAPH_DOT_H
#define LIEN_TOOLS_GRAPH_DOT_H

#include <stdio.h>

#include <jansson.h>

/* Writes the graph reply as a picture for graphviz: `dot -Tsvg`. Returns 0 or -ENOMEM; the caller
 * must check out for write errors. */
int lien_graph_dot(const json_t *reply, FILE *out);

#endif
