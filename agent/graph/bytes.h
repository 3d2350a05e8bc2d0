/* SPDX-License-Identifier: BSD-2-Clause */
/* Sizes in messages and in the output of commands. */
#ifndef LIEN_BYTES_H
#define LIEN_BYTES_H

#include <stdint.h>
#include <stdio.h>

struct lien_bytes_text {
	char text[24];
};

/* "0", "16 B", "4.0 KiB", "10.0 MiB", "2.5 GiB"; for use as an argument: lien_bytes(n).text */
static inline struct lien_bytes_text lien_bytes(uint64_t bytes)
{
	struct lien_bytes_text size = {"0"};

	if (bytes >> 30)
		snprintf(size.text, sizeof(size.text), "%.1f GiB", (double)bytes / (1ull << 30));
	else if (bytes >> 20)
		snprintf(size.text, sizeof(size.text), "%.1f MiB", (double)bytes / (1ull << 20));
	else if (bytes >> 10)
		snprintf(size.text, sizeof(size.text), "%.1f KiB", (double)bytes / (1ull << 10));
	else if (bytes)
		snprintf(size.text, sizeof(size.text), "%u B", (unsigned)bytes);
	return size;
}

#endif
