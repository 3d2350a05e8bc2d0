/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Decides which functions of the driver may have memory held, by whatever they make, without lien
 * knowing. A traced call is followed; of the others a table says why they hold none that could be
 * moved. A function in neither, such as one that a later driver adds, may hold any: a process that
 * has called it is not moved. Source: cuda.h of CUDA 13.0 to 13.3. Pure.
 */
#ifndef LIEN_HOLDERS_H
#define LIEN_HOLDERS_H

#include <stdbool.h>

/* Returns why a function that is not traced has no movable memory held; NULL: it may, or it is no
 * function of the driver's interface. */
const char *lien_holds_nothing(const char *symbol);
/* Is it a function of the driver's interface of which that is not known, and which is not traced?
 */
bool lien_holds_unknown(const char *symbol);
/* For tests: returns the names in the tables by index, NULL after the last. */
const char *lien_holders_listed(unsigned index);

#endif
