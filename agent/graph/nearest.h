/* SPDX-License-Identifier: BSD-2-Clause */
/* "Did you mean ...?" for a word that the user has mistyped. */
#ifndef LIEN_NEAREST_H
#define LIEN_NEAREST_H

struct lien_nearest {
	const char *word;  /* what was typed */
	const char *found; /* the most similar name so far; NULL: none is similar */
	unsigned edits;
};

/* Compares one more name. Zero the struct, but for .word, before the first one. */
void lien_nearest_try(struct lien_nearest *nearest, const char *name);

#endif
