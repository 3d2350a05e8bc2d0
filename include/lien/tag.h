/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tags: a name for the GPU and pinned host memory that a thread allocates from now on. The agent
 * shows memory by tag, and offloads and restores by it (docs/tags.md).
 *
 * The functions are in liblien-control.so, which `lien run` puts into a process. A program that
 * also runs without it need not link with it: the functions below are weak, so their addresses are
 * NULL there, and LIEN_TAG_PUSH() and LIEN_TAG_POP() then do nothing. In a program that is not
 * position-independent, and in a process that got the library later (`lien attach`), weak symbols
 * stay NULL. There dlsym() finds them in dlopen("liblien-control.so", RTLD_LAZY | RTLD_NOLOAD).
 *
 * Both may be called from any thread, and concern the calling thread alone. A new thread has no
 * tag. They call neither CUDA nor the agent, and take well under a microsecond.
 */
#ifndef LIEN_TAG_H
#define LIEN_TAG_H

#ifdef __cplusplus
extern "C" {
#endif

/* Room for a tag with its terminator: a tag has 1 to 63 characters. */
#define LIEN_TAG_SIZE 64
/* The most tags that one thread can have pushed. */
#define LIEN_TAG_DEPTH 64

/*
 * The calling thread's allocations have this tag until the matching lien_tag_pop(). With nested
 * tags, the innermost counts. The name is copied: 1 to 63 printable ASCII characters. Returns 0,
 * -EINVAL: not such a name; -E2BIG: LIEN_TAG_DEPTH tags are pushed already; -ENOMEM. After a
 * failure the thread's tag is what it was, and there is nothing to pop.
 */
extern int lien_tag_push(const char *name) __attribute__((weak));
/* Returns 0, or -ENOENT: the thread has pushed no tag. */
extern int lien_tag_pop(void) __attribute__((weak));

#define LIEN_TAG_PUSH(name) (lien_tag_push ? lien_tag_push(name) : 0)
#define LIEN_TAG_POP()	    (lien_tag_pop ? lien_tag_pop() : 0)

#ifdef __cplusplus
}
#endif

#endif
