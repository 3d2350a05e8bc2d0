/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph reply as a self-contained picture: a card per GPU with the processes that have memory
 * there; below, an arrow from each owner to each importer; then the communicators. The same reply
 * gives the same picture.
 */
#ifndef LIEN_TOOLS_GRAPH_SVG_H
#define LIEN_TOOLS_GRAPH_SVG_H

#include <stdio.h>

#include <jansson.h>

/* where ("on node7", "in job.lien") and when appear in the title. Returns 0 or -ENOMEM; the caller
 * must check out for write errors. */
int lien_graph_svg(const json_t *reply, const char *where, const char *when, FILE *out);

#endif
