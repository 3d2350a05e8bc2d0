/* SPDX-License-Identifier: BSD-2-Clause */
/* Host memory near a device. Where the machine does not tell, or forbids it, any memory serves. */
#ifndef LIEN_CONTROL_NUMA_H
#define LIEN_CONTROL_NUMA_H

#include "control/driver/driver.h"

/* The host's NUMA node that is nearest to a device, or -1: not known. */
int lien_numa_node(const struct lien_driver *driver, CUdevice device);
/* Memory that is not touched yet is to be that node's, as far as it has some; -1: any. */
void lien_numa_prefer(void *memory, size_t bytes, int node);

#endif
