/* SPDX-License-Identifier: BSD-2-Clause */
/* The clock of events, limits and waits. */
#ifndef LIEN_CLOCK_H
#define LIEN_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns CLOCK_MONOTONIC, the clock of bpf_ktime_get_ns(). */
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
