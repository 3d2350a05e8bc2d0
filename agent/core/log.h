/* SPDX-License-Identifier: BSD-2-Clause */
/* The agent's log and clock. */
#ifndef LIEN_LOG_H
#define LIEN_LOG_H

#include <stdint.h>

/*
 * Writes a line to stderr: "lien agent: 2026-11-24 02:28:04 warning: ...". If stderr is the
 * journal's (JOURNAL_STREAM), which has a time and a level of its own: "<4>...". Levels are
 * syslog's.
 */
void lien_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct lien_log_size {
	char text[24];
};

/* "512.0 MiB", "2.5 GiB"; for use as an argument: lien_log_size(n).text */
struct lien_log_size lien_log_size(uint64_t bytes);

/* CLOCK_MONOTONIC. Fuzzers supply their own clock. */
uint64_t lien_now_ns(void);

#endif
