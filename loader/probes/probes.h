/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The BPF programs in the kernel: loads them, attaches them to the libraries' calls, and reads
 * their reports. Knows where things are, not what they mean. Not thread-safe.
 */
#ifndef LIEN_PROBES_H
#define LIEN_PROBES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <lien/event.h>
#include <lien/probe.h>
#include "loader/discover/libraries.h"

struct lien_probes;

/* No user's: named by the dynamic linker's cache or the administrator. */
#define LIEN_PROBES_SYSTEM (UINT32_MAX - 1)
/* Probed by an earlier agent, and not requested since. */
#define LIEN_PROBES_UNKNOWN (UINT32_MAX - 2)

/* A file whose calls are probed. Strings live as long as the struct. */
struct lien_probed_file {
	enum lien_library library;
	char *path;
	dev_t device;
	ino_t inode;
	/* Containers of one image each show the same file under their own device number. */
	bool overlay;
	uint64_t size, t_changed; /* ns; 0: unknown */
	char build_id[41];
	uint64_t t_attached; /* CLOCK_MONOTONIC ns: every call from then on is seen */
	unsigned calls;	     /* number of probed calls */
	uint32_t user;	     /* user on whose account it is probed (loader/discover/status.h),
			      * LIEN_PROBES_SYSTEM or _UNKNOWN */
	const char *missing[LIEN_CALL_MAX]; /* symbols that the file lacks; NULL-terminated */
};

/*
 * Files that are named like one of our libraries and cannot be probed, each with the reason:
 * reported once, and kept for `lien status`. Processes choose these names, so there can be any
 * number: the first ones of each user are kept and the rest is counted.
 */
#define LIEN_SKIPPED_MAX     64 /* entries kept in all, */
#define LIEN_SKIPPED_OF_USER 8	/* and for one user who is neither root nor the system */

struct lien_skipped_file {
	char *path;
	const char *reason;
	int err;
	dev_t device;
	ino_t inode; /* 0: not even stat() worked */
	struct timespec changed;
	uint32_t user; /* user of the process that mapped it */
};

struct lien_skipped {
	struct lien_skipped_file files[LIEN_SKIPPED_MAX];
	unsigned kept, count; /* count: includes those not kept */
};

/* How the probes work on this kernel, and how that went. */
struct lien_probes_facts {
	const char *method;	/* "uprobe-multi" or "perf" */
	const char *gate_lacks; /* as lien_uprobe_gate_lacks() */
	const char *pinned;	/* folder of the pins; NULL: nothing is pinned */
	char problem[256]; /* why less was pinned or taken over than requested; "": it was not */
	bool multi;
	bool resumed;	      /* it continues with the ring and the probes of an earlier agent */
	bool can_follow;      /* processes can be followed one by one (loader/probes/follow.h) */
	unsigned exports_max; /* of a restore, that the kernel side keeps for each user */
	unsigned gates;
	struct lien_skipped skipped;
};

struct lien_probes_config {
	unsigned ring_bytes; /* size of the ring buffer, a power of 2; 0: the programs' default */
	unsigned threads;    /* number of threads that use CUDA and can be followed, over all users;
			      * with fewer there is less room for processes, communicators and
			      * exports, too; 0: the programs' default */
	bool no_multi; /* attach each probe through perf even where the kernel has uprobe-multi */
	bool no_bound; /* bind no links to processes even where the kernel can */
	/* The agent's socket. Maps and links are pinned under a name made from it, and SOCKET.state
	 * lists the attachments. NULL: nothing outlives lien_probes_close(). */
	const char *socket;
	uint64_t journal;     /* number of the journal that an earlier agent left; 0: none */
	uint64_t new_journal; /* number of the journal to begin if nothing is taken over */
	/* Called by lien_probes_consume() for each record, in order. The record is not validated. A
	 * non-zero result leaves the remaining records for the next call. */
	int (*on_event)(void *context, const struct lien_event *event, size_t size);
	/* Called once for each file that cannot be probed, as long as the list has room. */
	void (*on_skipped)(void *context, const struct lien_skipped_file *file);
	void *context;
};

/*
 * Loads the programs and attaches those that need no library (processes, executable mappings). The
 * ring fills from then on. On error returns -errno, with one line in `error` that names the cause
 * and the remedy.
 *
 * With config.socket: takes over what an earlier agent with that journal left, if possible (see
 * facts.resumed), and otherwise removes it. A failure to pin something is a .problem and is no
 * error.
 */
int lien_probes_open(struct lien_probes **out, const struct lien_probes_config *config, char *error,
	size_t error_size);
/* Detaches everything that is not pinned. */
void lien_probes_close(struct lien_probes *probes);

/* They change while the probes work. */
const struct lien_probes_facts *lien_probes_facts(const struct lien_probes *probes);
/*
 * Call once after taking over, when all files are attached again. Removes what was not taken over,
 * and calls fn for each process that had a call in progress whose return will not be seen
 * (occasionally for one that had none). Returns 0 or -errno.
 */
int lien_probes_finish_takeover(struct lien_probes *probes,
	void (*stranded)(void *context, uint32_t pid, uint64_t start), void *context);
/* Removes all pins, so that closing the probes detaches everything. */
void lien_probes_unpin(struct lien_probes *probes);
/* Removes the pins of the agent with that socket, if any. -EBUSY: that agent runs; or what `may`
 * (NULL: always) returns once it is known that none does, if that is not 0. */
int lien_probes_clean(const char *socket, int (*may)(const char *socket));

/*
 * Attaches to all traced calls that the file has, once per inode, even if several overlays show the
 * file; cuInit last. Returns 0 also if already attached. -ENOEXEC, -EBADMSG: no x86-64 library;
 * -ENODATA: none of the calls; -ETXTBSY: as long as a process has other code in memory
 * (loader/probes/code.h); the errors of lien_untrusted_open(); -errno. After these the file is
 * one of facts.skipped. -EINPROGRESS: the time of lien_making_allow() was not enough; call
 * it again, or call lien_probes_attach_tick(). user: the account to charge, or LIEN_PROBES_SYSTEM;
 * a file that no longer exists is recorded as skipped only for the latter.
 */
int lien_probes_attach(struct lien_probes *probes, enum lien_library library, const char *path,
	const char *name, uint32_t user);
/* Continues with the files in progress, no matter who requested them. */
void lien_probes_attach_tick(struct lien_probes *probes);
/* Return the number of files in progress on the user's account, and whether this file is in
 * progress. */
unsigned lien_probes_attaching(const struct lien_probes *probes, uint32_t user);
bool lien_probes_is_attaching(const struct lien_probes *probes, dev_t device, ino_t inode);
/* Returns true if files are in progress or processes wait to be followed: then call the ticks. */
bool lien_probes_in_progress(const struct lien_probes *probes);
/* Removes the file's probes and their pins. Does not wait for the kernel. */
void lien_probes_drop(struct lien_probes *probes, dev_t device, ino_t inode);

/* Was the file skipped with -ETXTBSY, and is not probed since? */
bool lien_probes_is_rewritten(const struct lien_probes *probes, ino_t inode);

/* Returns NULL if the file is not attached. */
const struct lien_probed_file *lien_probes_file(
	const struct lien_probes *probes, dev_t device, ino_t inode);
/* By index from 0; returns NULL after the last. */
const struct lien_probed_file *lien_probes_each(const struct lien_probes *probes, unsigned index);

/* The fd is readable when records wait. */
int lien_probes_fd(const struct lien_probes *probes);
/* Passes waiting records to on_event. Returns 0: all of them; 1: on_event stopped it; -errno. */
int lien_probes_consume(struct lien_probes *probes);
/* Bytes reported and handed out, since the ring was created. */
uint64_t lien_probes_produced(const struct lien_probes *probes);
uint64_t lien_probes_consumed(const struct lien_probes *probes);
uint64_t lien_probes_counter(const struct lien_probes *probes, enum lien_probe_counter counter);
/* Finds a process that lost records, and how many; returns the same one until
 * lien_probes_lost_noted(). Returns false if there is none. */
bool lien_probes_lost(struct lien_probes *probes, uint32_t *pid, uint64_t *count);
/* Stops counting for that process. Returns the number of records lost meanwhile. */
uint64_t lien_probes_lost_noted(struct lien_probes *probes, uint32_t pid, uint64_t count);

/* Reads the calls of a process on a communicator; false: none yet. */
bool lien_probes_traffic_of(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	struct lien_probe_traffic *traffic);

/* Called for an entry of a map, with copies of its key and value. Non-zero: ends the walk, which
 * returns it. */
typedef int lien_map_fn(void *context, const void *key, const void *value);

/* Calls fn for each entry of map `traffic`: struct lien_probe_comm, struct lien_probe_traffic.
 * Returns -errno on error. */
int lien_probes_traffic(const struct lien_probes *probes, lien_map_fn *fn, void *context);

/* Returns the kernel side's name of the program that a process runs (LIEN_START()); 0: it cannot be
 * determined, or there is no such process. */
uint64_t lien_probes_start_of(struct lien_probes *probes, uint32_t pid);
/* Reads the kernel side's record of a process; false: there is none. */
bool lien_probes_process(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_process *process);
/* Returns true if that pid runs another program than the one known by `start`. Asks the kernel at
 * most once, until *asked is false again. */
bool lien_probes_is_another(struct lien_probes *probes, uint32_t pid, uint64_t start, bool *asked);
/* Tells the kernel side about a process that ran before it was watched: see struct
 * lien_probe_process. */
int lien_probes_add_process(struct lien_probes *probes, uint32_t pid, uint64_t start);
/* Registers a copy of the control library: processes that map it from now on are known to have it,
 * until it is removed. */
int lien_probes_add_control_file(struct lien_probes *probes, const char *path, ino_t *inode);
void lien_probes_remove_control_file(struct lien_probes *probes, ino_t inode);
/* Removes all copies, including those that earlier agents registered. */
void lien_probes_forget_control_files(struct lien_probes *probes);
/* Sets the address of the process's control library, and whether to wake it. */
int lien_probes_set_control(
	struct lien_probes *probes, uint32_t pid, const struct lien_probe_control *control);

#endif
