/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files of this folder. Nobody else includes this. */
#ifndef LIEN_PROBES_INTERNAL_H
#define LIEN_PROBES_INTERNAL_H

#include <bpf/libbpf.h>

#include "loader/probes/calls.h"
#include "loader/probes/gate_places.h"
#include "loader/probes/images.h"
#include "loader/probes/pins.h"
#include "loader/probes/probes.h"
#include "trace.skel.h"

#define LIEN_CONTEXT_CALLS 3

/* A process whose contexts are followed. */
struct lien_following {
	uint32_t pid;
	unsigned number; /* like an attachment's */
	int link;	 /* -1: being made */
	struct lien_making *making;
	uint64_t start, since;
};

/* Five libraries, some of them twice. */
#define LIEN_GATE_FILES 12

struct lien_gate_links;

struct lien_gate_file {
	struct lien_gate_links *links;
	bool all;
	/* The contents, as in loader/probes/gate_places.c. */
	off_t size;
	struct timespec changed;
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

/* Links that were made together: those of a file, or (file.library 0) the tracepoints. */
struct lien_attached {
	struct lien_probed_file file;
	unsigned number; /* appears in the cookies of its probes and the names of its pins */
	unsigned pins;	 /* number of its links that are pinned */
	uint64_t probes; /* hash of the probes and their places */
	int multi[2];	 /* link fds: returns, entries */
	struct lien_making *making;
	int err; /* result, until somebody asks; kept only for a short time after t_failed */
	uint64_t t_failed;
	bool old;	/* from an earlier build than the one that wrote the state file */
	dev_t *aliases; /* other overlays that show the file, with the same inode number */
	unsigned aliases_count;
	unsigned quick; /* number of calls, at the front, that are probed at entry only */
	/* The calls with LIEN_CALL_CONTEXT, if they are probed in single processes. */
	bool contexts_known;
	struct lien_call_place contexts[LIEN_CONTEXT_CALLS];
	unsigned contexts_count;
	struct bpf_link *links[2 * LIEN_CALL_PLACES_MAX];
	unsigned links_count;
};

struct lien_attached_list {
	struct lien_attached **items;
	unsigned count;
};

struct lien_probes {
	struct trace_bpf *skel;
	struct ring_buffer *ring;
	const uint64_t *consumed, *produced; /* the ring's positions, mapped */
	struct lien_probes_config config;
	bool multi, can_follow;
	struct bpf_link *images_reader, *files_reader, *unheld_reader; /* iterators */
	struct lien_images images;				       /* as last read */
	struct lien_following *following;
	unsigned following_count;
	const char *gate_lacks; /* NULL: nothing */
	struct lien_gate *gates;
	unsigned gates_count;
	uint32_t next_gate;
	struct lien_gate_places_kept gate_places;
	struct lien_gate_links **gate_links;
	unsigned gate_links_count;
	struct lien_attached_list files, attaching;
	struct lien_attached *system; /* the tracepoints */
	unsigned next_attachment;
	struct lien_skipped skipped;

	/* keep.c: state that outlives the agent. */
	struct lien_pins *pins; /* NULL: nothing does */
	bool resumed, taken_over;
	struct lien_attached_list old; /* from another build: to be replaced */
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
/* Finds the places of its calls with LIEN_CALL_CONTEXT; fd: the file. Returns 0, -ENODATA: it has
 * none; -errno. */
int lien_attached_contexts(struct lien_attached *attached, int fd);

/*
 * Called between opening and loading the programs. Decides whether to continue with the pins, and
 * if so, makes the programs use the pinned maps. A negative value: it began to and cannot.
 */
int lien_keep_begin(struct lien_probes *probes);
/* After loading: pins new maps. */
void lien_keep_maps(struct lien_probes *probes);
/* Pins the links of a new attachment; fds are in the order of their making. */
void lien_keep_links(struct lien_probes *probes, struct lien_attached *attached);
/* Removes the pins; fds: attached->pins of them, for the caller to close, negative where there is
 * none. */
void lien_keep_drop(struct lien_probes *probes, struct lien_attached *attached, int *fds);
void lien_keep_following(struct lien_probes *probes, const struct lien_following *following);
/* Called after loading: takes over the gates that an earlier agent has made, and their links. */
void lien_keep_take_gates(struct lien_probes *probes);
/* Returns the gate of a process, and makes it if necessary. NULL: out of memory. */
struct lien_gate *lien_gate_add(struct lien_probes *probes, uint32_t pid);
void lien_keep_unfollow(struct lien_probes *probes, const struct lien_following *following);
/* Notes for lien_probes_problem() that something could not be pinned. */
void lien_keep_problem(struct lien_probes *probes, const char *what, int err);
/* Writes the list of attachments to the state file. */
void lien_keep_save(struct lien_probes *probes);

#endif
