// SPDX-License-Identifier: BSD-2-Clause
/*
 * A library that has all calls of calls.h that one of our libraries has (HOSTILE_CUDA, ...: which),
 * does nothing, and says of each what it is told to: so that a test can have any arguments succeed,
 * be refused, or stay inside of a call.
 */
#include <lien/calls.h>

/* Called inside of each call; makes its result. */
__attribute__((visibility("default"))) long (*hostile_hook)(int call, const long *arg);

#ifdef HOSTILE_CUDA
#define IF_CUDA(...) __VA_ARGS__
#else
#define IF_CUDA(...)
#endif
#ifdef HOSTILE_CUDART
#define IF_CUDART(...) __VA_ARGS__
#else
#define IF_CUDART(...)
#endif
#ifdef HOSTILE_NCCL
#define IF_NCCL(...) __VA_ARGS__
#else
#define IF_NCCL(...)
#endif
#ifdef HOSTILE_IBVERBS
#define IF_IBVERBS(...) __VA_ARGS__
#else
#define IF_IBVERBS(...)
#endif
#define IF_MLX5(...)
#define IF_GDRAPI(...)

#define FUNCTION(name, number, symbol)                                                             \
	long hostile_##name(long, long, long, long, long, long) __asm__(symbol);                   \
	__attribute__((visibility("default"), noinline)) long hostile_##name(                      \
		long a, long b, long c, long d, long e, long f)                                    \
	{                                                                                          \
		const long arg[] = {a, b, c, d, e, f};                                             \
		long result = hostile_hook ? hostile_hook(number, arg) : 0;                        \
                                                                                                   \
		__asm__ volatile("" : "+r"(result)); /* returns here: never a jump */              \
		return result;                                                                     \
	}

#define ROW(name, number, lib, symbol, flags, kind) IF_##lib(FUNCTION(name, number, symbol))
LIEN_CALLS(ROW)
