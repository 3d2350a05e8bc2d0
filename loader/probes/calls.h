/* SPDX-License-Identifier: BSD-2-Clause */
/* The probed calls, and their places in a library's file. Thread-safe. */
#ifndef LIEN_LOADER_CALLS_H
#define LIEN_LOADER_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loader/probes/functions.h"

struct lien_call_place {
	const struct lien_probed_call *call;
	/* of the first instruction that can take a probe, in the file; UINT64_MAX: the file lacks
	 * the call */
	uint64_t offset;
};

/* The traced calls, and as many functions that lien does not know (functions.h). */
#define LIEN_CALL_PLACES_MAX 512

struct lien_call_places {
	struct lien_call_place places[LIEN_CALL_PLACES_MAX];
	unsigned count;
	char build_id[41]; /* hexadecimal; empty: none */
};

/* Finds all traced calls that the library may have, and all functions that may have memory held
 * unknown to lien, which are calls of LIEN_CALL_CU_UNKNOWN or _RDMA_UNKNOWN; fd: its file. Returns
 * 0; -E2BIG: too many of those; or the errors of lien_elf_exports(). */
int lien_calls_look_up(struct lien_call_places *places, int fd, enum lien_library library);

/* More functions than any library has. */
#define LIEN_PROBE_SET_MAX 4096

/* The places of one program. */
struct lien_probe_set {
	uint64_t offsets[LIEN_PROBE_SET_MAX], cookies[LIEN_PROBE_SET_MAX];
	unsigned count;
};

/*
 * Fills *set with the functions at which a gate holds threads back: with `all` those that work on
 * any memory, otherwise those that work on NCCL's. The cookies have no attachment's number. Returns
 * 0, the errors of lien_elf_exports(); -E2BIG: more functions than can be held; -EOPNOTSUPP: one of
 * them is resolved at load time.
 */
int lien_calls_gated(struct lien_probe_set *set, int fd, enum lien_library library, bool all);

/* Adds a place, unless the function is already in the set under another name, which would report
 * each call twice. `attachment`: the number for the cookie. */
void lien_probe_set_add(
	struct lien_probe_set *set, const struct lien_call_place *place, unsigned attachment);

#endif
