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

/* All traced calls that the library may have; fd: its file. 0, or the errors of lien_elf_open(). */
int lien_calls_look_up(struct lien_call_places *places, int fd, enum lien_library library);

/* The symbol of that name, which lives forever; NULL when no traced call has it. */
const char *lien_calls_symbol(const char *name);

/* More functions than any library has. */
#define LIEN_PROBE_SET_MAX 4096

/* Places for one program. */
struct lien_probe_set {
	uint64_t offsets[LIEN_PROBE_SET_MAX], cookies[LIEN_PROBE_SET_MAX];
	unsigned count;
};

/*
 * The functions at which a gate holds threads back, into *set: with `all`, those that work on any
 * memory, else those that work on NCCL's. 0, the errors of lien_elf_open(), -E2BIG: the library has
 * more functions than can be held; -EOPNOTSUPP: where one of them is, is decided at load time.
 */
int lien_calls_gated(struct lien_probe_set *set, int fd, enum lien_library library, bool all,
	unsigned attachment);
/* What a call is named, traced or held; never NULL. */
const char *lien_calls_name(unsigned number);

/* `attachment`: the number in the cookie. False: another name of a function that is in it, which
 * would have each call seen twice. */
bool lien_probe_set_add(
	struct lien_probe_set *set, const struct lien_call_place *place, unsigned attachment);

#endif
