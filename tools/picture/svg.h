/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Elements of an SVG picture. Coordinates are pixels. Text is escaped, may contain any UTF-8 and is
 * cut to the given width: the viewer's font is unknown, so widths are generous estimates. If out is
 * NULL nothing is written, which serves to measure.
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
	enum lien_anchor anchor; /* the point of the text at x */
};

struct lien_look {
	const char *fill, *stroke; /* NULL: none */
	int radius;
	bool dashed;
};

/* Writes the whole picture: the body, already formatted, on a background of its own. */
void lien_svg_document(FILE *out, int width, int height, const char *body);

/* Elements between these two show a tooltip where the viewer has a mouse. */
void lien_svg_open(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void lien_svg_close(FILE *out);

void lien_svg_box(FILE *out, int x, int y, int width, int height, const struct lien_look *look);
/* thickness in tenths of a pixel */
void lien_svg_line(
	FILE *out, int x1, int y1, int x2, int y2, int thickness, const struct lien_look *look);
/* Draws a triangle with its tip at x, y that points to the right or to the left. */
void lien_svg_head(FILE *out, int x, int y, bool right, const char *color);
void lien_svg_dot(FILE *out, int x, int y, const char *color);

/* y is the base line. */
void lien_svg_text(FILE *out, int x, int y, int width, const struct lien_font *font,
	const char *format, ...) __attribute__((format(printf, 6, 7)));
int lien_svg_width(const struct lien_font *font, const char *text);

#endif
