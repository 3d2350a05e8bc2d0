/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared by the files of this folder. Nobody else includes this. */
#ifndef LIEN_PROBES_INTERNAL_H
#define LIEN_PROBES_INTERNAL_H

#include <bpf/libbpf.h>
#include <bsd/sys/queue.h>

#include "loader/probes/calls.h"
#include "loader/probes/probes.h"
#include "trace.skel.h"

#define LIEN_CONTEXT_CALLS 3

/* A process whose contexts are followed. */
struct lien_following {
	uint32_t pid;
	struct lien_attached *links; /* one; in none of the lists */
	uint64_t start, since;
};

struct lien_gate;
struct lien_gate_links;
struct lien_gate_places;
#define LIEN_GATE_PLACES_KEPT 8

/* Links that were made together: those of a file, or (file.library 0) the tracepoints. */
struct lien_attached {
	TAILQ_ENTRY(lien_attached) next;
	struct lien_probed_file file;
	unsigned number; /* appears in the cookies of its probes and the names of its pins */
	unsigned pins;	 /* number of its links that are pinned */
	uint64_t probes; /* hash of the probes and their places */
	int *links;	 /* fds, in the order of their making; of an earlier agent's: none */
	unsigned links_count;
	struct lien_making *making;
	int err; /* result, until somebody asks; kept only for a short time after t_failed */
	uint64_t t_failed;
	bool old;	/* from an earlier build than the one that wrote the state file */
	dev_t *aliases; /* other overlays that show the file, with the same inode number */
	unsigned aliases_count;
	unsigned quick; /* number of calls, at the front, that are probed at entry only */
	/* The calls with LIEN_CALL_CONTEXT, if they are probed in single processes. */
	bool contexts_known; /* follow.c looks for them once: new processes are followed for a while
			      */
	struct lien_call_place contexts[LIEN_CONTEXT_CALLS];
	unsigned contexts_count;
};

#define MAP(probes, name) bpf_map__fd((probes)->skel->maps.name)

TAILQ_HEAD(lien_attached_list, lien_attached);

struct lien_probes {
	struct lien_probes_facts facts;
	struct trace_bpf *skel;
	struct ring_buffer *ring;
	const uint64_t *consumed, *produced; /* the ring's positions, mapped */
	struct lien_probes_config config;
	/* The program that each process runs, as counted by the kernel (LIEN_START() of
	 * include/lien/probe.h), and its account; sorted by pid. As last read. */
	struct lien_probe_image *images;
	unsigned images_count;
	struct lien_following *following;
	unsigned following_count;
	struct lien_gate *gates;
	uint32_t next_gate;
	struct lien_gate_places *gate_places[LIEN_GATE_PLACES_KEPT]; /* the last asked for first */
	TAILQ_HEAD(, lien_gate_links) gate_links;
	struct lien_attached_list files, attaching;
	struct lien_attached *system; /* the tracepoints */
	unsigned next_attachment;

	/* keep.c: state that outlives the agent. */
	struct lien_pins *pins; /* NULL: nothing does */
	bool taken_over;
	struct lien_attached_list old; /* from another build: to be replaced */
	char build[96];
	uint64_t layout, journal;
};

/* attached.c */
struct lien_attached *lien_attached_new(const char *name);
/* Makes room for so many links, which are -1 until they are made. -ENOMEM. */
int lien_attached_room(struct lien_attached *attached, unsigned count);
/* Closes its links. */
void lien_attached_close(struct lien_attached *attached);
/* Also closes its links. */
void lien_attached_free(struct lien_attached *attached);
void lien_attached_clear(struct lien_attached_list *list);
struct lien_attached *lien_attached_find(
	const struct lien_probes *probes, dev_t device, ino_t inode);

/* What an earlier agent has written of itself and its attachments. */
struct lien_attached_state {
	char build[96];
	uint64_t layout, journal;
	bool other_boot, other_pidns; /* than now */
	unsigned next_attachment;
	struct lien_attached_list list;
};

/* Returns 0, -ENOENT, or -EBADMSG. The caller owns the list. */
int lien_attached_read(const char *path, struct lien_attached_state *state);
/* Replaces the file atomically. Returns 0 or -errno. */
int lien_attached_write(const char *path, const struct lien_probes *probes);

/* gate.c. Called after loading: takes over the gates that an earlier agent has made, and their
 * links. */
void lien_gate_take(struct lien_probes *probes);

/*
 * keep.c. Pins are names of maps and links in a folder of a BPF file system that only root may
 * enter: /sys/fs/bpf/lien/NAME, with a NAME made from the socket's path and its file system.
 */
struct lien_pins;
/* Unlocks the folder; the pins stay. pins may be NULL. */
void lien_pins_close(struct lien_pins *pins);
/* Returns an fd of the map or link, which the caller closes; -ENOENT. */
int lien_pins_get(const struct lien_pins *pins, const char *name);
bool lien_pins_has(const struct lien_pins *pins, const char *name);
/* Removes the name. A link that nobody else has open is detached a little later, by a kernel thread
 * (loader/probes/uprobe.h). pins may be NULL. */
void lien_pins_drop(struct lien_pins *pins, const char *name);
/* Calls fn, which may drop that name, for each name. */
void lien_pins_each(
	struct lien_pins *pins, void (*fn)(void *context, const char *name), void *context);

/*
 * Called between opening and loading the programs. Decides whether to continue with the
 * pins, and if so, makes the programs use the pinned maps. A negative value: it began to and
 * cannot.
 */
int lien_keep_begin(struct lien_probes *probes);
/* After loading: pins new maps. */
void lien_keep_maps(struct lien_probes *probes);
/* Pins the links of a new attachment. */
void lien_keep_links(struct lien_probes *probes, struct lien_attached *attached);
/* Pins a link. Returns false if it is not pinned. */
bool lien_keep_link(struct lien_probes *probes, const char *name, int fd, const char *what);
/* Removes its links and their pins, and frees it. */
void lien_keep_remove(struct lien_probes *probes, struct lien_attached *attached);
/* Writes the list of attachments to the state file. */
void lien_keep_save(struct lien_probes *probes);

#endif
