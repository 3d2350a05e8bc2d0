/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Decodes the driver's memory calls from registers and the caller's memory. */
#ifndef LIEN_BPF_MEMORY_H
#define LIEN_BPF_MEMORY_H

#include "context.h"

/* CUmemAllocationProp in the caller's memory. */
struct user_prop {
	__u32 type, handle_types, location_type;
	__s32 location_id;
	__u64 win32;
	__u8 compression, rdma;
	__u16 usage;
	__u8 reserved[4];
};

static __always_inline void read_prop(struct lien_event *event, __u64 from)
{
	struct lien_prop *to = &event->create.prop;
	struct user_prop prop;

	read_user(event, &prop, sizeof(prop), from);
	to->type = prop.type;
	to->handle_types = prop.handle_types;
	to->location_type = prop.location_type;
	to->location_id = prop.location_id;
	to->compression = prop.compression;
	to->rdma = prop.rdma;
	to->usage = prop.usage;
}

/* CUmemAccessDesc in the caller's memory. */
struct user_access {
	__u32 location_type;
	__s32 location_id;
	__u32 flags;
};

static __always_inline __u32 read_access(struct lien_event *event, __u64 from, __u64 n)
{
	struct user_access access;
	__u32 i;

	if (n > LIEN_ACCESS_MAX) {
		n = LIEN_ACCESS_MAX;
		event->flags |= LIEN_EVENT_PARTIAL;
	}
	event->access.count = n;
#pragma clang loop unroll(disable)
	for (i = 0; i < LIEN_ACCESS_MAX; i++) {
		if (i >= n)
			break;
		read_user(event, &access, sizeof(access), from + i * sizeof(access));
		event->access.access[i].location_type = access.location_type;
		event->access.access[i].location_id = access.location_id;
		event->access.access[i].flags = access.flags;
	}
	return LIEN_EVENT_SIZE(access) - (LIEN_ACCESS_MAX - (n & 31)) * sizeof(struct lien_access);
}

/* Calls that allocate memory and its address together. */
static __always_inline __u32 alloc_body(
	struct thread *thread, struct lien_event *event, const struct frame *frame)
{
	event->alloc.va = frame->call == LIEN_CALL_CU_HOST_REGISTER ||
					  frame->call == LIEN_CALL_CU_HOST_REGISTER_OLDER
				  ? frame->arg[0]
				  : read_user_u64(event, frame->arg[0]);
	event->alloc.bytes = frame->arg[1];
	event->alloc.context = context_of(thread);
	event->alloc.device = device_of(thread);
	switch (frame->call) {
	case LIEN_CALL_CU_MEM_ALLOC_MANAGED:
	case LIEN_CALL_CU_HOST_ALLOC:
		event->alloc.flags = frame->arg[2];
		break;
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL:
	case LIEN_CALL_CU_MEM_ALLOC_FROM_POOL_PTSZ:
		event->alloc.pool = frame->arg[2];
		break;
	case LIEN_CALL_CU_MEM_ALLOC_PITCH:
		/* (address *, pitch *, width, height, element) */
		event->alloc.bytes = read_user_u64(event, frame->arg[1]) * frame->arg[3];
		break;
	case LIEN_CALL_CU_HOST_REGISTER:
	case LIEN_CALL_CU_HOST_REGISTER_OLDER:
		event->alloc.flags = frame->arg[2];
		event->alloc.device = -1;
		break;
	}
	return LIEN_EVENT_SIZE(alloc);
}

/* Calls with a range of addresses, or with its first address. */
static __always_inline __u32 range_body(struct lien_event *event, const struct frame *frame)
{
	event->range.va = frame->arg[0];
	if (frame->call == LIEN_CALL_CU_MEM_ADDRESS_FREE || frame->call == LIEN_CALL_CU_MEM_UNMAP)
		event->range.bytes = frame->arg[1];
	return LIEN_EVENT_SIZE(range);
}

#endif
