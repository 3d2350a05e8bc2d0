// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/options.h"

#define SIZE_MAX_BYTES (1ul << 57) /* the limit of x86-64 addresses */

static bool parse_unsigned(const char *text, int base, unsigned long *value)
{
	char *end;

	/* strtoul() would also accept blanks, signs and, in base 16, a second 0x. */
	if (!*text ||
		strspn(text, base == 16 ? "0123456789abcdefABCDEF" : "0123456789") != strlen(text))
		return false;
	errno = 0;
	*value = strtoul(text, &end, base);
	return !errno;
}

bool lien_parse_number(const char *text, unsigned long max, unsigned long *value)
{
	return parse_unsigned(text, 10, value) && *value <= max;
}

bool lien_parse_pid(const char *text, pid_t *pid)
{
	unsigned long value;

	if (!lien_parse_number(text, INT_MAX, &value) || !value)
		return false;
	*pid = value;
	return true;
}

bool lien_parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	size_t digits = strspn(text, "0123456789");
	const char *unit = text[digits] ? strchr(units, text[digits]) : NULL;
	unsigned shift = unit ? 10 * (unit - units + 1) : 0;
	unsigned long value;
	char number[24];

	if (digits >= sizeof(number) || (text[digits] && (!unit || text[digits + 1])))
		return false;
	memcpy(number, text, digits);
	number[digits] = '\0';
	if (!lien_parse_number(number, SIZE_MAX_BYTES >> shift, &value) || !value)
		return false;
	*bytes = (uint64_t)value << shift;
	return true;
}

bool lien_parse_moment(const char *text, struct lien_moment *moment)
{
	const char *digits = text + (*text == '+');
	char *end;

	if (!*digits || strspn(digits, "0123456789.") != strlen(digits))
		return false;
	moment->seconds = strtod(digits, &end);
	moment->relative = *text == '+';
	moment->given = !*end && end != digits;
	return moment->given;
}

bool lien_parse_address(const char *text, unsigned long *address)
{
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		return parse_unsigned(text + 2, 16, address);
	return parse_unsigned(text, 10, address);
}
