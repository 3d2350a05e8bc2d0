// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/nearest.h"

#include <string.h>

#define WORD_MAX 31 /* longer words resemble nothing */
#define NEAR	 3  /* edits for which a name is still suggested, and a third of the word */

static void lower(unsigned char *at, unsigned value)
{
	if (value < *at)
		*at = value;
}

/* Returns the number of edits (a character more, less or another, or two exchanged) that turn one
 * word into the other. */
static unsigned distance(const char *a, const char *b)
{
	unsigned char edits[WORD_MAX + 1][WORD_MAX + 1];
	size_t rows = strlen(a), columns = strlen(b), i, j;

	for (i = 0; i <= rows; i++)
		for (j = 0; j <= columns; j++) {
			edits[i][j] = i + j;
			if (!i || !j)
				continue;
			lower(&edits[i][j], edits[i - 1][j] + 1);
			lower(&edits[i][j], edits[i][j - 1] + 1);
			lower(&edits[i][j], edits[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				lower(&edits[i][j], edits[i - 2][j - 2] + 1);
		}
	return edits[rows][columns];
}

void lien_nearest_try(struct lien_nearest *nearest, const char *name)
{
	size_t length = strlen(nearest->word);
	unsigned edits;

	if (length > WORD_MAX || strlen(name) > WORD_MAX)
		return;
	edits = distance(name, nearest->word);
	if (edits > NEAR || edits > (length + 1) / 3)
		return;
	if (!nearest->found || edits < nearest->edits) {
		nearest->found = name;
		nearest->edits = edits;
	}
}
