/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The links that put a process's gate on the files of its libraries. Where the kernel can bind them
 * to a process (6.10), each gate has its own, unless it may share (struct lien_gate).
 * Elsewhere all gates share them, other processes that map the file pay a trap for each gated call,
 * and bpf/gate.h lets those pass. There the links are one of each program (uprobe-multi, 6.6), or
 * one for each place (perf).
 *
 * Links that are made for NCCL's memory alone stay for LIEN_GATE_LINKS_KEPT_S after the last gate
 * has gone, or until the process ends: the kernel takes some 20 ms to make them, for which the next
 * offload would wait, and they cost the job a microsecond for each call of NCCL. The others, at all
 * calls of the driver, go with the gate. The kernel takes minutes to remove those with one for each
 * place: they all stay that long, are then removed a few at a time, and a gate that needs them
 * meanwhile takes the rest back.
 *
 * The links outlive the agent, because memory may be away. The names of their pins say all that the
 * next agent needs to know.
 */
#ifndef LIEN_GATE_LINKS_H
#define LIEN_GATE_LINKS_H

#include "loader/discover/file_state.h"
#include "loader/probes/gate.h"
#include "loader/probes/probes_internal.h"

#define LIEN_GATE_LINKS_KEPT_S 60

struct lien_gate_links {
	TAILQ_ENTRY(lien_gate_links) next;
	dev_t device; /* of the file that lien_attached_find() names */
	ino_t inode;
	uint64_t places; /* hash of the places and their cookies */
	uint32_t pid;	 /* the process that they are bound to; 0: they see all */
	uint64_t start;	 /* its, as in struct lien_gate; 0: an earlier agent made them */
	uint32_t build;	 /* a hash of the agent's that made them and its way of attaching */
	bool each;	 /* a link for each place; false: two in all */
	bool kept;	 /* for a while when no gate needs them any more */
	unsigned number; /* like an attachment's */
	unsigned users;	 /* number of gates */
	unsigned count;	 /* of all links: first those at returns, then those at entries */
	unsigned left;	 /* of the links that exist, from the first */
	int *fds;	 /* count of them; -1: there is none, or `each`, and its pin keeps the link:
			  * thousands, if a user has many copies of a library */
	struct lien_making *making;
	/* Why they cannot be made. The kernel takes minutes to remove those that were, so there is
	 * no other attempt until these are forgotten. */
	int failed;
	uint64_t t_unused; /* since when there are no users */
	uint64_t t_next;   /* when the next few may be removed */
};

/* Five libraries, some of them twice. */
#define LIEN_GATE_FILES 12

struct lien_gate_file {
	struct lien_gate_links *links;
	bool all;
	struct lien_file_state state;
};

/* A process that has a gate. */
struct lien_gate {
	struct lien_probes *probes;
	uint32_t pid;
	uint64_t start; /* of the process; 0: `inherited` */
	struct lien_gate_file files[LIEN_GATE_FILES];
	unsigned files_count;
	bool inherited; /* an earlier agent made it */
	bool shared;	/* its links may be for all processes */
};

/*
 * Puts the gate on a file, once for the same contents. A file that has been rewritten in place has
 * its calls at other places, so it gets links once more; those before stay, because the process may
 * still run what was there. fd: the file; `all`: at calls that work on any memory; `wait`: for the
 * kernel, for a while (lien_making_allow()). Returns 0; -EINPROGRESS: call again; -errno.
 */
int lien_gate_file_add(struct lien_probes *probes, struct lien_gate *gate, int fd,
	const struct stat *st, enum lien_library library, bool all, bool wait);
/* Gives back all links of the gate. */
void lien_gate_files_put(struct lien_probes *probes, struct lien_gate *gate);

/* Removes the links without users that are bound to the process, and those being made for it, but
 * not those that are kept unless the process `ends`; `last`: and those for all gates, because there
 * is no other. */
void lien_gate_links_end(struct lien_probes *probes, uint32_t pid, bool ends, bool last);
/* After loading: takes over the links that an earlier agent has made. */
void lien_gate_links_take(struct lien_probes *probes);
/* Closes the fds of all links; those that are not pinned go. */
void lien_gate_links_free(struct lien_probes *probes);

#endif
