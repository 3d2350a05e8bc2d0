/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Elements of an SVG picture. Coordinates are pixels. Text is escaped, may hold any UTF-8 and is
 * cut to the width that it is given: which font a viewer has is not known, so widths are estimates
 * on the generous side. An out of NULL writes nothing: for finding out how large something gets.
 */
#ifndef LIEN_TOOLS_SVG_H
#define LIEN_TOOLS_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum lien_anchor { LIEN_START, LIEN_MIDDLE, LIEN_END };

struct lien_font {
	int size;
	const char *color;
	bool bold;
	enum lien_anchor anchor; /* which point of the text x is */
};

struct lien_look {
	const char *fill, *stroke; /* NULL: none */
	int radius;
	bool dashed;
};

/* The whole picture: the body as other functions wrote it, on a background of its own. */
void lien_svg_document(FILE *out, int width, int height, const char *body);

/* What is between these shows a tip where the viewer has a mouse. */
void lien_svg_open(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lien_svg_close(FILE *out);

void lien_svg_box(FILE *out, int x, int y, int width, int height, const struct lien_look *look);
/* thickness in tenths of a pixel */
void lien_svg_line(
	FILE *out, int x1, int y1, int x2, int y2, int thickness, const struct lien_look *look);
/* A triangle whose tip is at x, y and that points to the right or to the left. */
void lien_svg_head(FILE *out, int x, int y, bool right, const char *color);
void lien_svg_dot(FILE *out, int x, int y, const char *color);

/* y is the base line. */
void lien_svg_text(FILE *out, int x, int y, int width, const struct lien_font *font,
	const char *format, ...) __attribute__((format(printf, 6, 7)));
int lien_svg_width(const struct lien_font *font, const char *text);

#endif
