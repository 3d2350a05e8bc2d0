/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What NVIDIA's management library says of the node's devices. It is found at run time: where it is
 * not, there are no figures. Its calls can take long, and hang when a device is broken: not for the
 * agent's own thread.
 */
#ifndef LIEN_NVML_H
#define LIEN_NVML_H

#include "agent/graph/devices.h"

/* Fills *node, which lien_node_clear() empties; .nvml is false when there is no NVML, or none that
 * works. -ENOMEM. One thread at a time. */
int lien_nvml_read(struct lien_node *node);

#endif
