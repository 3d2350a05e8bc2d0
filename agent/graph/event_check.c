// SPDX-License-Identifier: BSD-2-Clause
#include <string.h>

#include <agent/graph/event_check.h>

#define NCCL_IN_PROGRESS 7

struct shape {
	uint16_t least; /* bytes of a record of this type; 0: not a type of ours */
	uint8_t library;
	uint8_t flags;
};

/* Bodies of the calls, by their name in calls.h. */
#define BODY_CU_INIT			 LIEN_EVENT_HEADER
#define BODY_CU_MEM_CREATE		 LIEN_EVENT_SIZE(create)
#define BODY_CU_MEM_RELEASE		 LIEN_EVENT_SIZE(release)
#define BODY_CU_MEM_RETAIN		 LIEN_EVENT_SIZE(retain)
#define BODY_CU_MEM_RESERVE		 LIEN_EVENT_SIZE(reserve)
#define BODY_CU_MEM_ADDRESS_FREE	 LIEN_EVENT_SIZE(range)
#define BODY_CU_MEM_MAP			 LIEN_EVENT_SIZE(map)
#define BODY_CU_MEM_UNMAP		 LIEN_EVENT_SIZE(range)
#define BODY_CU_MEM_SET_ACCESS		 offsetof(struct lien_event, access.access)
#define BODY_CU_MEM_EXPORT		 offsetof(struct lien_event, share.key)
#define BODY_CU_MEM_IMPORT		 offsetof(struct lien_event, share.key)
#define BODY_CU_MEM_ALLOC		 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_FREE		 LIEN_EVENT_SIZE(range)
#define BODY_CU_CAPTURE_BEGIN		 LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_BEGIN_PTSZ	 LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_TO_GRAPH	 LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_TO_GRAPH_PTSZ	 LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_END		 LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_END_PTSZ	 LIEN_EVENT_SIZE(capture)
#define BODY_CU_STREAM_DESTROY		 LIEN_EVENT_SIZE(capture)
#define BODY_CU_MEM_ALLOC_PITCH		 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_ALLOC_MANAGED	 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_ALLOC_ASYNC		 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_ALLOC_ASYNC_PTSZ	 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_ALLOC_FROM_POOL	 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_ALLOC_FROM_POOL_PTSZ LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_FREE_ASYNC		 LIEN_EVENT_SIZE(range)
#define BODY_CU_MEM_FREE_ASYNC_PTSZ	 LIEN_EVENT_SIZE(range)
#define BODY_CU_POOL_CREATE		 LIEN_EVENT_SIZE(pool)
#define BODY_CU_POOL_DESTROY		 LIEN_EVENT_SIZE(pool)
#define BODY_CU_POOL_EXPORT		 LIEN_EVENT_SIZE(pool)
#define BODY_CU_POOL_IMPORT		 LIEN_EVENT_SIZE(pool)
#define BODY_CU_POOL_EXPORT_POINTER	 LIEN_EVENT_SIZE(key)
#define BODY_CU_POOL_IMPORT_POINTER	 LIEN_EVENT_SIZE(key)
#define BODY_CU_HOST_ALLOC		 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_ALLOC_HOST		 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_FREE_HOST		 LIEN_EVENT_SIZE(range)
#define BODY_CU_HOST_REGISTER		 LIEN_EVENT_SIZE(alloc)
#define BODY_CU_HOST_UNREGISTER		 LIEN_EVENT_SIZE(range)
#define BODY_CU_IPC_GET			 LIEN_EVENT_SIZE(key)
#define BODY_CU_IPC_OPEN		 LIEN_EVENT_SIZE(key)
#define BODY_CU_IPC_CLOSE		 LIEN_EVENT_SIZE(range)
#define BODY_CU_MULTICAST_CREATE	 LIEN_EVENT_SIZE(multicast)
#define BODY_CU_MULTICAST_DEVICE	 LIEN_EVENT_SIZE(multicast)
#define BODY_CU_MULTICAST_BIND		 LIEN_EVENT_SIZE(multicast)
#define BODY_CU_MULTICAST_BIND_ADDRESS	 LIEN_EVENT_SIZE(multicast)
#define BODY_CU_MULTICAST_UNBIND	 LIEN_EVENT_SIZE(multicast)
#define BODY_CU_RANGE_HANDLE		 LIEN_EVENT_SIZE(range_handle)
#define BODY_CU_CONTEXT_CREATE		 LIEN_EVENT_SIZE(context)
#define BODY_CU_CONTEXT_CREATE_V3	 LIEN_EVENT_SIZE(context)
#define BODY_CU_CONTEXT_CREATE_V4	 LIEN_EVENT_SIZE(context)
#define BODY_CU_CONTEXT_PRIMARY		 LIEN_EVENT_SIZE(context)
#define BODY_CU_CONTEXT_DESTROY		 LIEN_EVENT_SIZE(context)
#define BODY_NCCL_INIT_RANK		 LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_INIT_RANK_CONFIG	 LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_INIT_RANK_SCALABLE	 LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_INIT_ALL		 LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_SPLIT			 LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_SHRINK		 LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_FINALIZE		 LIEN_EVENT_SIZE(comm_end)
#define BODY_NCCL_DESTROY		 LIEN_EVENT_SIZE(comm_end)
#define BODY_NCCL_ABORT			 LIEN_EVENT_SIZE(comm_end)
#define BODY_NCCL_REGISTER		 LIEN_EVENT_SIZE(reg)
#define BODY_NCCL_DEREGISTER		 LIEN_EVENT_SIZE(reg)
#define BODY_NCCL_WINDOW_REGISTER	 LIEN_EVENT_SIZE(reg)
#define BODY_NCCL_WINDOW_DEREGISTER	 LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_MR			 LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_MR_IOVA		 LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_MR_IOVA2		 LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_DMABUF_MR		 LIEN_EVENT_SIZE(reg)
#define BODY_IBV_DEREG_MR		 LIEN_EVENT_SIZE(reg)
/* These have no records. */
#define BODY_CUDA_MALLOC		0
#define BODY_CUDA_FREE			0
#define BODY_CUDA_MALLOC_ASYNC		0
#define BODY_CUDA_MALLOC_ASYNC_PTSZ	0
#define BODY_CUDA_MALLOC_FROM_POOL	0
#define BODY_CUDA_MALLOC_FROM_POOL_PTSZ 0
#define BODY_CUDA_MALLOC_MANAGED	0
#define BODY_CUDA_MALLOC_PITCH		0
#define BODY_CUDA_MALLOC_HOST		0
#define BODY_CUDA_HOST_ALLOC		0
#define BODY_CUDA_HOST_REGISTER		0
#define BODY_CUDA_IPC_OPEN		0
#define BODY_CUDA_FREE_ASYNC		0
#define BODY_NCCL_MEM_ALLOC		0
#define BODY_NCCL_MEM_FREE		0
#define BODY_NCCL_GROUP_END		0
#define BODY_NCCL_ASYNC_ERROR		0
#define BODY_CU_CONTEXT_SET		0
#define BODY_CU_CONTEXT_PUSH		0
#define BODY_CU_CONTEXT_POP		0
#define BODY_NCCL_ALL_REDUCE		0
#define BODY_NCCL_BROADCAST		0
#define BODY_NCCL_REDUCE		0
#define BODY_NCCL_ALL_GATHER		0
#define BODY_NCCL_REDUCE_SCATTER	0
#define BODY_NCCL_SEND			0
#define BODY_NCCL_RECV			0
#define BODY_NCCL_ALL_TO_ALL		0
#define BODY_NCCL_GATHER		0
#define BODY_NCCL_SCATTER		0

/* A call that is new in calls.h fails to compile here until it has a body above. */
static const struct shape shapes[LIEN_CALL_MAX] = {
	[LIEN_EVENT_PROCESS] = {.least = LIEN_EVENT_SIZE(process)},
	[LIEN_EVENT_EXEC] = {.least = LIEN_EVENT_HEADER},
	[LIEN_EVENT_EXIT] = {.least = LIEN_EVENT_HEADER},
	[LIEN_EVENT_LIBRARY] = {.least = LIEN_EVENT_SIZE(library)},
	[LIEN_EVENT_LOST] = {.least = LIEN_EVENT_SIZE(lost)},
	[LIEN_EVENT_END] = {.least = LIEN_EVENT_HEADER},
	[LIEN_EVENT_PROP] = {.least = LIEN_EVENT_SIZE(property)},
	[LIEN_EVENT_REREAD] = {.least = LIEN_EVENT_SIZE(reread)},
	[LIEN_EVENT_INCOMPLETE] = {.least = LIEN_EVENT_SIZE(incomplete)},
	[LIEN_EVENT_ADOPT] = {.least = LIEN_EVENT_SIZE(adopt)},
#define SHAPE(name, number, lib, symbol, call_flags)                                               \
	[number] = {.least = BODY_##name, .library = LIEN_LIB_##lib, .flags = (call_flags)},
	LIEN_CALLS(SHAPE)
#undef SHAPE
};

static bool ends(const char *string, size_t room)
{
	return memchr(string, '\0', room);
}

bool lien_event_valid(const struct lien_event *ev)
{
	const uint16_t known = LIEN_EVENT_ENTRY | LIEN_EVENT_CONTROL | LIEN_EVENT_PARTIAL |
			       LIEN_EVENT_IMPORTED | LIEN_EVENT_INFERRED | LIEN_EVENT_FOUND |
			       LIEN_EVENT_TRANSLATED;
	const struct shape *shape;

	if (ev->size < LIEN_EVENT_HEADER || ev->size > sizeof(*ev) || ev->size % 8)
		return false;
	if (ev->type >= LIEN_CALL_MAX || ev->outer >= LIEN_CALL_MAX || ev->flags & ~known)
		return false;
	shape = &shapes[ev->type];
	if (!shape->least || ev->size < shape->least)
		return false;
	if (ev->flags & LIEN_EVENT_ENTRY && !(shape->flags & LIEN_CALL_RELEASES))
		return false;
	switch (ev->type) {
	case LIEN_EVENT_PROCESS:
		return ends(ev->process.comm, sizeof(ev->process.comm));
	case LIEN_EVENT_LIBRARY:
		return ends(ev->library.name, sizeof(ev->library.name));
	case LIEN_CALL_CU_MEM_SET_ACCESS:
		return ev->access.count <= LIEN_ACCESS_MAX &&
		       ev->size >= shape->least + ev->access.count * sizeof(struct lien_access);
	default:
		return true;
	}
}

int lien_event_library(unsigned int call)
{
	return call < LIEN_CALL_MAX ? shapes[call].library : 0;
}

const char *lien_call_name(unsigned int call)
{
	static const char *const names[LIEN_CALL_MAX] = {
#define NAME(name, number, library, symbol, flags) [number] = symbol,
		LIEN_CALLS(NAME) LIEN_GATE_CALLS(NAME)
#undef NAME
	};

	return call < LIEN_CALL_MAX ? names[call] : NULL;
}

bool lien_event_succeeded(const struct lien_event *ev)
{
	if (ev->flags & LIEN_EVENT_ENTRY)
		return false;
	return !ev->result ||
	       (ev->result == NCCL_IN_PROGRESS && lien_event_library(ev->type) == LIEN_LIB_NCCL);
}
