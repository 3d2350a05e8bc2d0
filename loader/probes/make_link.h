/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Attaches uprobes in threads of its own. The kernel changes probes one at a time, and each change
 * waits for every other one on the machine and for the address spaces of all processes that map the
 * file: attaching a few hundred takes 5 ms on an idle machine and 500 ms while as many are being
 * removed (measured on 6.18, 2 cores). The agent's loop cannot wait for that.
 */
#ifndef LIEN_MAKE_LINK_H
#define LIEN_MAKE_LINK_H

#include <stdbool.h>
#include <stdint.h>

struct lien_making;

struct lien_link_request {
	int program_fd;
	const uint64_t *offsets, *cookies;
	unsigned count; /* 0: no link */
	/* A link for each place, which sees every process. false: one for all of them. */
	bool each;
	bool at_return;
	uint32_t pid; /* 0: every process */
};

#define LIEN_LINK_REQUESTS 2

/* Begins to make the links of up to LIEN_LINK_REQUESTS requests, in this order; the last has the
 * places of all. If a process that would get the probes has other code there
 * (loader/probes/code.h), none is made: -ETXTBSY. Copies the requests and everything they point to,
 * and duplicates the file's fd. Returns 0; -errno: *making is NULL.
 */
int lien_making_begin(struct lien_making **making, int file_fd,
	const struct lien_link_request *requests, unsigned count);
/* Returns 0: links[] has their fds, request by request: one, -1 if it has no places; or, with
 * `each`, one for each place. -EINPROGRESS: call again later; -errno: no link was made. Frees
 * *making and sets it to NULL, except on -EINPROGRESS. */
int lien_making_wait(struct lien_making **making, int *links);
/* Waits as long, and returns true if that would not be -EINPROGRESS now. */
bool lien_making_ready(struct lien_making *making);
/* Removes all links that it has made or will make. making may be NULL. */
void lien_making_abandon(struct lien_making **making);

/* Limits the time that lien_making_wait() waits from now on, in total; it waits only once for a
 * link that takes longer. The default is no limit. For the thread that waits. */
void lien_making_allow(unsigned ms);
/* Returns true while links are being made. fork() blocks in every process for much of that time. */
bool lien_making_busy(void);

#endif
