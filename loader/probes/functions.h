/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What lien knows of each function that the libraries export.
 *
 * At which of them the gate holds threads back: every exported function is held unless a table says
 * why it is harmless, so functions that a later CUDA or NCCL adds are held by default. Of the
 * libraries of network cards and of GDRCopy those are held that register memory, or may.
 *
 * Which may, unknown to lien, have memory held by what they make. A traced call is followed; for
 * the others a table says why they hold none that could be moved. A function in neither, such as
 * one that a later version adds, may hold any: a process that has called it is not moved.
 *
 * Sources: cuda.h of CUDA 13.0 to 13.3, nccl.h of NCCL 2.30 and 2.32, verbs.h and mlx5dv.h of
 * rdma-core 65, gdrapi.h of GDRCopy 2.6. Pure and thread-safe.
 */
#ifndef LIEN_FUNCTIONS_H
#define LIEN_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include <lien/calls.h>
#include <lien/probe.h>

/* Never freed. */
struct lien_probed_call {
	const char *symbol;
	enum lien_call number;
	enum lien_library library;
	unsigned flags;
};

/* Returns the traced calls by index from 0; NULL after the last. */
const struct lien_probed_call *lien_functions_traced(unsigned index);
/* Returns the traced call with that symbol, or the one that only the gate knows by number; NULL. */
const struct lien_probed_call *lien_function_call(const char *symbol);

enum lien_gating {
	LIEN_GATING_NONE, /* harmless, or no function of the library's interface */
	LIEN_GATING_ALL,  /* held while memory other than NCCL's is moved or away */
	LIEN_GATING_NCCL, /* held also while only NCCL's is */
};

/* Does the library have functions that may be held? */
static inline bool lien_gated_library(enum lien_library library)
{
	return library == LIEN_LIB_CUDA || library == LIEN_LIB_NCCL || library >= LIEN_LIB_IBVERBS;
}

/* `touches` receives how its arguments name the memory that it works on. */
enum lien_gating lien_function_gating(
	enum lien_library library, const char *symbol, enum lien_touches *touches);
/* Is it a function of the library's interface that is not traced, and may have memory held? */
bool lien_function_may_hold(enum lien_library library, const char *symbol);

/*
 * Returns the number of a call, for cookies and map `held`. If it has none in calls.h, it is made
 * from the name, so that another agent makes the same one.
 */
unsigned lien_function_number(const char *symbol);
/* Returns the name of a traced or held call; never NULL. A number that was made stands for the
 * first name that lien_function_number() has made it from. */
const char *lien_calls_name(unsigned number);

#endif
