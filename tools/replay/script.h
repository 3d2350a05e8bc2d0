/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Turns a recording into a script for each process.
 *
 * A process's script has its successful calls, except the control library's, in record order: the
 * order of return. Only a release may come earlier, before the call to which the driver gave its
 * name again (event.h, "Order"). A script is consistent: no op uses a name that its process does
 * not have at that point, so a driver error in a replay is a real error. Calls for which the
 * recording lacks data are left out and counted.
 */
#ifndef LIEN_REPLAY_SCRIPT_H
#define LIEN_REPLAY_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

#include "tools/replay/op.h"
#include "tools/replay/share.h"

/* A replay starts a process for each recorded one. */
#define LIEN_REPLAY_PROCESSES_MAX 256
#define LIEN_REPLAY_OPS_MAX	  (4u << 20)

/* Reasons to leave calls out. */
enum lien_replay_skip {
	LIEN_SKIP_IMPORT,    /* an import whose export is not in the recording */
	LIEN_SKIP_DEPENDENT, /* a call on the result of such an import, or of a skipped call */
	LIEN_SKIP_UNKNOWN,   /* a name or address from before the recording */
	LIEN_SKIP_PARTIAL,   /* its arguments could not be read */
	LIEN_SKIP_TYPE,	     /* a kind of shareable handle that cannot be replayed */
	LIEN_SKIP_COUNT,
};

struct lien_replay_process {
	uint32_t pid;
	uint64_t start;
	char comm[16];
	bool ended; /* exited or became another program during the recording */
	bool used;  /* made at least one successful driver call */
	bool nccl;  /* libnccl issues some op */
	bool has_home;
	int home;	  /* recorded device of cuMemAlloc and copies */
	uint64_t devices; /* devices on which it owns memory: bit 1 << ordinal */
	struct lien_replay_op *ops;
	size_t count, room;
};

struct lien_replay_builds;
struct lien_graph;

struct lien_script {
	struct lien_replay_process **processes;
	size_t process_count;
	struct lien_replay_allocation *allocations;
	size_t allocation_count, allocation_room;
	struct lien_replay_share_tree shares;
	struct lien_replay_builds *builds; /* during construction */
	struct lien_graph *graph;	   /* the snapshot, and processes' libraries */
	bool snapshot;			   /* its records come in */

	/* Statistics of the recording. */
	uint64_t records;
	uint64_t lost;	   /* events that the recorder lost */
	uint64_t control;  /* records of the control library's own calls */
	uint64_t failed;   /* calls that failed when recorded */
	uint64_t inferred; /* releases known only because their name was reused */
	uint64_t skipped[LIEN_SKIP_COUNT];
	int last_device; /* highest device ordinal used, -1: none */
};

/*
 * Reads and checks the recording at path. Errors are those of recording.h, -ENOMEM, and -E2BIG for
 * more than the limits above; *record is then the number (from 1) of the record that could not be
 * used. -ENODATA (truncated) still returns a script of what there was.
 */
int lien_script_load(const char *path, struct lien_script **out, uint64_t *record);

/* Builds a script record by record: new, add each (must be valid), finish. */
int lien_script_new(struct lien_script **out);
int lien_script_add(struct lien_script *script, const struct lien_event *ev);
void lien_script_finish(struct lien_script *script);

void lien_script_free(struct lien_script *script);

#endif
