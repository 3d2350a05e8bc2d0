/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which of a library's functions the gate holds threads back at. Every exported function is held
 * unless a table here says why it is harmless, so one that a later CUDA or NCCL adds is held by
 * default. Facts: cuda.h of CUDA 13.0, nccl.h of NCCL 2.30. Pure.
 */
#ifndef LIEN_GATED_H
#define LIEN_GATED_H

#include <stdbool.h>

#include <lien/calls.h>
#include <lien/probe.h>

enum lien_gating {
	LIEN_GATING_NONE, /* harmless, or no function of the library's interface */
	LIEN_GATING_ALL,  /* held while more than NCCL's memory is moved or away */
	LIEN_GATING_NCCL, /* held also while it is NCCL's alone */
};

/* `touches`, if not NULL: how its arguments say which memory it works on (enum lien_touches). */
enum lien_gating lien_gated(enum lien_library library, const char *symbol, unsigned *touches);

/* Why a function is not held; NULL: it is. */
const char *lien_gated_harmless(enum lien_library library, const char *symbol);

/*
 * The number of a function that has none in calls.h, for cookies and map `held`. Made from its
 * name, so that another agent makes the same. lien_gated_name() of it is the name again once it has
 * been given to lien_gated_number(); two names may have the same number, and the first one is told.
 * Both are thread-safe.
 */
unsigned lien_gated_number(const char *symbol);
const char *lien_gated_name(unsigned number);

/* The tables, for tests: the names in them, NULL after the last. */
const char *lien_gated_listed(enum lien_library library, unsigned index);

#endif
