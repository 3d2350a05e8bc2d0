// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/bytes.h"

#include <stdio.h>

struct lien_bytes_text lien_bytes(uint64_t bytes)
{
	struct lien_bytes_text size;

	if (!bytes)
		snprintf(size.text, sizeof(size.text), "0");
	else if (bytes < 1ull << 10)
		snprintf(size.text, sizeof(size.text), "%u B", (unsigned)bytes);
	else if (bytes < 1ull << 20)
		snprintf(size.text, sizeof(size.text), "%.1f KiB", (double)bytes / (1ull << 10));
	else if (bytes < 1ull << 30)
		snprintf(size.text, sizeof(size.text), "%.1f MiB", (double)bytes / (1ull << 20));
	else
		snprintf(size.text, sizeof(size.text), "%.1f GiB", (double)bytes / (1ull << 30));
	return size;
}
