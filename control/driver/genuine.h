/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds functions, such as glibc's dlsym(), without a lookup by name, which would find ours. On the
 * way of an application's dlsym() nothing of libc is called: sanitizers intercept it, and look
 * functions up before they are ready. */
#ifndef LIEN_CONTROL_GENUINE_H
#define LIEN_CONTROL_GENUINE_H

enum lien_genuine {
	LIEN_GENUINE_DLSYM,
	LIEN_GENUINE_DLVSYM,
	LIEN_GENUINE_COUNT,
};

/* strcmp() == 0 */
static inline int lien_same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* Returns NULL if not found. */
void *lien_genuine(enum lien_genuine which);
/* Returns a function of a loaded library whose file's name begins with this ("": any), other than
 * `ours`; NULL: not found. */
void *lien_genuine_of(const char *library, const char *name, const void *ours);

#endif
