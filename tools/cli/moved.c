// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/moved.h"

uint64_t lien_moved_bytes(const json_t *result)
{
	return lien_get_number(result, "bytes") + lien_get_number(result, "discarded_bytes");
}

char *lien_freed_text(const json_t *process)
{
	if (!json_is_integer(json_object_get(process, "freed_bytes")))
		return lien_format("-");
	return lien_format("%s", lien_size(lien_get_number(process, "freed_bytes")).text);
}
