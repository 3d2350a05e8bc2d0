/* SPDX-License-Identifier: BSD-2-Clause */
/* The agent's log and clock. */
#ifndef LIEN_LOG_H
#define LIEN_LOG_H

#include <stdint.h>

/* Writes a line to stderr, or for the system's log ("<6>lien agent: ...") if stderr is not a
 * terminal. Levels are syslog's. */
void lien_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* CLOCK_MONOTONIC. Fuzzers supply their own clock. */
uint64_t lien_now_ns(void);

#endif
