/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_CLEAN_H
#define LIEN_CLEAN_H

#include "agent/graph/graph.h"

#define LIEN_CLEAN_TEXT 160

/* Returns how many running processes use CUDA, and names them: "processes 20, 21". */
unsigned lien_clean_users(struct lien_graph *graph, char *text, size_t size);

#endif
