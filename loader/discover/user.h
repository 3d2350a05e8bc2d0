/* SPDX-License-Identifier: BSD-2-Clause */
/* The account that a process is charged to, where a user's consumption is limited. */
#ifndef LIEN_USER_H
#define LIEN_USER_H

#include <stdint.h>

#define LIEN_USER_GONE UINT32_MAX

/*
 * Returns the user who made the outermost user namespace that contains the process but not us: a
 * user can have thousands of ids there, and all of them share this account. Without such a
 * namespace, returns the process's real user id: a set-user-id program is charged to its caller.
 * LIEN_USER_GONE: there is no such process.
 */
uint32_t lien_user_of(uint32_t pid);

#endif
