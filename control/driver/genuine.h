/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds functions, such as glibc's dlsym(), without a lookup by name, which would find ours. */
#ifndef LIEN_CONTROL_GENUINE_H
#define LIEN_CONTROL_GENUINE_H

enum lien_genuine {
	LIEN_GENUINE_DLSYM,
	LIEN_GENUINE_DLVSYM,
	LIEN_GENUINE_COUNT,
};

/* Returns NULL if not found. */
void *lien_genuine(enum lien_genuine which);
/* Returns a function of a loaded library whose file's name begins with this ("": any), other than
 * `ours`; NULL: not found. */
void *lien_genuine_of(const char *library, const char *name, const void *ours);

#endif
