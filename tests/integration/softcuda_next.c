// SPDX-License-Identifier: BSD-2-Clause
/*
 * What a newer driver exports and the software driver does not have: functions that do nothing.
 * Linked with the software driver's objects into a libcuda of its own (tests/build.mk).
 */
#define RETURNS(name, result)                                                                      \
	__attribute__((visibility("default"), noinline)) int name(void)                            \
	{                                                                                          \
		__asm__ volatile("nop");                                                           \
		return result;                                                                     \
	}
#define CALL(name) RETURNS(name, 801) /* CUDA_ERROR_NOT_SUPPORTED */

#include "next_calls.h"

CALL(cuFutureFill) /* in no header yet */
RETURNS(cuFutureBind, 0)
RETURNS(cuLogicalEndpointBindAddr, 0) /* CUDA 13.3 */
