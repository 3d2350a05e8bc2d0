/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TOOLS_GRAPH_DOT_H
#define LIEN_TOOLS_GRAPH_DOT_H

#include <stdio.h>

#include <jansson.h>

/* The graph reply as a picture for graphviz: `dot -Tsvg`. 0 or -ENOMEM; out may have failed. */
int lien_graph_dot(const json_t *reply, FILE *out);

#endif
