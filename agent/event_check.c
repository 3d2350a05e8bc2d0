// SPDX-License-Identifier: BSD-2-Clause
#include <string.h>

#include <agent/event_check.h>

#define NCCL_IN_PROGRESS 7

struct shape {
	uint16_t least; /* bytes of a record of this type; 0: not a type of ours */
	uint8_t library;
	uint8_t flags;
};

/* Bodies of the calls, by their name in calls.h. */
#define BODY_CU_INIT		      LIEN_EVENT_HEADER
#define BODY_CU_MEM_CREATE	      LIEN_EVENT_SIZE(create)
#define BODY_CU_MEM_RELEASE	      LIEN_EVENT_SIZE(release)
#define BODY_CU_MEM_RETAIN	      LIEN_EVENT_SIZE(retain)
#define BODY_CU_MEM_RESERVE	      LIEN_EVENT_SIZE(reserve)
#define BODY_CU_MEM_ADDRESS_FREE      LIEN_EVENT_SIZE(range)
#define BODY_CU_MEM_MAP		      LIEN_EVENT_SIZE(map)
#define BODY_CU_MEM_UNMAP	      LIEN_EVENT_SIZE(range)
#define BODY_CU_MEM_SET_ACCESS	      offsetof(struct lien_event, access.access)
#define BODY_CU_MEM_EXPORT	      LIEN_EVENT_SIZE(share)
#define BODY_CU_MEM_IMPORT	      LIEN_EVENT_SIZE(share)
#define BODY_CU_MEM_ALLOC	      LIEN_EVENT_SIZE(alloc)
#define BODY_CU_MEM_FREE	      LIEN_EVENT_SIZE(range)
#define BODY_CU_CAPTURE_BEGIN	      LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_BEGIN_PTSZ    LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_TO_GRAPH      LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_TO_GRAPH_PTSZ LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_END	      LIEN_EVENT_SIZE(capture)
#define BODY_CU_CAPTURE_END_PTSZ      LIEN_EVENT_SIZE(capture)
#define BODY_CUDA_MALLOC	      0 /* a frame: has no records */
#define BODY_CUDA_FREE		      0
#define BODY_NCCL_INIT_RANK	      LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_INIT_RANK_CONFIG    LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_INIT_RANK_SCALABLE  LIEN_EVENT_SIZE(comm)
#define BODY_NCCL_DESTROY	      LIEN_EVENT_SIZE(comm_end)
#define BODY_NCCL_ABORT		      LIEN_EVENT_SIZE(comm_end)
#define BODY_NCCL_REGISTER	      LIEN_EVENT_SIZE(reg)
#define BODY_NCCL_DEREGISTER	      LIEN_EVENT_SIZE(reg)
#define BODY_NCCL_WINDOW_REGISTER     LIEN_EVENT_SIZE(reg)
#define BODY_NCCL_WINDOW_DEREGISTER   LIEN_EVENT_SIZE(reg)

#define BODY_IBV_REG_MR	       LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_MR_IOVA   LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_MR_IOVA2  LIEN_EVENT_SIZE(reg)
#define BODY_IBV_REG_DMABUF_MR LIEN_EVENT_SIZE(reg)
#define BODY_IBV_DEREG_MR      LIEN_EVENT_SIZE(reg)

/* A call that is new in calls.h fails to compile here until it has a body above. */
static const struct shape shapes[LIEN_CALL_MAX] = {
	[LIEN_EVENT_PROCESS] = {.least = LIEN_EVENT_SIZE(process)},
	[LIEN_EVENT_EXEC] = {.least = LIEN_EVENT_HEADER},
	[LIEN_EVENT_EXIT] = {.least = LIEN_EVENT_HEADER},
	[LIEN_EVENT_LIBRARY] = {.least = LIEN_EVENT_SIZE(library)},
	[LIEN_EVENT_LOST] = {.least = LIEN_EVENT_SIZE(lost)},
	[LIEN_EVENT_END] = {.least = LIEN_EVENT_HEADER},
	[LIEN_EVENT_INCOMPLETE] = {.least = LIEN_EVENT_SIZE(incomplete)},
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
	const uint16_t known =
		LIEN_EVENT_ENTRY | LIEN_EVENT_CONTROL | LIEN_EVENT_PARTIAL | LIEN_EVENT_IMPORTED;
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

bool lien_event_succeeded(const struct lien_event *ev)
{
	if (ev->flags & LIEN_EVENT_ENTRY)
		return false;
	return !ev->result ||
	       (ev->result == NCCL_IN_PROGRESS && lien_event_library(ev->type) == LIEN_LIB_NCCL);
}
