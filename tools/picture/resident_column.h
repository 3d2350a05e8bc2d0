/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TOOLS_GRAPH_RESIDENT_COLUMN_H
#define LIEN_TOOLS_GRAPH_RESIDENT_COLUMN_H

#include "tools/picture/sheet.h"

/* The height of the part that says who it is; the rest begins at the same height in all of them. */
int lien_resident_top(const struct lien_sheet *sheet, const struct lien_resident *resident);

/* One process on one GPU: who it is, and its memory by library. Returns its height. */
int lien_resident_column(
	const struct lien_sheet *sheet, const struct lien_resident *resident, int x, int y);

#endif
