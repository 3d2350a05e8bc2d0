/* SPDX-License-Identifier: BSD-2-Clause */
/* The calls that are probed, and where a library's file has them. Thread-safe. */
#ifndef LIEN_LOADER_CALLS_H
#define LIEN_LOADER_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include <lien/calls.h>

/* Lives forever. */
struct lien_probed_call {
	const char *symbol;
	enum lien_call number;
	enum lien_library library;
	unsigned flags;
	bool traced; /* else it is only held back */
};

struct lien_call_place {
	const struct lien_probed_call *call;
	/* In the file, of the first instruction that a probe can be at; UINT64_MAX: the file does
	 * not have the call. */
	uint64_t offset;
};

struct lien_call_places {
	struct lien_call_place places[LIEN_CALL_MAX];
	unsigned count;
	char build_id[41]; /* hexadecimal; empty: it has none */
};

/* All calls that the library may have; fd: its file. 0, or the errors of lien_elf_open(). */
int lien_calls_look_up(struct lien_call_places *places, int fd, enum lien_library library);

/* The symbol of that name, which lives forever; NULL when no traced call has it. */
const char *lien_calls_symbol(const char *name);

/* Places for one program. */
struct lien_probe_set {
	uint64_t offsets[LIEN_CALL_MAX], cookies[LIEN_CALL_MAX];
	unsigned count;
};

/* `attachment`: the number in the cookie. False: another name of a function that is in it, which
 * would have each call seen twice. */
bool lien_probe_set_add(
	struct lien_probe_set *set, const struct lien_call_place *place, unsigned attachment);

#endif
