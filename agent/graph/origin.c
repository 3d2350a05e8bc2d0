// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"

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
