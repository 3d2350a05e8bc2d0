/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the 64 bytes of a fabric handle, a legacy IPC handle or an exported pool pointer
 * say. The file is opened through /proc while its owner lives and has it; so owner and user have to
 * see the same pids, as the real driver's IPC demands too, and the user needs the owner's
 * permission to look (ptrace(2), PTRACE_MODE_READ_FSCREDS).
 */
#ifndef SOFTCUDA_PEER_H
#define SOFTCUDA_PEER_H

#include "softcuda.h"

enum soft_ticket_kind {
	SOFT_TICKET_FABRIC = 1,
	SOFT_TICKET_IPC,
	SOFT_TICKET_POINTER,
};

struct soft_ticket {
	char magic[8];
	uint32_t kind;
	int32_t pid, fd;
	int32_t device;	 /* the owner's, as all processes number them; -1: host memory */
	uint64_t number; /* soft_backing_number() */
	uint64_t bytes;
	uint64_t pool;
	uint64_t reserved[2];
};
_Static_assert(sizeof(struct soft_ticket) == CU_IPC_HANDLE_SIZE, "as cuda.h has it");

/* The callers' 64 bytes are not aligned: they are copied, to and fro. */
struct soft_ticket soft_ticket_of(
	enum soft_ticket_kind kind, const struct soft_allocation *allocation);
/* False where the bytes are no such ticket. */
bool soft_ticket_read(struct soft_ticket *ticket, const void *bytes, enum soft_ticket_kind kind);
int soft_ticket_open(const struct soft_ticket *ticket); /* fd or -errno */
/* The file as an allocation that is mapped nowhere yet; gone is the error where it is not there. */
CUresult soft_ticket_take(
	const struct soft_ticket *ticket, CUresult gone, struct soft_allocation **made);

#endif
