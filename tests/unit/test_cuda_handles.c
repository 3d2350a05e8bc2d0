/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Does the control library translate every function of the real cuda.h that takes or returns a
 * handle (control/driver/driver.h)? Built only where that header is installed; the build runs it
 * through the preprocessor, which leaves declarations of all versions.
 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <control/driver/interpose.h>

#define NAMES 64

struct list {
	char name[NAMES][64];
	unsigned count;
};

/* Types that are handles, or contain one; functions that have such a parameter. */
static struct list types, functions;

static bool has(const struct list *list, const char *name, size_t length)
{
	for (unsigned i = 0; i < list->count; i++)
		if (strlen(list->name[i]) == length && !memcmp(list->name[i], name, length))
			return true;
	return false;
}

static void add(struct list *list, const char *name, size_t length)
{
	if (has(list, name, length))
		return;
	assert_true(list->count < NAMES && length < sizeof(list->name[0]));
	memcpy(list->name[list->count++], name, length);
}

static bool in_name(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* The next identifier, or NULL. */
static const char *identifier(const char *from, const char *end, size_t *length)
{
	while (from < end && !(isalpha((unsigned char)*from) || *from == '_'))
		from++;
	for (*length = 0; from + *length < end && in_name(from[*length]); ++*length)
		;
	return *length ? from : NULL;
}

static bool has_handle(const char *from, const char *end)
{
	size_t length;

	while ((from = identifier(from, end, &length))) {
		if (has(&types, from, length))
			return true;
		from += length;
	}
	return false;
}

static void last_name(struct list *list, const char *from, const char *end)
{
	const char *last = NULL;
	size_t length, last_length = 0;

	while ((from = identifier(from, end, &length))) {
		last = from;
		last_length = length;
		from += length;
	}
	if (last)
		add(list, last, last_length);
}

/* A declaration without its semicolon; the braces of a struct are part of it. */
static void declaration(const char *from, const char *end)
{
	const char *brace = memchr(from, '{', end - from), *open;

	while (from < end && isspace((unsigned char)*from))
		from++;
	if (!has_handle(from, end))
		return;
	if (brace) {
		last_name(&types, from, brace); /* its tag, */
		open = end;
		while (*open != '}')
			open--;
		last_name(&types, open, end); /* and what a typedef calls it */
		return;
	}
	open = memchr(from, '(', end - from);
	if (!strncmp(from, "typedef", strlen("typedef")))
		last_name(&types, from, open ? memchr(open, ')', end - open) : end);
	else if (open)
		last_name(&functions, from, open);
}

static char *read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *text;
	long size;

	assert_non_null(file);
	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	size = ftell(file);
	rewind(file);
	text = calloc(1, size + 1);
	assert_non_null(text);
	assert_int_equal(fread(text, 1, size, file), (size_t)size);
	fclose(file);
	return text;
}

static void test_all_are_translated(void **state)
{
	static const char *const ours[] = {
#define NAME(name) #name,
		LIEN_INTERPOSED_HANDLES(NAME)
#undef NAME
	};
	char *text = read_file(LIEN_CUDA_PREPROCESSED), *at, *begin = text;
	unsigned missing = 0, depth = 0, known = 0;

	(void)state;
	add(&types, "CUmemGenericAllocationHandle_v1", strlen("CUmemGenericAllocationHandle_v1"));
	for (at = text; *at; at++) {
		depth += *at == '{';
		depth -= *at == '}';
		if (*at != ';' || depth)
			continue;
		declaration(begin, at);
		begin = at + 1;
	}
	for (unsigned i = 0; i < functions.count; i++) {
		bool found = false;

		for (size_t j = 0; j < sizeof(ours) / sizeof(ours[0]); j++)
			found |= !strcmp(ours[j], functions.name[i]);
		known += found;
		missing += !found;
		if (!found)
			print_error("%s passes a handle: control/driver/driver.h lacks it\n",
				functions.name[i]);
	}
	assert_int_equal(missing, 0);
	/* CUDA 12.1 has so many, and two newer ones have come since: those cannot be missed above
	 * because nothing was read. */
	assert_true(known >= sizeof(ours) / sizeof(ours[0]) - 2);
	assert_true(has(&types, "CUarrayMapInfo", strlen("CUarrayMapInfo")));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_are_translated),
	};

	return cmocka_run_group_tests_name("cuda handles", tests, NULL, NULL);
}
