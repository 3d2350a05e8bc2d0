/* SPDX-License-Identifier: BSD-2-Clause */
/* What the kernel says of a process: /proc/PID/status, or that of a thread; and whose it is. Never
 * blocks. */
#ifndef LIEN_STATUS_H
#define LIEN_STATUS_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_STATUS_SIZE 8192 /* more than its length */

/* Reads all of it, as text; tid 0: the process's. Returns 0 or -errno. */
int lien_status_read(uint32_t pid, uint32_t tid, char text[LIEN_STATUS_SIZE]);
/* Returns the text after "Field:" and blanks; NULL: no such field. */
const char *lien_status_field(const char *text, const char *field);
/* Returns the last number of a field, in base 10 or 16; -1: none. */
long long lien_status_last(const char *text, const char *field, int base);

/* Reads the file and returns the last number of a field. For "NSpid" that is the number that the
 * process itself sees. */
long long lien_status_of(uint32_t pid, uint32_t tid, const char *field, int base);

#define LIEN_USER_GONE UINT32_MAX

/*
 * Returns the account that a process is charged to, where a user's consumption is limited: the user
 * who made the outermost user namespace that contains the process but not us, because a user can
 * have thousands of ids there. Without such a namespace, returns the process's real user id: a
 * set-user-id program is charged to its caller. LIEN_USER_GONE: there is no such process.
 */
uint32_t lien_user_of(uint32_t pid);

#endif
