/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The code of a file as processes have it in memory. Some rewrite the first bytes of the driver's
 * functions in their own copy of the page: UCX's memory hooks, profilers, debuggers. There the
 * kernel would put its breakpoint on the first byte of what they wrote, run the file's instruction
 * in place of theirs, and leave the file's byte behind when the probe goes: the process crashes.
 */
#ifndef LIEN_CODE_H
#define LIEN_CODE_H

#include <stdint.h>

/*
 * Does a process that maps the file for execution have other code than the file at one of these
 * offsets into it? Breakpoints do not count. pid: asks only about that process; 0: about all but
 * the caller. Returns 0; -ETXTBSY: one has; -EAGAIN: the code of one cannot be read now; -errno.
 * Processes whose mappings cannot be read in time are passed over: any user can make such.
 * Thread-safe.
 */
int lien_code_check(int fd, const uint64_t *offsets, unsigned count, uint32_t pid);

#endif
