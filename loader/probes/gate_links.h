/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The links that put the gate on a library's file. Where the kernel can bind them to a process
 * (6.10), each gate has its own, unless it may share (struct lien_gate).
 * Elsewhere all gates share them, other processes that map the file pay a trap for each gated call,
 * and bpf/gate.h lets those pass. There the links are one of each program (uprobe-multi, 6.6), or
 * one for each place (perf).
 *
 * Links that are made for NCCL's memory alone stay for LIEN_GATE_LINKS_KEPT_S after the last gate
 * has gone, or until the process ends: the kernel takes some 20 ms to make them, for which the next
 * offload would wait, and they cost the job a microsecond for each call of NCCL. The others, at all
 * calls of the driver, go with the gate. The kernel takes minutes to remove those with one for each
 * place: they all stay that long, are then removed in the background, and a gate that needs them
 * meanwhile takes the rest back.
 */
#ifndef LIEN_GATE_LINKS_H
#define LIEN_GATE_LINKS_H

#include "loader/probes/probes_internal.h"

#define LIEN_GATE_LINKS_KEPT_S 60

struct lien_gate_links {
	dev_t device; /* of the file that lien_attached_find() names */
	ino_t inode;
	uint64_t places; /* hash of the places and their cookies */
	uint32_t pid;	 /* the process that they are bound to; 0: they see all */
	uint64_t start;	 /* its, as in struct lien_gate; 0: an earlier agent made them */
	uint32_t build;	 /* lien_keep_gate_build() of the agent that made them */
	bool each;	 /* a link for each place; false: two in all */
	bool kept;	 /* for a while when no gate needs them any more */
	unsigned number; /* like an attachment's */
	unsigned users;	 /* number of gates */
	unsigned count;	 /* of all links: first those at returns, then those at entries */
	unsigned left;	 /* of the links that exist, from the first; protected by a lock if
			  * `removing` */
	int *fds; /* count of them; -1: there is none, or `each`, and its pin keeps the link */
	struct lien_making *making;
	/* Why they cannot be made. The kernel takes minutes to remove those that were, so there is
	 * no other attempt until these are forgotten. */
	int failed;
	uint64_t t_unused;   /* since when there are no users */
	bool removing, stop; /* protected by a lock: a thread removes them, from the last; asked to
			      * stop */
};

/*
 * Gets a reference to complete links for a file. fd: the file. `wait`: for the kernel, for a while
 * (lien_making_allow()). Returns 0; 1: there is nothing to hold in it; -EINPROGRESS: call again;
 * -errno.
 */
int lien_gate_links_get(struct lien_probes *probes, const struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait,
	struct lien_gate_links **links);
/* Returns false if some that have been begun for the process, or for all, are not made yet; waits
 * for a while. */
bool lien_gate_links_ready(const struct lien_probes *probes, uint32_t pid);
/* Gives a reference back. */
void lien_gate_links_put(struct lien_probes *probes, struct lien_gate_links *links);
/* Removes the links without users that are bound to the process, and those being made for it, but
 * not those that are kept unless the process `ends`; `last`: and those for all gates, because there
 * is no other. */
void lien_gate_links_end(struct lien_probes *probes, uint32_t pid, bool ends, bool last);
/* Removes links that nobody has used for long. */
void lien_gate_links_tick(struct lien_probes *probes);
/* Waits for threads that remove links: at most for one link each. What is left stays attached. */
void lien_gate_links_stop(struct lien_probes *probes);
/* Closes the fds of all links; those that are not pinned go. */
void lien_gate_links_free(struct lien_probes *probes);

/* Is it the same file, for lien_gate_links.device? */
dev_t lien_gate_links_device(const struct lien_probes *probes, const struct stat *st);
/* Returns new links without fds, which the probes own; NULL: out of memory. */
struct lien_gate_links *lien_gate_links_add(struct lien_probes *probes, unsigned count);
/* Frees links whose fds are closed or given away. */
void lien_gate_links_forget(struct lien_probes *probes, struct lien_gate_links *links);

/* keep_gate.c: pins those that are new, from the index on, and closes the fds of pinned ones if
 * there is one for each place: thousands, if a user has many copies of a library. */
void lien_keep_gate_links(struct lien_probes *probes, struct lien_gate_links *links, unsigned from);
/* Removes the pin of one, and returns its fd, which the caller closes; -1: it does not exist. */
int lien_keep_gate_link_take(
	struct lien_probes *probes, struct lien_gate_links *links, unsigned index);
/* A hash of this build and its way of attaching, for lien_gate_links.build. */
uint32_t lien_keep_gate_build(const struct lien_probes *probes);

#endif
