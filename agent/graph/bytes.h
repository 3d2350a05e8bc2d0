/* SPDX-License-Identifier: BSD-2-Clause */
/* Sizes in messages, in the same words as the command line's (tools/text/output.h). */
#ifndef LIEN_BYTES_H
#define LIEN_BYTES_H

#include <stdint.h>

struct lien_bytes_text {
	char text[24];
};

/* "0", "16 B", "4.0 KiB", "10.0 MiB", "2.5 GiB"; for use as an argument: lien_bytes(n).text */
struct lien_bytes_text lien_bytes(uint64_t bytes);

#endif
