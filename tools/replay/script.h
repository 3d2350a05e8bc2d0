/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * From a recording to what each process has to do.
 *
 * A process's script has its successful calls, those of the control library left out, in record
 * order: that is the order of return. Only a release may come earlier, before the call to which the
 * driver gave its name again (event.h, "Order"). A script is consistent: no op uses a name that its
 * process does not hold at that point, so a driver error in a replay is an error. Calls for which
 * the recording lacks something are left out and counted.
 */
#ifndef LIEN_REPLAY_SCRIPT_H
#define LIEN_REPLAY_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

#include <tools/replay/op.h>
#include <tools/replay/share.h>

/* A replay starts a process for each recorded one. */
#define LIEN_REPLAY_PROCESSES_MAX 256
#define LIEN_REPLAY_OPS_MAX	  (4u << 20)

/* Why calls were left out. */
enum lien_replay_skip {
	LIEN_SKIP_IMPORT,    /* an import of which the recording has no export */
	LIEN_SKIP_DEPENDENT, /* a call on what such an import, or a skipped call, would have given
			      */
	LIEN_SKIP_UNKNOWN,   /* a name or address that the process got before the recording began */
	LIEN_SKIP_PARTIAL,   /* its arguments could not be read */
	LIEN_SKIP_TYPE,	     /* a kind of shareable handle that cannot be replayed */
	LIEN_SKIP_COUNT,
};

struct lien_replay_process {
	uint32_t pid;
	uint64_t start;
	char comm[16];
	bool ended; /* exited or became another program within the recording */
	bool used;  /* called the driver with success at least once */
	bool nccl;  /* some op is to be issued from libnccl */
	bool has_home;
	int home;	  /* device that cuMemAlloc and copies use, as recorded */
	uint64_t devices; /* on which it has memory of its own: bit 1 << ordinal */
	struct lien_replay_op *ops;
	size_t count, room;
};

struct lien_replay_builds;

struct lien_script {
	struct lien_replay_process **processes;
	size_t process_count;
	struct lien_replay_allocation *allocations;
	size_t allocation_count, allocation_room;
	struct lien_replay_share_tree shares;
	struct lien_replay_builds *builds; /* while being built */

	/* About the recording. */
	uint64_t records;
	uint64_t lost;	   /* events that the recorder lost */
	uint64_t control;  /* records of the control library's own calls */
	uint64_t failed;   /* calls that failed then */
	uint64_t inferred; /* releases of which only the name's return shows that they happened */
	uint64_t skipped[LIEN_SKIP_COUNT];
	int last_device; /* highest device ordinal named, -1: none */
};

/*
 * Reads and checks all of the recording at path. Errors are those of recording.h, -ENOMEM, and
 * -E2BIG for more than the limits above; *record is then the number (from 1) of the record that
 * could not be used. -ENODATA (cut short) comes with a script of what there was.
 */
int lien_script_load(const char *path, struct lien_script **out, uint64_t *record);

/* The same by hand: new, add each record in order (must be valid), finish. */
int lien_script_new(struct lien_script **out);
int lien_script_add(struct lien_script *script, const struct lien_event *ev);
void lien_script_finish(struct lien_script *script);

void lien_script_free(struct lien_script *script);

#endif
