/* SPDX-License-Identifier: BSD-2-Clause */
/* Whose account a process is on, where what a user may use up is limited. */
#ifndef LIEN_USER_H
#define LIEN_USER_H

#include <stdint.h>

#define LIEN_USER_GONE UINT32_MAX

/*
 * The user who made the outermost user namespace that the process is in and we are not: a user can
 * have thousands of ids there, and they are all on this account. Without such a namespace its real
 * user id: a set-user-id program is on its caller's account. LIEN_USER_GONE: there is no such
 * process.
 */
uint32_t lien_user_of(uint32_t pid);

#endif
