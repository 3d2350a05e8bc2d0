/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The BPF programs in the kernel: loading them, attaching them to the libraries' calls, reading
 * what they report. Knows where things are, not what they mean. Not thread-safe.
 */
#ifndef LIEN_PROBES_H
#define LIEN_PROBES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <lien/event.h>
#include <lien/probe.h>
#include "loader/probes/images.h"
#include "loader/discover/libraries.h"
#include "loader/probes/skipped.h"

struct lien_probes;

/* Nobody's: the dynamic linker's cache or the administrator names it. */
#define LIEN_PROBES_SYSTEM (UINT32_MAX - 1)
/* Probed by an earlier agent, and not asked for since. */
#define LIEN_PROBES_UNKNOWN (UINT32_MAX - 2)

/* A file whose calls are probed. Strings live as long as the struct. */
struct lien_probed_file {
	enum lien_library library;
	char *path;
	dev_t device;
	ino_t inode;
	/* Containers of one image show one file under a device number each. */
	bool overlay;
	uint64_t size, t_changed; /* ns; 0: not known */
	char build_id[41];
	uint64_t t_attached; /* CLOCK_MONOTONIC ns: from then on every call is seen */
	unsigned calls;	     /* probed */
	uint32_t user; /* who had it probed (loader/discover/user.h), LIEN_PROBES_SYSTEM or _UNKNOWN
			*/
	const char *missing[LIEN_CALL_MAX]; /* symbols the file does not have; NULL-terminated */
};

struct lien_probes_config {
	unsigned ring_bytes; /* of the ring buffer, a power of 2; 0: as the programs say */
	unsigned threads; /* that use CUDA and are followed, of all users; 0: as the programs say */
	bool no_multi; /* attach each probe through perf even where the kernel has uprobe-multi */
	/* The agent's: maps and links are pinned under a name made from it, and SOCKET.state says
	 * what is attached. NULL: all goes when the probes are closed. */
	const char *socket;
	uint64_t journal; /* number of the journal that an earlier agent left; 0: there is none */
	uint64_t new_journal; /* number of the one that is begun if nothing is taken over */
	/* Called by lien_probes_consume() for each record, in order. The record is not checked. Not
	 * 0: the next one is left for the next call. */
	int (*on_event)(void *context, const struct lien_event *event, size_t size);
	/* Called once for each file that cannot be probed, as long as there is room for more. */
	void (*on_skipped)(void *context, const struct lien_skipped_file *file);
	void *context;
};

/*
 * Loads the programs and attaches those that need no library (processes, executable mappings). From
 * then on the ring fills. Error: -errno, and one line in `error` that names the cause and the
 * remedy.
 *
 * With config.socket: takes over what an earlier agent with that journal left, if that can be (see
 * lien_probes_resumed()), or else removes it. What cannot be pinned is no error, but a problem.
 */
int lien_probes_open(struct lien_probes **out, const struct lien_probes_config *config, char *error,
	size_t error_size);
/* Detaches what is not pinned. */
void lien_probes_close(struct lien_probes *probes);

/* Whether it goes on with the ring and the probes of an earlier agent. */
bool lien_probes_resumed(const struct lien_probes *probes);
/*
 * To be called once after taking over, when all files are attached again: removes what was not
 * taken over, and calls fn for each process that had a call under way whose return will not be
 * seen (now and then for one that had none). 0 or -errno.
 */
int lien_probes_settle(struct lien_probes *probes,
	void (*stranded)(void *context, uint32_t pid, uint64_t start), void *context);
/* The folder of the pins; NULL: nothing is pinned. */
const char *lien_probes_pinned(const struct lien_probes *probes);
/* Why less is pinned or taken over than was asked for, in one line; NULL: nothing is wrong. */
const char *lien_probes_problem(const struct lien_probes *probes);
/* Removes all pins: what is attached goes when the probes are closed. */
void lien_probes_unpin(struct lien_probes *probes);
/* Removes what the agent of that socket has pinned; there may be nothing. -EBUSY: it runs. */
int lien_probes_clean(const char *socket);

/*
 * Attaches to all calls that the file has, once per inode, also of one that several overlays show;
 * cuInit last. 0 also when it was attached before. -ENOEXEC, -EBADMSG: no x86-64 library; -ENODATA:
 * none of the calls; those of lien_untrusted_open(); -errno. The file is then one of
 * lien_probes_skipped(). -EINPROGRESS: the time of lien_making_allow() has not been enough; call it
 * again, or lien_probes_attach_tick(). user: on whose account, or LIEN_PROBES_SYSTEM; what is gone
 * is a skipped file only there.
 */
int lien_probes_attach(struct lien_probes *probes, enum lien_library library, const char *path,
	const char *name, uint32_t user);
/* Goes on with the files that are in progress, whoever still asks for them. */
void lien_probes_attach_tick(struct lien_probes *probes);
/* How many files in progress are on the user's account, and whether this file is in progress. */
unsigned lien_probes_attaching(const struct lien_probes *probes, uint32_t user);
bool lien_probes_is_attaching(const struct lien_probes *probes, dev_t device, ino_t inode);
/* Are there such files, or processes that are to be followed? Ticks are due then. */
bool lien_probes_in_progress(const struct lien_probes *probes);
/* Takes the file's probes away, and what is pinned of them. Does not wait for the kernel. */
void lien_probes_drop(struct lien_probes *probes, dev_t device, ino_t inode);

const struct lien_skipped *lien_probes_skipped(const struct lien_probes *probes);

/* NULL: not attached. */
const struct lien_probed_file *lien_probes_file(
	const struct lien_probes *probes, dev_t device, ino_t inode);
/* By index from 0; NULL after the last. */
const struct lien_probed_file *lien_probes_each(const struct lien_probes *probes, unsigned index);
/* "uprobe-multi" or "perf". */
const char *lien_probes_method(const struct lien_probes *probes);

/* Readable when records wait. */
int lien_probes_fd(const struct lien_probes *probes);
/* Hands waiting records to on_event. 0: all of them; 1: on_event has ended it; -errno. */
int lien_probes_consume(struct lien_probes *probes);
/* Bytes that were reported, and handed out, since there is the ring. */
uint64_t lien_probes_produced(const struct lien_probes *probes);
uint64_t lien_probes_consumed(const struct lien_probes *probes);
uint64_t lien_probes_counter(const struct lien_probes *probes, enum lien_probe_counter counter);
/* A process of which records were lost, and how many; the same one until that was noted. False:
 * there is none. */
bool lien_probes_lost(struct lien_probes *probes, uint32_t *pid, uint64_t *count);
/* Returns how many more have been lost meanwhile; they are counted no longer, too. */
uint64_t lien_probes_lost_noted(struct lien_probes *probes, uint32_t pid, uint64_t count);

/* What the process asked of a communicator; false: nothing yet. */
bool lien_probes_traffic_of(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	struct lien_probe_traffic *traffic);
/* Map `shares`, for loader/probes/files.c. */
int lien_probes_shares_fd(const struct lien_probes *probes);

/*
 * Map `traffic`, entry by entry, until fn returns something else than 0, which is returned. -errno.
 */
int lien_probes_traffic(struct lien_probes *probes,
	int (*fn)(void *context, const struct lien_probe_comm *comm,
		const struct lien_probe_traffic *traffic),
	void *context);

/* As the kernel side names the program that a process runs (LIEN_START()); 0: it cannot be asked,
 * or there is no such process. */
uint64_t lien_probes_start_of(struct lien_probes *probes, uint32_t pid);
/* Does that pid run another program than the one that is known by `start`? *images is read if it is
 * empty and needed. */
bool lien_probes_is_another(
	struct lien_probes *probes, uint32_t pid, uint64_t start, struct lien_images *images);
/* Tells the kernel side of a process that ran before it was watched: see struct lien_probe_process.
 */
int lien_probes_add_process(struct lien_probes *probes, uint32_t pid, uint64_t start);
/* A copy of the control library: processes that map it from now on are known to have it, until it
 * is removed. */
int lien_probes_add_control_file(struct lien_probes *probes, const char *path, ino_t *inode);
void lien_probes_remove_control_file(struct lien_probes *probes, ino_t inode);
/* All of them, which agents before this one knew. */
void lien_probes_forget_control_files(struct lien_probes *probes);
/* Where the process's control library is, and whether it is to be woken. */
int lien_probes_set_control(
	struct lien_probes *probes, uint32_t pid, const struct lien_probe_control *control);

#endif
