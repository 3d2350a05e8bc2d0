/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds glibc's dlsym() and dlvsym() without a lookup by name, which would find ours. */
#ifndef LIEN_CONTROL_GENUINE_H
#define LIEN_CONTROL_GENUINE_H

enum lien_genuine {
	LIEN_GENUINE_DLSYM,
	LIEN_GENUINE_DLVSYM,
	LIEN_GENUINE_COUNT,
};

/* Returns NULL if not found. */
void *lien_genuine(enum lien_genuine which);

#endif
