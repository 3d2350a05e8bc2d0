// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/calls.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "loader/discover/elf_symbols.h"
#include "loader/probes/functions.h"

/*
 * Skips an endbr64, which has no effect. The kernel emulates most first instructions of functions;
 * it would run this one in a copy, and trap once more.
 */
static uint64_t behind_endbr(int fd, uint64_t offset)
{
	static const unsigned char endbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
	unsigned char first[sizeof(endbr64)];

	if (pread(fd, first, sizeof(first), offset) == sizeof(first) &&
		!memcmp(first, endbr64, sizeof(first)))
		return offset + sizeof(first);
	return offset;
}

struct looking {
	struct lien_call_places *places;
	enum lien_library library;
	int fd;
};

static bool is_unknown(const struct lien_probed_call *call)
{
	return call->number == LIEN_CALL_CU_UNKNOWN || call->number == LIEN_CALL_RDMA_UNKNOWN;
}

/* Functions that may have memory held are this call, whatever they are called. */
static const struct lien_probed_call *unknown_of(enum lien_library library)
{
	const unsigned number = library == LIEN_LIB_CUDA || library == LIEN_LIB_NCCL
					? LIEN_CALL_CU_UNKNOWN
					: LIEN_CALL_RDMA_UNKNOWN;
	unsigned i;

	for (i = 0; lien_functions_traced(i)->number != number; i++)
		;
	return lien_functions_traced(i);
}

static int look_at(void *context, const struct lien_elf_export *export)
{
	const struct looking *looking = context;
	struct lien_call_places *places = looking->places;
	struct lien_call_place *place = places->places, *end = place + places->count;

	if (export->file_offset == UINT64_MAX)
		return 0;
	while (place < end &&
		(is_unknown(place->call) || strcmp(place->call->symbol, export->name)))
		place++;
	if (place == end) {
		if (!lien_function_may_hold(looking->library, export->name))
			return 0;
		if (places->count == LIEN_CALL_PLACES_MAX)
			return -E2BIG;
		places->count++;
		*place = (struct lien_call_place){unknown_of(looking->library), UINT64_MAX};
	}
	if (place->offset == UINT64_MAX || !export->old)
		place->offset = behind_endbr(looking->fd, export->file_offset);
	return 0;
}

int lien_calls_look_up(struct lien_call_places *places, int fd, enum lien_library library)
{
	struct looking looking = {places, library, fd};
	const struct lien_probed_call *call;
	unsigned i;

	memset(places, 0, sizeof(*places));
	for (i = 0; (call = lien_functions_traced(i)); i++)
		if (call->library == library && !is_unknown(call))
			places->places[places->count++] =
				(struct lien_call_place){call, UINT64_MAX};
	if (lien_elf_build_id(fd, places->build_id, sizeof(places->build_id)))
		places->build_id[0] = '\0';
	return lien_elf_exports(fd, look_at, &looking);
}

/* Returns the index of the place, or set->count if it is not in the set. */
static unsigned place_in(const struct lien_probe_set *set, uint64_t offset)
{
	unsigned i;

	for (i = 0; i < set->count && set->offsets[i] != offset; i++)
		;
	return i;
}

static void add(struct lien_probe_set *set, uint64_t offset, uint64_t cookie)
{
	set->offsets[set->count] = offset;
	set->cookies[set->count++] = cookie;
}

void lien_probe_set_add(
	struct lien_probe_set *set, const struct lien_call_place *place, unsigned attachment)
{
	if (place_in(set, place->offset) == set->count)
		add(set, place->offset,
			LIEN_COOKIE(place->call->number, place->call->flags, attachment));
}

struct gating {
	struct lien_probe_set *set;
	int fd;
	enum lien_library library;
	bool all;
};

/* Graphs may contain collectives. Captures do not begin while ranks come level: asking the devices
 * could spoil them (control/orders/drain.c). */
static bool meets(enum lien_library library, const struct lien_probed_call *call)
{
	return library == LIEN_LIB_NCCL ||
	       (call && (call->number == LIEN_CALL_CU_GRAPH_LAUNCH ||
				call->number == LIEN_CALL_CU_GRAPH_LAUNCH_PTSZ ||
				LIEN_CALL_BEGINS_CAPTURE(call->number)));
}

static unsigned gate_flags(enum lien_gating how, unsigned touches, bool meets)
{
	return LIEN_CALL_TOUCHES_FLAG(touches) | (how == LIEN_GATING_ALL ? LIEN_GATED_ALL : 0) |
	       (meets ? LIEN_CALL_MEETS : 0);
}

/* A function has several names (all of NCCL's have two). The call is the one that we know by any of
 * them, it touches only what all names agree on, and it is held if any name is. */
static void merge(uint64_t *cookie, enum lien_library library, const char *symbol,
	enum lien_gating how, unsigned touches)
{
	const struct lien_probed_call *call = lien_function_call(symbol);
	unsigned flags = LIEN_COOKIE_FLAGS(*cookie), before = LIEN_CALL_TOUCHES(flags);

	if (!(flags & LIEN_GATED_ALL))
		how = LIEN_GATING_NCCL;
	*cookie = LIEN_COOKIE(call ? call->number : LIEN_COOKIE_CALL(*cookie),
		gate_flags(how, touches == before ? touches : LIEN_TOUCHES_ANY,
			flags & LIEN_CALL_MEETS || meets(library, call)),
		0);
}

static int add_gated(void *context, const struct lien_elf_export *export)
{
	const char *symbol = export->name;
	struct gating *gating = context;
	struct lien_probe_set *set = gating->set;
	const struct lien_probed_call *call = lien_function_call(symbol);
	enum lien_touches touches;
	enum lien_gating how = lien_function_gating(gating->library, symbol, &touches);
	uint64_t offset = export->file_offset;
	unsigned i;

	if (!export->function || how == LIEN_GATING_NONE ||
		(how == LIEN_GATING_ALL && !gating->all))
		return 0;
	if (offset == UINT64_MAX)
		return -EOPNOTSUPP;
	offset = behind_endbr(gating->fd, offset);
	i = place_in(set, offset);
	if (i < set->count) {
		merge(&set->cookies[i], gating->library, symbol, how, touches);
		return 0;
	}
	if (set->count == LIEN_PROBE_SET_MAX)
		return -E2BIG;
	add(set, offset,
		LIEN_COOKIE(lien_function_number(symbol),
			gate_flags(how, touches, meets(gating->library, call)), 0));
	return 0;
}

static void swap(struct lien_probe_set *set, unsigned a, unsigned b)
{
	uint64_t offset = set->offsets[a], cookie = set->cookies[a];

	set->offsets[a] = set->offsets[b];
	set->cookies[a] = set->cookies[b];
	set->offsets[b] = offset;
	set->cookies[b] = cookie;
}

/* Probes are inserted one after the other while the process runs: if the probes see a group begin,
 * they must see it end. */
static void order_groups(struct lien_probe_set *set)
{
	unsigned i;

	for (i = 0; i < set->count; i++)
		if (LIEN_COOKIE_CALL(set->cookies[i]) == LIEN_CALL_NCCL_GROUP_END)
			swap(set, i, 0);
	for (i = 0; i < set->count; i++)
		if (LIEN_COOKIE_CALL(set->cookies[i]) == LIEN_CALL_NCCL_GROUP_START)
			swap(set, i, set->count - 1);
}

int lien_calls_gated(struct lien_probe_set *set, int fd, enum lien_library library, bool all)
{
	struct gating gating = {set, fd, library, all};
	int err;

	set->count = 0;
	err = lien_elf_exports(fd, add_gated, &gating);
	order_groups(set);
	return err;
}
