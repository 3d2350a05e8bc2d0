/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Puts the control library into a live process that was started without it. A thread of the process
 * that waits in a system call is stopped for about a millisecond and made to call the
 * process's own pthread_create(); the new thread, one like any other, opens the library from a
 * memfd, ends, and takes with it what was needed for that. docs/internals/joining.md, "Injection",
 * says why this is safe.
 *
 * x86-64 processes with glibc 2.31 or newer that have mapped libcuda.so.1.
 */
#ifndef LIEN_INJECT_H
#define LIEN_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_inject_result {
	bool present;	   /* the library was there already: nothing was done */
	uint32_t thread;   /* that was made to start the new one, by its id here; 0: none */
	uint32_t attempts; /* threads that were stopped, most of them for some us and to no end */
	uint64_t pause_ns; /* how long that thread did not go on with its own work */
	uint64_t total_ns; /* of the whole call */
};

/*
 * 0: the library is in process `pid` and its handler is installed; one that is at its end there
 * (LIEN_WIRE_END) is begun again. Else -errno, with one line in
 * `why` that names the process, the cause and the remedy; nothing is left in the process then,
 * but for -ETIMEDOUT while the loader is busy: the library may come still, `why` says so, and
 * another call sees whether it did.
 *
 * -ESRCH the process has ended; -EPERM not allowed, or confined by seccomp; -EBUSY traced, stopped,
 * or being injected into; -ENOEXEC 32-bit, no glibc, or too old; -ENODEV no CUDA process; -ENOENT
 * no /proc in its container; -EAGAIN no room for another thread or file; -ETIMEDOUT; -EPROTO
 * another version of the library.
 *
 * `pidfd`: of that process, so that no other one is meant that has got its number since; -1:
 * whoever has it now. library_fd is open for reading at any position. Both stay the caller's. Takes
 * limit_ms at most, and some ms for clearing up; about 5 ms of a process that has an idle thread.
 * Blocks: an agent calls it in a thread or child of its own. Any thread may, for different
 * processes at the same time. The caller may be killed at any moment: the process goes on as if
 * nothing had been, with 68 KiB of mappings left behind at worst. Starts a thread, and waits for
 * that alone: a caller that waits for any child (waitpid(-1)) with __WALL would take its news away.
 */
int lien_inject(uint32_t pid, int pidfd, int library_fd, unsigned limit_ms,
	struct lien_inject_result *result, char *why, size_t size);

#endif
