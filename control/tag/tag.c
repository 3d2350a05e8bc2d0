// SPDX-License-Identifier: BSD-2-Clause
#include "control/tag/tag.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <lien/locked.h>

#include "control/driver/thread.h"

/* What a thread has pushed that ends without popping it is never freed. */
struct pushed {
	struct pushed *outer;
	unsigned depth;
	char name[LIEN_TAG_SIZE];
};

/* In the static part of thread-local storage: it lies at the same offset in each thread, where the
 * kernel side finds it. Also in a library that is opened later: glibc keeps some room for that. */
#define IN_THREAD static __thread __attribute__((tls_model("initial-exec")))

IN_THREAD const char *volatile current; /* what the kernel side reads */
IN_THREAD struct pushed *innermost;
IN_THREAD const char *cover;

int64_t lien_tag_offset(void)
{
	return (intptr_t)&current - (intptr_t)__builtin_thread_pointer();
}

int lien_tag_is_name(const char *name)
{
	size_t i;

	for (i = 0; name && name[i]; i++)
		if (i == LIEN_TAG_SIZE - 1 || name[i] < ' ' || name[i] > '~')
			return 0;
	return name && i;
}

static void show(void)
{
	current = cover ? cover : innermost ? innermost->name : NULL;
}

void lien_tag_cover(const char *name)
{
	cover = name;
	show();
}

__attribute__((visibility("default"))) int lien_tag_push(const char *name)
{
	const unsigned depth = innermost ? innermost->depth : 0;
	struct pushed *pushed;

	if (!lien_tag_is_name(name))
		return -EINVAL;
	if (depth == LIEN_TAG_DEPTH)
		return -E2BIG;
	pushed = malloc(sizeof(*pushed));
	if (!pushed)
		return -ENOMEM;
	pushed->outer = innermost;
	pushed->depth = depth + 1;
	strcpy(pushed->name, name);
	innermost = pushed;
	show();
	return 0;
}

__attribute__((visibility("default"))) int lien_tag_pop(void)
{
	struct pushed *pushed = innermost;

	if (!pushed)
		return -ENOENT;
	innermost = pushed->outer;
	show();
	free(pushed);
	return 0;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static pthread_mutex_t lock LIEN_ZERO_IN_CHILD;
static char (*numbered)[LIEN_TAG_SIZE];
static unsigned count;

void (*lien_tag_begin)(void);

uint32_t lien_tag_number(void)
{
	const char *name;
	unsigned i = 0;

	if (!current && lien_tag_begin)
		lien_tag_begin();
	name = current;
	if (!name)
		return 0;
	LIEN_LOCKED(&lock);
	if (!numbered)
		numbered = malloc(LIEN_TAG_NUMBERS * sizeof(*numbered));
	if (!numbered)
		return LIEN_TAG_NUMBERS + 1;
	while (i < count && strcmp(numbered[i], name))
		i++;
	if (i == count && count < LIEN_TAG_NUMBERS)
		strcpy(numbered[count++], name);
	return i + 1; /* those after the last number share one */
}
