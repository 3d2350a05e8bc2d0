/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Decides at which of a library's functions the gate holds threads back. Every exported function is
 * held unless a table here says why it is harmless, so functions that a later CUDA or NCCL adds are
 * held by default. Of the libraries of network cards and of GDRCopy those are held that register
 * memory, or may (holders.h). Sources: cuda.h of CUDA 13.0, nccl.h of NCCL 2.30, verbs.h and
 * mlx5dv.h of rdma-core 65, gdrapi.h of GDRCopy 2.6. Pure.
 */
#ifndef LIEN_GATED_H
#define LIEN_GATED_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/calls.h>
#include <lien/probe.h>

enum lien_gating {
	LIEN_GATING_NONE, /* harmless, or no function of the library's interface */
	LIEN_GATING_ALL,  /* held while memory other than NCCL's is moved or away */
	LIEN_GATING_NCCL, /* held also while only NCCL's is */
};

/* Does the library have functions that may be held? */
bool lien_gated_library(enum lien_library library);
/* `touches`, if not NULL, receives how its arguments name the memory that it works on (enum
 * lien_touches). */
enum lien_gating lien_gated(enum lien_library library, const char *symbol, unsigned *touches);

/* Functions of which the same is true. Without suffixes ("_v2" and so on, "_ptsz", "_ptds"): each
 * name stands for all versions and variants. A table of these ends with a row of NULLs. */
struct lien_reason {
	const char *why;
	const char *const *names; /* NULL after the last */
};

/* Returns why, or NULL: the function is not in the table. */
const char *lien_gated_reason(const struct lien_reason *reasons, const char *symbol);
/* Is the symbol's beginning of that length among the names? */
bool lien_gated_among(const char *const *names, const char *symbol, size_t length);
/* For tests: returns the table's names by index. NULL: it has fewer, and *index is how far behind
 * them that would be. */
const char *lien_gated_nth(const struct lien_reason *reasons, unsigned *index);

/* Returns why a function is not held; NULL: it is held. */
const char *lien_gated_harmless(enum lien_library library, const char *symbol);

/*
 * Returns the number of a function that has none in calls.h, for cookies and map `held`. The number
 * is made from the name, so that another agent makes the same one. lien_gated_name() maps it back
 * to the name after lien_gated_number() has seen that name; if two names have the same number, it
 * returns the first. Both are thread-safe.
 */
unsigned lien_gated_number(const char *symbol);
const char *lien_gated_name(unsigned number);

/* Is it a function of the library's interface, by its name? */
bool lien_gated_is_interface(enum lien_library library, const char *symbol);
/* Returns the length without "_v2" and "_ptsz", which tell versions and variants of a call. */
size_t lien_gated_without_version(const char *symbol);

/* For tests: returns the names in the tables by index, NULL after the last. */
const char *lien_gated_listed(enum lien_library library, unsigned index);

#endif
