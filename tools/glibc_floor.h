/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Included before everything: newer headers of glibc (2.38) replace strtol() and sscanf() by
 * __isoc23_ variants, with which the program would not start on older systems.
 */
#ifndef LIEN_GLIBC_FLOOR_H
#define LIEN_GLIBC_FLOOR_H

#include <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#endif
