/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Decides which functions may, unknown to lien, have memory held by what they make. A traced call
 * is followed; for the others a table says why they hold none that could be moved. A function in
 * neither, such as one that a later version adds, may hold any: a process that has called it is not
 * moved. Sources: cuda.h of CUDA 13.0 to 13.3, NCCL 2.30 and 2.32, verbs.h and mlx5dv.h of
 * rdma-core 65, gdrapi.h of GDRCopy 2.6. Pure.
 */
#ifndef LIEN_HOLDERS_H
#define LIEN_HOLDERS_H

#include <stdbool.h>

#include <lien/calls.h>

/* Returns why a function that is not traced has no movable memory held; NULL: it may, or it is no
 * function of the library's interface. */
const char *lien_holds_nothing(enum lien_library library, const char *symbol);
/* Is it a function of the library's interface for which that is not known, and which is not traced?
 */
bool lien_holds_unknown(enum lien_library library, const char *symbol);
/* For tests: returns the names in the tables by index, NULL after the last. Those of network cards
 * and GDRCopy are in one table; an asterisk at the end stands for anything. */
const char *lien_holders_listed(enum lien_library library, unsigned index);

#endif
