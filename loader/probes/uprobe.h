/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Links that put a program on places of a file, and what the running kernel can do with them. With
 * uprobe-multi (6.6), one link is on many places. Without, there is one link for each (5.15), which
 * sees every process: making one takes the kernel some 50 us, removing one 100 ms and more, because
 * it waits for all that runs in probes and tracepoints, one link at a time.
 */
#ifndef LIEN_UPROBE_H
#define LIEN_UPROBE_H

#include <stdbool.h>
#include <stdint.h>

/* enum bpf_attach_type: BPF_TRACE_UPROBE_MULTI */
#define LIEN_UPROBE_MULTI_TYPE 48

bool lien_uprobe_multi_supported(void);
/* Can a uprobe-multi link be bound to a process? Before 6.10 (and stable releases of that time)
 * such a link saw only one thread. */
bool lien_uprobe_multi_of_process_supported(void);
/* Returns why this kernel cannot hold threads back, or NULL if it can. `multi`: probes are attached
 * by uprobe-multi. */
const char *lien_uprobe_gate_lacks(bool multi);
/* May this process attach probes? `offset`: a place of code in /proc/self/exe that has run. */
bool lien_uprobe_permitted(bool multi, uint64_t offset);

/* Both return the link's fd, or -errno. Many probes are put in in the order given; pid 0: every
 * process gets them. */
int lien_uprobe_multi_attach(int program_fd, const char *path, const uint64_t *offsets,
	const uint64_t *cookies, unsigned count, bool at_return, uint32_t pid);
int lien_uprobe_single_attach(
	int program_fd, const char *path, uint64_t offset, uint64_t cookie, bool at_return);

/*
 * Closes links of probes so that a kernel thread takes the probes off, not the caller.
 *
 * The kernel makes whoever closes the last reference wait until calls in progress are over, 10 ms
 * and more. And a process that is killed while it takes probes off (or puts them on) leaves the
 * rest in memory: "uprobe: ... failed to unregister, leaking uprobe" in the kernel's log (6.18: the
 * kernel gives up at a fatal signal). The kernel finds such a probe by the address of the file's
 * inode, without keeping the inode. If that address becomes another file's, and a probe is put at
 * the same offset there, processes execute the instruction of the first file, and crash. No signal
 * reaches a kernel thread. Thread-safe.
 */

/* Mounts, for this process alone, the BPF file system that lien_uprobe_close() needs. Without the
 * right to do so, lien_uprobe_close() is close(). */
void lien_uprobe_close_prepare(void);
/* Closes a link. If nobody else has it, its probes are taken off a little later. */
void lien_uprobe_close(int fd);
/* For the child of a fork(): gives up its references to all links. Otherwise a link that the parent
 * closes would only go when the child ends. */
void lien_uprobe_close_inherited(void);

#endif
