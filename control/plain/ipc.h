/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Legacy IPC handles for memory of ours. The process that made the handle, its owner, listens on an
 * abstract unix socket, whose name is random and part of the handle. Whoever opens the handle
 * connects, shows it, and gets a descriptor of the chunk. Neither side keeps a descriptor, because
 * that would keep the memory on the device. Whoever has the handle may open it, as with the
 * driver's.
 */
#ifndef LIEN_CONTROL_PLAIN_IPC_H
#define LIEN_CONTROL_PLAIN_IPC_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "control/plain/memory.h"

/* The first half names the socket, and everybody can read it (/proc/net/unix); the second half is
 * secret. */
#define LIEN_PLAIN_COOKIE 16
#define LIEN_PLAIN_NAME	  8

/* The bytes of a CUipcMemHandle. The same block always has the same. */
struct lien_plain_handle {
	uint8_t magic[8];
	uint8_t cookie[LIEN_PLAIN_COOKIE]; /* the owner's */
	uint64_t id, address, bytes;	   /* of the block, in the owner */
	uint32_t pid;			   /* the owner's, for people */
	uint32_t network;		   /* lien_plain_network() of the socket */
	uint64_t secret;		   /* the block's own */
};
_Static_assert(sizeof(struct lien_plain_handle) == CU_IPC_HANDLE_SIZE, "a CUipcMemHandle");

#define LIEN_PLAIN_MAGIC "lien-ipc"

/*
 * A process that opens a handle first asks where its block lies. It asks for a descriptor only if
 * it has not mapped that chunk: the agent takes every descriptor for one that is yet to be
 * imported.
 */
struct lien_plain_question {
	struct lien_plain_handle handle;
	uint32_t export;
	uint32_t zero;
};

struct lien_plain_answer {
	uint32_t result; /* a CUresult; with success of an export, a descriptor comes along */
	uint32_t zero;
	uint64_t chunk; /* its number in the owner */
	uint64_t chunk_bytes;
	uint64_t offset; /* of the block in the chunk */
};

#define LIEN_PLAIN_PREFIX "lien-ipc-"

/* Fills in the address of the owner's socket. Returns its length. */
socklen_t lien_plain_socket_name(struct sockaddr_un *name, const uint8_t *cookie);
/* Returns the number of the socket's network namespace. In another one, anybody could have taken
 * the name. */
uint32_t lien_plain_network(int socket);

/* Returns whether the handle is of this process. */
int lien_plain_offered(const struct lien_plain_handle *handle);

#endif
