/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_SANITIZER_H
#define LIEN_SANITIZER_H

/* NVIDIA's compute-sanitizer sets this variable in the processes that it checks (seen, CUDA 13.0).
 * It knows the driver's allocations, and would not see where in a chunk of ours a block ends: plain
 * memory stays the driver's there. */
#define LIEN_SANITIZER		"compute-sanitizer"
#define LIEN_SANITIZER_VARIABLE "NV_SANITIZER_INJECTION_PORT_BASE"

#endif
