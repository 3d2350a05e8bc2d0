// SPDX-License-Identifier: BSD-2-Clause
/* Stands in for libtorch_cuda.so: the function in which PyTorch's watchdog looks at the clock, and
 * another one. */
#include <stdint.h>

int64_t _ZNSt6chrono3_V212steady_clock3nowEv(void);

int64_t
_ZN4c10d16ProcessGroupNCCL8WorkNCCL12checkTimeoutESt8optionalINSt6chrono8durationIlSt5ratioILl1ELl1000EEEEE(
	void)
{
	return _ZNSt6chrono3_V212steady_clock3nowEv() + 0;
}

int64_t watched_now(void)
{
	return _ZNSt6chrono3_V212steady_clock3nowEv() + 0;
}
