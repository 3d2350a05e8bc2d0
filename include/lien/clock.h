/* SPDX-License-Identifier: BSD-2-Clause */
/* The time that events, limits and waits are told in. */
#ifndef LIEN_CLOCK_H
#define LIEN_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, as bpf_ktime_get_ns() has it. */
static inline uint64_t lien_clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static inline uint64_t lien_clock_ms(void)
{
	return lien_clock_ns() / 1000000;
}

#endif
