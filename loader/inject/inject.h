/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Puts the control library into a live process that was started without it. Stops, for about a
 * millisecond, a thread of the process that waits in a system call, and makes it call the process's
 * own pthread_create(). The new, ordinary thread opens the library from a memfd, cleans up, and
 * ends. docs/internals/joining.md, "Injection", says why this is safe.
 *
 * Supports x86-64 processes with glibc 2.31 or newer that have mapped libcuda.so.1.
 */
#ifndef LIEN_INJECT_H
#define LIEN_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_inject_result {
	bool present;	   /* the library was already there */
	uint32_t thread;   /* the thread made to start the new one, by its id here; 0: none */
	uint32_t attempts; /* threads stopped, most of them for some us and without result */
	uint64_t pause_ns; /* how long that thread's own work was interrupted */
	uint64_t total_ns; /* duration of the whole call */
};

/*
 * Returns 0: the library is in process `pid`, its handler is installed and its thread runs; a
 * library that has ended there (LIEN_WIRE_END) or has no thread yet is started. Otherwise returns
 * -errno, with one line in `why` that names the process, the cause and the remedy, and leaves
 * nothing in the process. Exception: -ETIMEDOUT while the loader is busy; the library may still
 * load, as `why` says, and another call checks whether it did.
 *
 * -ESRCH the process has ended; -EPERM not allowed, or confined by seccomp; -EBUSY traced, stopped,
 * or being injected into; -ENOEXEC 32-bit, no glibc, or too old; -ENODEV no CUDA process; -ENOENT
 * no /proc in its container; -EAGAIN no room for another thread or file; -ETIMEDOUT; -EPROTO
 * another version of the library.
 *
 * `pidfd`: of that process, which excludes a later process with the same pid. library_fd is open
 * for reading at any position. The caller keeps both. Takes limit_ms at most, plus some ms for
 * cleanup; about 5 ms for a process that has an idle thread. Blocks: an agent calls it in a thread
 * or child of its own. Any thread may call it, for different processes at the same time. The caller
 * may be killed at any moment: the process continues undisturbed, with 68 KiB of mappings left
 * behind at worst. Starts a thread, and waits for that alone: a caller that waits for any child
 * (waitpid(-1)) with __WALL would steal its status.
 */
int lien_inject(uint32_t pid, int pidfd, int library_fd, unsigned limit_ms,
	struct lien_inject_result *result, char *why, size_t size);

#endif
