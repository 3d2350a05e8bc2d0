/* SPDX-License-Identifier: BSD-2-Clause */
/* Host memory near a device. Any memory serves where the machine does not report or permit more. */
#ifndef LIEN_CONTROL_NUMA_H
#define LIEN_CONTROL_NUMA_H

#include "control/driver/driver.h"

/* Returns the host's NUMA node nearest to a device, or -1: unknown. */
int lien_numa_node(const struct lien_driver *driver, CUdevice device);
/* Makes untouched memory come from that node as far as it has some; -1: any. */
void lien_numa_prefer(void *memory, size_t bytes, int node);

#endif
