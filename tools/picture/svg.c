// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/svg.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/text/output.h"

#define FONTS	 "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
#define ELLIPSIS "\xe2\x80\xa6"

/* Returns the next character; invalid UTF-8 is read byte by byte, as U+FFFD. */
static uint32_t next_character(const char **text)
{
	const unsigned char *c = (const unsigned char *)*text;
	unsigned more = *c < 0x80 ? 0 : *c < 0xc0 ? 4 : *c < 0xe0 ? 1 : *c < 0xf0 ? 2 : 3;
	uint32_t code = more ? *c & (0x3f >> more) : *c;

	for (unsigned i = 1; i <= more; i++) {
		if (more == 4 || (c[i] & 0xc0) != 0x80) {
			*text += 1;
			return 0xfffd;
		}
		code = code << 6 | (c[i] & 0x3f);
	}
	*text += more + 1;
	return code;
}

/* XML has no control characters; those that change the direction of text would change ours, too. */
static bool is_harmful(uint32_t code)
{
	return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200b && code <= 0x200f) ||
	       (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) ||
	       (code >= 0xd800 && code < 0xe000) || (code & 0xfffe) == 0xfffe || code > 0x10ffff;
}

static void put_escaped(FILE *out, const char *text, size_t length)
{
	const char *end = text + length;

	while (text < end) {
		const char *begin = text;
		uint32_t code = next_character(&text);

		if (is_harmful(code))
			fputc('?', out);
		else if (code == 0xfffd)
			fputs("\xef\xbf\xbd", out);
		else if (code == '<')
			fputs("&lt;", out);
		else if (code == '>')
			fputs("&gt;", out);
		else if (code == '&')
			fputs("&amp;", out);
		else if (code == '"')
			fputs("&quot;", out);
		else
			fwrite(begin, 1, text - begin, out);
	}
}

/* In hundredths of the font's size: the width in the widest of the usual fonts. */
static int character_width(uint32_t code)
{
	if (code >= 0x1100)
		return code >= 0x2000 && code < 0x2e80 ? 85 : 105;
	if (code >= 0x80)
		return code == 0xb7 ? 32 : 70;
	if (strchr("mwMW@%", code))
		return 98;
	if (strchr(" ijlt.,:;'|!()[]/fr", code))
		return 40;
	return code >= 'A' && code <= 'Z' ? 72 : 63;
}

static int scale(const struct lien_font *font, int hundredths)
{
	return (hundredths * font->size * (font->bold ? 108 : 100) + 9999) / 10000;
}

int lien_svg_width(const struct lien_font *font, const char *text)
{
	int width = 0;

	while (*text)
		width += character_width(next_character(&text));
	return scale(font, width);
}

/* Returns how many bytes of the text fit. */
static size_t cut(const struct lien_font *font, const char *text, int width)
{
	const char *at = text, *end = text;
	int used = character_width(0x2026);

	if (lien_svg_width(font, text) <= width)
		return strlen(text);
	while (*at) {
		used += character_width(next_character(&at));
		if (scale(font, used) > width)
			break;
		end = at;
	}
	return end - text;
}

void lien_svg_document(FILE *out, int width, int height, const char *body)
{
	fprintf(out,
		"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
		"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\""
		" viewBox=\"0 0 %d %d\" font-family=\"%s\">\n"
		"<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n%s</svg>\n",
		width, height, width, height, FONTS, width, height, body);
}

void lien_svg_open(FILE *out, const char *format, ...)
{
	va_list args;
	char *text;

	if (!out)
		return;
	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	fputs("<g><title>", out);
	put_escaped(out, text, strlen(text));
	fputs("</title>\n", out);
	free(text);
}

void lien_svg_close(FILE *out)
{
	if (out)
		fputs("</g>\n", out);
}

static void put_look(FILE *out, const struct lien_look *look)
{
	fprintf(out, " fill=\"%s\"", look->fill ? look->fill : "none");
	if (look->stroke)
		fprintf(out, " stroke=\"%s\"", look->stroke);
	if (look->dashed)
		fputs(" stroke-dasharray=\"4 3\"", out);
}

void lien_svg_box(FILE *out, int x, int y, int width, int height, const struct lien_look *look)
{
	int half = look->stroke ? 5 : 0; /* a line of one pixel is sharp between pixels */

	if (!out)
		return;
	fprintf(out, "<rect x=\"%d.%d\" y=\"%d.%d\" width=\"%d\" height=\"%d\"", x, half, y, half,
		width, height);
	if (look->radius)
		fprintf(out, " rx=\"%d\"", look->radius);
	put_look(out, look);
	fputs("/>\n", out);
}

void lien_svg_line(
	FILE *out, int x1, int y1, int x2, int y2, int thickness, const struct lien_look *look)
{
	if (!out)
		return;
	fprintf(out, "<path d=\"M%d %dL%d %d\" stroke-width=\"%d.%d\"", x1, y1, x2, y2,
		thickness / 10, thickness % 10);
	put_look(out, look);
	fputs("/>\n", out);
}

void lien_svg_head(FILE *out, int x, int y, bool right, const char *color)
{
	int back = right ? x - 9 : x + 9;

	if (out)
		fprintf(out, "<path d=\"M%d %dL%d %dL%d %dZ\" fill=\"%s\"/>\n", x, y, back, y - 5,
			back, y + 5, color);
}

void lien_svg_dot(FILE *out, int x, int y, const char *color)
{
	if (out)
		fprintf(out, "<circle cx=\"%d\" cy=\"%d\" r=\"3\" fill=\"%s\"/>\n", x, y, color);
}

void lien_svg_text(
	FILE *out, int x, int y, int width, const struct lien_font *font, const char *format, ...)
{
	static const char *const anchors[] = {
		"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
	va_list args;
	size_t length;
	char *text;

	if (!out)
		return;
	va_start(args, format);
	text = lien_format_args(format, args);
	va_end(args);
	if (!*text) {
		free(text);
		return;
	}
	length = cut(font, text, width);
	fprintf(out, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" fill=\"%s\"%s%s>", x, y, font->size,
		font->color, font->bold ? " font-weight=\"bold\"" : "", anchors[font->anchor]);
	put_escaped(out, text, length);
	if (text[length])
		fputs(ELLIPSIS, out);
	fputs("</text>\n", out);
	free(text);
}
