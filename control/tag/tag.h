/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The tag of the calling thread (include/lien/tag.h, docs/internals/seeing.md). The kernel side
 * reads it whenever the thread allocates, from a variable of the thread's own: no call tells the
 * agent.
 */
#ifndef LIEN_CONTROL_TAG_H
#define LIEN_CONTROL_TAG_H

#include <stdint.h>

#include <lien/tag.h>

/* Returns where a thread's tag (char *; NULL: none) lies, relative to its thread pointer: the same
 * in all threads. Never 0. */
int64_t lien_tag_offset(void);

/* If set: called by lien_tag_number() in a thread that has no tag, and may cover that. */
extern void (*lien_tag_begin)(void) __attribute__((visibility("hidden")));

/* Returns a number that stands for the calling thread's tag in this process; 0: none. Equal tags
 * have equal numbers, except in a process with more than LIEN_TAG_NUMBERS tags. */
#define LIEN_TAG_NUMBERS 1024
uint32_t lien_tag_number(void);

/* Is it 1 to 63 printable ASCII characters? */
int lien_tag_is_name(const char *name);

/* Lays a tag over what the calling thread has pushed; NULL: takes it away again. The caller keeps
 * the text until it lays another one over it, or the thread ends. */
void lien_tag_cover(const char *name);

#endif
