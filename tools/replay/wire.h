/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The protocol between the replay's parent and its workers: one message per datagram of a
 * SOCK_SEQPACKET pair, with at most one fd. Both ends are the same program.
 */
#ifndef LIEN_REPLAY_WIRE_H
#define LIEN_REPLAY_WIRE_H

#include <stdint.h>

enum lien_replay_say {
	/* parent to worker */
	LIEN_SAY_START = 1, /* fd: the image */
	LIEN_SAY_SHARE,	    /* answers IMPORT: fd or .share.fabric */
	LIEN_SAY_VERIFY,
	LIEN_SAY_CHANGE, /* .change */
	LIEN_SAY_FREE,
	LIEN_SAY_QUIT,

	/* worker to parent */
	LIEN_SAY_EXPORT,  /* fd or .share.fabric */
	LIEN_SAY_IMPORT,  /* asks for a share: .share */
	LIEN_SAY_DONE,	  /* all calls made, or a CHANGE or FREE completed: .done */
	LIEN_SAY_CHECKED, /* answers VERIFY: .checked */
	LIEN_SAY_FAILED,  /* .text; the worker exits */
};

struct lien_replay_done {
	uint64_t calls;
	uint64_t mappings;   /* current number */
	uint64_t bytes;	     /* of those */
	uint64_t unverified; /* of those: without a pattern, or unreadable */
	int32_t devices;     /* number of devices that the driver has */
	uint32_t direct;     /* 1: the recording has NCCL calls, but there is no stand-in libnccl */
};

struct lien_replay_checked {
	uint64_t mappings, failed;
	uint64_t bytes; /* compared */
	/* The first mismatch; with a result, a CUresult, it could not be read. */
	uint64_t va, actual, offset, expected, found, result;
};

struct lien_replay_message {
	uint32_t say;
	uint32_t zero;
	union {
		struct {
			uint64_t number;
			uint8_t fabric[64];
		} share;
		uint64_t change; /* number of the new pattern */
		struct lien_replay_done done;
		struct lien_replay_checked checked;
		char text[248];
	};
};

/*
 * Sends a message, with fd unless it is -1 (the caller keeps it). Waits at most timeout_ms while
 * the socket is full, 0: not at all. -ETIMEDOUT, -EPIPE when the other end is gone, or -errno.
 */
int lien_replay_send(int sock, const struct lien_replay_message *message, int fd, int timeout_ms);

/*
 * Receives a message; waits at most timeout_ms, -1: without limit. *fd receives the fd that came
 * with it, or -1. -EPIPE when the other end is gone, -ETIMEDOUT, -EMFILE when this process has no
 * room for the fd, or -errno.
 */
int lien_replay_receive(int sock, struct lien_replay_message *message, int *fd, int timeout_ms);

#endif
