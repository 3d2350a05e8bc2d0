// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <stdlib.h>

#include <lien/sanitizer.h>

#include "control/plain/memory.h"

/* The linker puts a preloaded library into the program's scope, and dlopen() puts one that came
 * later into a scope of its own. */
static int is_preloaded(void)
{
	void *program = dlopen(NULL, RTLD_LAZY | RTLD_NOLOAD);
	int found;

	if (!program)
		return 0;
	found = lien_genuine_dlsym(program, "cuMemAlloc_v2") == lien_plain_cuMemAlloc_v2;
	dlclose(program);
	return found;
}

static int is_plain(CUdeviceptr address)
{
	struct lien_heap_block block;

	return lien_plain_find(address, &block) || lien_plain_find_opened(address, &block);
}

static int is_off(void)
{
	const char *off = getenv("LIEN_PLAIN");

	if (off && *off)
		return *off != '0';
	return getenv(LIEN_SANITIZER_VARIABLE) != NULL;
}

void lien_plain_start(void)
{
	if (is_off() || !is_preloaded())
		return;
	lien_plain_enable(1);
	lien_translate_is_plain = is_plain;
	lien_interpose_plain();
}

void lien_plain_stop(void)
{
	lien_plain_enable(0);
}

void lien_plain_forked(void)
{
	lien_plain_memory_forked();
	lien_plain_context_forked();
	lien_plain_wait_forked();
	lien_plain_stream_forked();
	lien_plain_pool_forked();
	lien_plain_asker_forked();
	lien_plain_opened_forked();
	lien_plain_offered_forked();
}
