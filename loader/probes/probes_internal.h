/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the probes' own files. Nobody else includes this. */
#ifndef LIEN_PROBES_INTERNAL_H
#define LIEN_PROBES_INTERNAL_H

#include <bpf/libbpf.h>

#include "loader/probes/calls.h"
#include "loader/probes/images.h"
#include "loader/probes/pins.h"
#include "loader/probes/probes.h"
#include "trace.skel.h"

#define LIEN_CONTEXT_CALLS 3

/* A process whose contexts are followed. */
struct lien_following {
	uint32_t pid;
	unsigned number; /* as an attachment's */
	int link;	 /* -1: it is being made */
	struct lien_making *making;
	uint64_t start, since;
};

/* Three libraries, and two of some of them. */
#define LIEN_GATE_FILES 8

struct lien_gate_file {
	dev_t device;
	ino_t inode;
	bool all;
	unsigned number; /* as an attachment's */
	int link[2];	 /* returns, entries */
};

/* A process that is held back, or may be. */
struct lien_gate {
	struct lien_probes *probes;
	uint32_t pid;
	struct lien_gate_file files[LIEN_GATE_FILES];
	unsigned files_count;
	struct lien_gate_file next; /* while it is being made */
	struct lien_making *making;
};

/* Links that were made together: those of a file, or (file.library 0) the tracepoints. */
struct lien_attached {
	struct lien_probed_file file;
	unsigned number; /* in the cookies of its probes, and the names of its pins */
	unsigned pins;	 /* how many of its links are pinned */
	uint64_t probes; /* a hash of what is probed, and where */
	int multi[2];	 /* link fds: returns, entries */
	struct lien_making *making;
	int err; /* of the making, until somebody asks: not for long after t_failed */
	uint64_t t_failed;
	bool old;	/* of a build before the one that wrote the state file */
	dev_t *aliases; /* other overlays that show the file, under the same inode number */
	unsigned aliases_count;
	unsigned quick; /* calls, the first ones, that are seen entering only */
	/* Calls with LIEN_CALL_CONTEXT, if they are probed in single processes. */
	bool contexts_known;
	struct lien_call_place contexts[LIEN_CONTEXT_CALLS];
	unsigned contexts_count;
	struct bpf_link *links[2 * LIEN_CALL_MAX];
	unsigned links_count;
};

struct lien_attached_list {
	struct lien_attached **items;
	unsigned count;
};

struct lien_probes {
	struct trace_bpf *skel;
	struct ring_buffer *ring;
	const uint64_t *consumed, *produced; /* its positions, mapped */
	struct lien_probes_config config;
	bool multi, can_follow;
	struct lien_iterator images_reader, files_reader;
	struct lien_images images; /* when they were read last */
	struct lien_following *following;
	unsigned following_count;
	struct lien_gate *gates;
	unsigned gates_count;
	uint32_t next_gate;
	struct lien_attached_list files, attaching;
	struct lien_attached *system; /* the tracepoints */
	unsigned next_attachment;
	struct lien_skipped skipped;

	/* keep.c: what outlives the agent. */
	struct lien_pins *pins; /* NULL: nothing does */
	bool resumed, settled;
	struct lien_attached_list old; /* of another build: to be replaced */
	char build[96];
	uint64_t layout, journal;
	char problem[256];
};

struct lien_attached *lien_attached_new(const char *name);
void lien_attached_free(struct lien_attached *attached);
int lien_attached_add(struct lien_attached_list *list, struct lien_attached *attached);
void lien_attached_clear(struct lien_attached_list *list);
struct lien_attached *lien_attached_find(
	const struct lien_probes *probes, dev_t device, ino_t inode);
/* Where its calls with LIEN_CALL_CONTEXT are; fd: the file. 0, -ENODATA: nowhere; -errno. */
int lien_attached_contexts(struct lien_attached *attached, int fd);

/*
 * Between opening and loading the programs: decides whether to go on with what is pinned, and if
 * so, makes the programs use the pinned maps. A negative value: it began to and cannot.
 */
int lien_keep_begin(struct lien_probes *probes);
/* After loading: pins new maps. */
void lien_keep_maps(struct lien_probes *probes);
/* Pins the links of what was just attached; fds in the order of their making. */
void lien_keep_links(struct lien_probes *probes, struct lien_attached *attached);
/* Removes the pins; fds: attached->pins of them, the caller's to close, negative where there is
 * none. */
void lien_keep_drop(struct lien_probes *probes, struct lien_attached *attached, int *fds);
void lien_keep_following(struct lien_probes *probes, const struct lien_following *following);
void lien_keep_gate(struct lien_probes *probes, const struct lien_gate *gate,
	const struct lien_gate_file *file);
/* After loading: the gates of processes from which an earlier agent has moved memory. */
void lien_keep_take_gates(struct lien_probes *probes);
void lien_keep_ungate(struct lien_probes *probes, const struct lien_gate *gate);
/* The gate of a process, made if there is none. NULL: out of memory. */
struct lien_gate *lien_gate_add(struct lien_probes *probes, uint32_t pid);
void lien_keep_unfollow(struct lien_probes *probes, const struct lien_following *following);
/* Writes down what is attached. */
void lien_keep_save(struct lien_probes *probes);

#endif
