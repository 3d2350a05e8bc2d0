/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph of several nodes in one picture. Their processes can have the same pids, and their GPUs
 * the same numbers; in the picture's own copy of the reply both also have the node in them.
 */
#ifndef LIEN_TOOLS_PICTURE_SEVERAL_H
#define LIEN_TOOLS_PICTURE_SEVERAL_H

#include <stdint.h>

#include <jansson.h>

#define LIEN_SEVERAL_DEVICE_BITS 18 /* of a device's number; above them, the node */

/* Returns a copy of the reply in which pids and devices are unique, or another reference to that of
 * a single node; NULL: out of memory. Pid 0 (an unknown owner) and unknown devices stay as they
 * are. */
json_t *lien_several_unite(const json_t *reply);

/* `nodes` is that member of the reply, NULL for a single node; what is returned is then "" and the
 * number itself. */
const char *lien_several_node_of_pid(const json_t *nodes, uint64_t pid);
uint64_t lien_several_pid(const json_t *nodes, uint64_t pid);
const char *lien_several_node_of_device(const json_t *nodes, int64_t device);
int64_t lien_several_device(const json_t *nodes, int64_t device);

#endif
