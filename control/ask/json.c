// SPDX-License-Identifier: BSD-2-Clause
#include "control/ask/json.h"

#include <errno.h>
#include <string.h>

struct scan {
	const char *at, *end;
	lien_json_fn *fn;
	void *context;
	struct lien_json_piece path[LIEN_JSON_DEPTH];
};

static void skip_space(struct scan *scan)
{
	while (scan->at < scan->end && strchr(" \t\r\n", *scan->at) && *scan->at)
		scan->at++;
}

static int take(struct scan *scan, char c)
{
	skip_space(scan);
	if (scan->at == scan->end || *scan->at != c)
		return 0;
	scan->at++;
	return 1;
}

static int is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int is_hex(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Behind a backslash. Returns the number of characters; 0: no escape. */
static size_t escape(const char *at, const char *end)
{
	size_t i;

	if (at == end || !*at)
		return 0;
	if (*at != 'u')
		return strchr("\"\\/bfnrt", *at) != NULL;
	if (end - at < 5)
		return 0;
	for (i = 1; i < 5; i++)
		if (!is_hex(at[i]))
			return 0;
	return 5;
}

/* What is between the quotes. */
static int string(struct scan *scan, struct lien_json_piece *piece)
{
	size_t n;

	if (!take(scan, '"'))
		return -EBADMSG;
	piece->at = scan->at;
	while (scan->at < scan->end && *scan->at != '"') {
		if ((unsigned char)*scan->at < ' ')
			return -EBADMSG;
		n = *scan->at == '\\' ? escape(scan->at + 1, scan->end) + 1 : 1;
		if (*scan->at == '\\' && n == 1)
			return -EBADMSG;
		scan->at += n;
	}
	piece->length = scan->at - piece->at;
	return take(scan, '"') ? 0 : -EBADMSG;
}

static size_t digits(struct scan *scan)
{
	const char *from = scan->at;

	while (scan->at < scan->end && is_digit(*scan->at))
		scan->at++;
	return scan->at - from;
}

static int number(struct scan *scan)
{
	const char *from;

	if (scan->at < scan->end && *scan->at == '-')
		scan->at++;
	from = scan->at;
	if (!digits(scan) || (*from == '0' && scan->at - from > 1))
		return -EBADMSG;
	if (scan->at < scan->end && *scan->at == '.') {
		scan->at++;
		if (!digits(scan))
			return -EBADMSG;
	}
	if (scan->at < scan->end && (*scan->at == 'e' || *scan->at == 'E')) {
		scan->at++;
		if (scan->at < scan->end && (*scan->at == '+' || *scan->at == '-'))
			scan->at++;
		if (!digits(scan))
			return -EBADMSG;
	}
	return 0;
}

static int word(struct scan *scan, const char *text)
{
	const size_t length = strlen(text);

	if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, text, length))
		return -EBADMSG;
	scan->at += length;
	return 0;
}

static int scalar(struct scan *scan, unsigned depth)
{
	struct lien_json_piece piece = {.at = scan->at};
	int err;

	switch (*scan->at) {
	case '"':
		err = string(scan, &piece);
		if (!err)
			scan->fn(scan->context, scan->path, depth, &piece);
		return err;
	case 't':
		err = word(scan, "true");
		break;
	case 'f':
		err = word(scan, "false");
		break;
	case 'n':
		err = word(scan, "null");
		break;
	default:
		err = number(scan);
	}
	piece.length = scan->at - piece.at;
	if (!err)
		scan->fn(scan->context, scan->path, depth, &piece);
	return err;
}

static int value(struct scan *scan, unsigned depth);

/* The members of an object, or the elements of an array, and what ends it. */
static int members(struct scan *scan, unsigned depth, char end)
{
	size_t index = 0;
	int err;

	scan->at++;
	if (take(scan, end))
		return 0;
	if (depth == LIEN_JSON_DEPTH)
		return -EBADMSG;
	do {
		scan->path[depth] = (struct lien_json_piece){NULL, index++};
		if (end == '}' &&
			((skip_space(scan), string(scan, &scan->path[depth])) || !take(scan, ':')))
			return -EBADMSG;
		err = value(scan, depth + 1);
		if (err)
			return err;
	} while (take(scan, ','));
	return take(scan, end) ? 0 : -EBADMSG;
}

static int value(struct scan *scan, unsigned depth)
{
	skip_space(scan);
	if (scan->at == scan->end)
		return -EBADMSG;
	if (*scan->at == '{' || *scan->at == '[')
		return members(scan, depth, *scan->at == '{' ? '}' : ']');
	return scalar(scan, depth);
}

int lien_json_scan(const char *text, size_t length, lien_json_fn *fn, void *context)
{
	struct scan scan = {.at = text, .end = text + length, .fn = fn, .context = context};
	int err = value(&scan, 0);

	skip_space(&scan);
	return err || scan.at != scan.end ? -EBADMSG : 0;
}

int lien_json_is(const struct lien_json_piece *piece, const char *text)
{
	return piece->at && piece->length == strlen(text) &&
	       !memcmp(piece->at, text, piece->length);
}

uint64_t lien_json_number(const struct lien_json_piece *value)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < value->length; i++) {
		if (!is_digit(value->at[i]) || sum > (UINT64_MAX - 9) / 10)
			return 0;
		sum = 10 * sum + (value->at[i] - '0');
	}
	return sum;
}

void lien_json_copy(const struct lien_json_piece *value, char *to, size_t size)
{
	size_t i, n = 0, more;
	char c;

	for (i = 0; i < value->length && n + 1 < size; i++) {
		c = value->at[i];
		if (c == '\\') {
			more = escape(value->at + i + 1, value->at + value->length);
			c = more == 1 && strchr("\"\\/", value->at[i + 1]) ? value->at[i + 1] : ' ';
			i += more;
		}
		to[n++] = (unsigned char)c < ' ' || c == 0x7f ? '?' : c;
	}
	to[n] = '\0';
}
