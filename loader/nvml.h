/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Asks NVIDIA's management library (NVML) about the node's devices. The library is found at run
 * time; without it there are no figures. Its calls can take long, and hang when a device is broken:
 * do not call from the agent's main thread.
 */
#ifndef LIEN_NVML_H
#define LIEN_NVML_H

#include "agent/graph/devices.h"

/* Fills *node, which lien_node_clear() empties; .nvml is false without a working NVML. -ENOMEM. One
 * thread at a time. */
int lien_nvml_read(struct lien_node *node);

#endif
