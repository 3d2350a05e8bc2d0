/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef LIEN_TOOLS_GRAPH_RESIDENT_COLUMN_H
#define LIEN_TOOLS_GRAPH_RESIDENT_COLUMN_H

#include "tools/picture/sheet.h"

/* Returns the height of the part that identifies the resident; the rest begins at the same height
 * in all columns. */
int lien_resident_top(const struct lien_sheet *sheet, const struct lien_resident *resident);

/* Draws one process on one GPU: its identity, and its memory by library. Returns its height. */
int lien_resident_column(
	const struct lien_sheet *sheet, const struct lien_resident *resident, int x, int y);

#endif
