/* SPDX-License-Identifier: BSD-2-Clause */
/* The agent's log and clock. */
#ifndef LIEN_LOG_H
#define LIEN_LOG_H

#include <stdint.h>

/* A line for the system's log: "<6>lien agent: ..." when stderr is not a terminal. Levels as
 * syslog's.
 */
void lien_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* CLOCK_MONOTONIC. Fuzzers have a clock of their own. */
uint64_t lien_now_ns(void);

#endif
