/* SPDX-License-Identifier: BSD-2-Clause */
/* What the gate needs of the kernel, beyond what tracing needs. */
#ifndef LIEN_GATE_KERNEL_H
#define LIEN_GATE_KERNEL_H

#include <stdbool.h>

/* Returns why this kernel cannot hold threads back, or NULL if it can. `multi`: probes are attached
 * by uprobe-multi. */
const char *lien_gate_kernel_lacks(bool multi);

#endif
