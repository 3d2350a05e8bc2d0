/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of another process, known by 64 bytes: see peer.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "peer.h"

static const char magic[8] = "lien:mem";

struct soft_ticket soft_ticket_of(
	enum soft_ticket_kind kind, const struct soft_allocation *allocation)
{
	const CUmemLocation *location = &allocation->prop.location;
	struct soft_ticket ticket = {
		.kind = kind,
		.pid = getpid(),
		.fd = allocation->fd,
		.device = location->type == CU_MEM_LOCATION_TYPE_DEVICE
				  ? soft.device[location->id].physical
				  : -1,
		.number = allocation->number,
		.bytes = allocation->size,
	};

	memcpy(ticket.magic, magic, sizeof(magic));
	return ticket;
}

bool soft_ticket_read(struct soft_ticket *ticket, const void *bytes, enum soft_ticket_kind kind)
{
	memcpy(ticket, bytes, sizeof(*ticket));
	return !memcmp(ticket->magic, magic, sizeof(magic)) && ticket->kind == kind &&
	       ticket->pid > 0 && ticket->fd >= 0 && ticket->bytes;
}

/* O_PATH first: what stands there now may be another process's, and opening it may have effects. */
int soft_ticket_open(const struct soft_ticket *ticket)
{
	char path[64];
	int at, fd;

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->pid, ticket->fd);
	at = open(path, O_PATH | O_CLOEXEC);
	if (at < 0)
		return -errno;
	fd = soft_backing_number(at) == ticket->number ? soft_backing_reopen(at) : -ENOENT;
	close(at);
	return fd;
}

CUresult soft_ticket_take(
	const struct soft_ticket *ticket, CUresult gone, struct soft_allocation **made)
{
	CUmemAllocationProp prop;
	int fd, own;
	size_t size;

	fd = soft_ticket_open(ticket);
	if (fd < 0)
		return fd == -EMFILE ? CUDA_ERROR_OUT_OF_MEMORY : gone;
	own = soft_backing_import(fd, CU_MEM_HANDLE_TYPE_NONE, &prop, &size);
	close(fd);
	if (own < 0)
		return soft_result(own);
	if (ticket->bytes > size) {
		close(own);
		return CUDA_ERROR_INVALID_VALUE;
	}
	return soft_allocation_wrap(made, own, size, &prop);
}
