// SPDX-License-Identifier: BSD-2-Clause
#include <string.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"

#define NCCL_IN_PROGRESS 7

struct shape {
	/* minimum size of a record of this type; 0: not one of the agent's own types */
	uint16_t least;
	uint8_t kind; /* enum lien_kind, of a call */
	uint8_t library;
	uint8_t flags;
};

static const uint16_t least[LIEN_KIND_COUNT] = {
#define LEAST(kind, bytes, origin) [LIEN_KIND_##kind] = (bytes),
	LIEN_KINDS(LEAST)
#undef LEAST
};

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
#define SHAPE(name, number, lib, symbol, call_flags, call_kind)                                    \
	[number] = {                                                                               \
		.kind = LIEN_KIND_##call_kind, .library = LIEN_LIB_##lib, .flags = (call_flags)},
	LIEN_CALLS(SHAPE)
#undef SHAPE
#define SHAPE(name, number, bytes) [number] = {.least = (bytes)},
		LIEN_STATES(SHAPE)
#undef SHAPE
};

static bool ends(const char *string, size_t room)
{
	return memchr(string, '\0', room);
}

bool lien_tag_valid(const char text[LIEN_TAG_BYTES])
{
	size_t length = strnlen(text, LIEN_TAG_BYTES), i;

	for (i = 0; i < length; i++)
		if (text[i] < ' ' || text[i] > '~')
			return false;
	return length && length < LIEN_TAG_BYTES;
}

static bool accesses_fit(const struct lien_event *ev, uint32_t count, size_t before)
{
	return count <= LIEN_ACCESS_MAX && ev->size >= before + count * sizeof(struct lien_access);
}

static bool body_valid(const struct lien_event *ev, size_t least)
{
	switch (ev->type) {
	case LIEN_EVENT_PROCESS:
		return ends(ev->process.comm, sizeof(ev->process.comm));
	case LIEN_EVENT_LIBRARY:
		return ends(ev->library.name, sizeof(ev->library.name));
	case LIEN_CALL_CU_MEM_SET_ACCESS:
		return accesses_fit(ev, ev->access.count, least);
	case LIEN_STATE_process:
		return ends(ev->state.process.command, sizeof(ev->state.process.command));
	case LIEN_STATE_site:
		return ends(ev->state.site.library, sizeof(ev->state.site.library)) &&
		       ends(ev->state.site.file, sizeof(ev->state.site.file));
	case LIEN_STATE_allocation:
		return ev->size == least || (ev->size >= LIEN_EVENT_SIZE(state.allocation) &&
						    ends(ev->state.allocation.tag, LIEN_TAG_BYTES));
	case LIEN_STATE_handle:
		return ev->size == least ||
		       (ev->size >= LIEN_EVENT_SIZE(state.handle) &&
			       ends(ev->state.handle.raw_to, sizeof(ev->state.handle.raw_to)));
	case LIEN_STATE_mapping:
		return accesses_fit(ev, ev->state.mapping.count, least);
	default:
		return true;
	}
}

bool lien_event_tagged(const struct lien_event *ev)
{
	return ev->size >= LIEN_EVENT_SIZE(tagged) && ev->tagged.tag[0] &&
	       LIEN_KIND_MAKES_MEMORY(lien_call_kind(ev->type));
}

bool lien_event_valid(const struct lien_event *ev)
{
	const uint16_t known = LIEN_EVENT_ENTRY | LIEN_EVENT_CONTROL | LIEN_EVENT_PARTIAL |
			       LIEN_EVENT_IMPORTED | LIEN_EVENT_INFERRED | LIEN_EVENT_FOUND |
			       LIEN_EVENT_TRANSLATED | LIEN_EVENT_DOUBTFUL;
	const struct shape *shape;
	unsigned size;

	if (ev->size < LIEN_EVENT_HEADER || ev->size > sizeof(*ev) || ev->size % 8)
		return false;
	if (ev->type >= LIEN_CALL_MAX || ev->outer >= LIEN_CALL_MAX || ev->flags & ~known)
		return false;
	shape = &shapes[ev->type];
	size = shape->kind ? least[shape->kind] : shape->least;
	if (!size || ev->size < size)
		return false;
	if (ev->flags & LIEN_EVENT_ENTRY && !(shape->flags & LIEN_CALL_RELEASES))
		return false;
	return body_valid(ev, size);
}

enum lien_kind lien_call_kind(unsigned int call)
{
	return call < LIEN_CALL_MAX ? shapes[call].kind : LIEN_KIND_none;
}

bool lien_call_releases(unsigned int call)
{
	return call < LIEN_CALL_MAX && shapes[call].kind && shapes[call].flags & LIEN_CALL_RELEASES;
}

int lien_event_library(unsigned int call)
{
	return call < LIEN_CALL_MAX ? shapes[call].library : 0;
}

const char *lien_call_name(unsigned int call)
{
	static const char *const names[LIEN_CALL_MAX] = {
#define NAME(name, number, library, symbol, flags, kind) [number] = symbol,
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

enum lien_origin lien_origin_of(unsigned call)
{
	static const uint8_t origins[LIEN_KIND_COUNT] = {
#define ORIGIN(kind, least, origin) [LIEN_KIND_##kind] = LIEN_ORIGIN_##origin,
		LIEN_KINDS(ORIGIN)
#undef ORIGIN
	};

	return origins[lien_call_kind(call)];
}

const char *lien_origin_name(enum lien_origin origin)
{
	static const char *const names[LIEN_ORIGIN_COUNT] = {
#define NAME(origin, text) [LIEN_ORIGIN_##origin] = text,
		LIEN_ORIGINS(NAME)
#undef NAME
	};

	return names[origin];
}
