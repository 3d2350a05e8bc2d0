// SPDX-License-Identifier: BSD-2-Clause
#include "control/plain/memory.h"

static int is_plain(CUdeviceptr address)
{
	struct lien_heap_block block;

	return lien_plain_find(address, &block) || lien_plain_find_opened(address, &block);
}

void lien_plain_start(void)
{
	if (!lien_interpose_has_plain())
		return;
	lien_plain_enable(1);
	lien_translate_is_plain = is_plain;
}

void lien_plain_stop(void)
{
	lien_plain_enable(0);
}

void lien_plain_forked(void)
{
	lien_plain_memory_forked();
	lien_plain_context_forked();
	lien_plain_lifetime_forked();
	lien_plain_wait_forked();
	lien_plain_stream_forked();
	lien_plain_pool_forked();
	lien_plain_asker_forked();
	lien_plain_opened_forked();
	lien_plain_offered_forked();
}
