/* SPDX-License-Identifier: BSD-2-Clause */
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
#ifndef LIEN_UPROBE_CLOSE_H
#define LIEN_UPROBE_CLOSE_H

/* Mounts, for this process alone, the BPF file system that lien_uprobe_close() needs. Without the
 * right to do so, lien_uprobe_close() is close(). */
void lien_uprobe_close_prepare(void);
/* Closes a link. If nobody else has it, its probes are taken off a little later. */
void lien_uprobe_close(int fd);
/* For the child of a fork(): gives up its references to all links. Otherwise a link that the parent
 * closes would only go when the child ends. */
void lien_uprobe_close_inherited(void);

#endif
