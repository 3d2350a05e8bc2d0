/* SPDX-License-Identifier: BSD-2-Clause */
/* /proc/PID/status, and that of a thread. Reading it waits for nobody. */
#ifndef LIEN_STATUS_H
#define LIEN_STATUS_H

#include <stddef.h>
#include <stdint.h>

#define LIEN_STATUS_SIZE 8192 /* longer than it is */

/* All of it, as text; tid 0: the process's. 0 or -errno. */
int lien_status_read(uint32_t pid, uint32_t tid, char text[LIEN_STATUS_SIZE]);
/* Behind "Field:" and blanks; NULL: it is not there. */
const char *lien_status_field(const char *text, const char *field);
/* The last number of a field, in base 10 or 16; -1: there is none. */
long long lien_status_last(const char *text, const char *field, int base);

/* The same without the text. Of "NSpid" the last is what the process itself sees. */
long long lien_status_of(uint32_t pid, uint32_t tid, const char *field, int base);

#endif
