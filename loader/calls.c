// SPDX-License-Identifier: BSD-2-Clause
#include "loader/calls.h"

#include <string.h>
#include <unistd.h>

#include <lien/probe.h>
#include "loader/elf_symbols.h"

static const struct lien_probed_call calls[] = {
#define CALL_ROW(name, number, lib, symbol, flags)                                                 \
	{symbol, LIEN_CALL_##name, LIEN_LIB_##lib, flags, true},
	LIEN_CALLS(CALL_ROW)
#undef CALL_ROW
#define CALL_ROW(name, number, lib, symbol, flags)                                                 \
	{symbol, LIEN_CALL_##name, LIEN_LIB_##lib, flags, false},
		LIEN_GATE_CALLS(CALL_ROW)
#undef CALL_ROW
};

#define CALLS (sizeof(calls) / sizeof(calls[0]))

const char *lien_calls_symbol(const char *name)
{
	unsigned i;

	for (i = 0; i < CALLS; i++)
		if (calls[i].traced && !strcmp(calls[i].symbol, name))
			return calls[i].symbol;
	return NULL;
}

/*
 * Behind an endbr64, which changes nothing. The kernel emulates most instructions that functions
 * begin with; this one it would run in a copy, and trap once more.
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

int lien_calls_look_up(struct lien_call_places *places, int fd, enum lien_library library)
{
	struct lien_elf_lookup found[CALLS] = {0};
	struct lien_elf *elf;
	unsigned i;
	int err;

	memset(places, 0, sizeof(*places));
	err = lien_elf_open(fd, &elf);
	if (err)
		return err;
	for (i = 0; i < CALLS; i++)
		if (calls[i].library == library) {
			found[places->count].name = calls[i].symbol;
			places->places[places->count++].call = &calls[i];
		}
	err = lien_elf_functions(elf, found, places->count);
	if (lien_elf_build_id(elf, places->build_id, sizeof(places->build_id)))
		places->build_id[0] = '\0';
	lien_elf_close(elf);
	for (i = 0; i < places->count; i++)
		places->places[i].offset =
			found[i].result ? UINT64_MAX : behind_endbr(fd, found[i].file_offset);
	return err < 0 ? err : 0;
}

bool lien_probe_set_add(
	struct lien_probe_set *set, const struct lien_call_place *place, unsigned attachment)
{
	unsigned i;

	for (i = 0; i < set->count; i++)
		if (set->offsets[i] == place->offset)
			return false;
	set->offsets[set->count] = place->offset;
	set->cookies[set->count++] =
		LIEN_COOKIE(place->call->number, place->call->flags, attachment);
	return true;
}
