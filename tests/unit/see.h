/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of the views share: the answer that is looked at, and its parts by their paths. */
#ifndef TEST_SEE_H
#define TEST_SEE_H

#include "events.h"

#include "agent/views/views.h"

static json_t *view;

static inline int view_teardown(void **state)
{
	json_decref(view);
	view = NULL;
	return teardown(state);
}

static inline json_t *see(json_t *made)
{
	assert_non_null(made);
	json_decref(view);
	view = made;
	return view;
}

/* The value at a path such as "processes[1].ranks[0].group"; it must be there. */
static inline json_t *at(const char *format, ...)
{
	char path[128], *part = path;
	json_t *value = view;
	va_list args;

	va_start(args, format);
	vsnprintf(path, sizeof(path), format, args);
	va_end(args);
	while (*part) {
		size_t length = strcspn(part, ".[]");
		char end = part[length];

		part[length] = '\0';
		if (length && json_is_array(value))
			value = json_array_get(value, strtoul(part, NULL, 10));
		else if (length)
			value = json_object_get(value, part);
		if (!value)
			fail_msg("no %s", part);
		part += length + (end != '\0');
	}
	return value;
}

#define INTEGER(value, ...)                                                                        \
	do {                                                                                       \
		assert_true(json_is_integer(at(__VA_ARGS__)));                                     \
		assert_int_equal(json_integer_value(at(__VA_ARGS__)), value);                      \
	} while (0)
#define STRING(value, ...) assert_string_equal(json_string_value(at(__VA_ARGS__)), value)
#define LENGTH(n, ...)	   assert_int_equal(json_array_size(at(__VA_ARGS__)), n)

/* Exactly these members, of these types: i, s, b, a, o, n (null), ? (any). "name:i name:s ...". */
static inline void assert_members(const json_t *object, const char *members)
{
	static const char types[] = {[JSON_OBJECT] = 'o',
		[JSON_ARRAY] = 'a',
		[JSON_STRING] = 's',
		[JSON_INTEGER] = 'i',
		[JSON_REAL] = 'r',
		[JSON_TRUE] = 'b',
		[JSON_FALSE] = 'b',
		[JSON_NULL] = 'n'};
	char copy[512], *token, *rest;
	size_t n = 0;

	assert_true(json_is_object(object));
	snprintf(copy, sizeof(copy), "%s", members);
	for (token = strtok_r(copy, " ", &rest); token; token = strtok_r(NULL, " ", &rest)) {
		char *colon = strchr(token, ':');
		const json_t *value;

		*colon = '\0';
		value = json_object_get(object, token);
		if (!value)
			fail_msg("no member %s", token);
		if (colon[1] != '?' && types[json_typeof(value)] != colon[1])
			fail_msg("member %s is a '%c', not a '%c'", token,
				types[json_typeof(value)], colon[1]);
		n++;
	}
	if (json_object_size(object) != n)
		fail_msg("more members than: %s", members);
}

#define VIEW(name) cmocka_unit_test_setup_teardown(name, setup, view_teardown)

#endif
