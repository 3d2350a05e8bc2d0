// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "agent/graph/devices.h"

#define A "GPU-5f0a21c4-0001-0203-0405-060708090a0b"
#define B "GPU-5f0a99c4-0001-0203-0405-060708090a0b"

static struct lien_uuid uuid(const char *text)
{
	struct lien_uuid uuid;

	assert_int_equal(lien_uuid_parse(text, strlen(text), &uuid), 16);
	return uuid;
}

static void prints_what_it_read(void **state)
{
	static const char *const texts[] = {A, "MIG-00112233-4455-6677-8899-aabbccddeeff"};
	char text[LIEN_UUID_TEXT];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct lien_uuid found = uuid(texts[i]);

		lien_uuid_print(&found, text);
		assert_string_equal(text, texts[i]);
	}
}

static void reads_beginnings_and_refuses_the_rest(void **state)
{
	static const struct {
		const char *text;
		int bytes;
	} cases[] = {{"GPU-5f", 1}, {"GPU-5f0a21c4-", 4}, {"GPU-5F0A21C4-00", 5}, {"GPU-", 0},
		{"", -1}, {"GPU", -1}, {"CPU-5f0a21c4", -1}, {"GPU-5g", -1}, {"GPU-5f0", -1},
		{"GPU-5f-0a", -1}, {A "00", -1}, {"0", -1}, {"GPU-5f0a21c4--00", -1}};
	struct lien_uuid uuid;

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (lien_uuid_parse(cases[i].text, strlen(cases[i].text), &uuid) != cases[i].bytes)
			fail_msg("%s", cases[i].text);
	/* Not a byte beyond what it is given. */
	assert_int_equal(lien_uuid_parse(A, 12, &uuid), 4);
}

/* What it comes to, as letters: the first GPU is 'a', '?': it cannot be told. */
static void see(const char *visible, bool by_bus, unsigned count, const char *expected)
{
	struct lien_uuid gpus[2] = {uuid(A), uuid(B)};
	struct lien_ordinals ordinals;
	char found[8] = "?";

	if (lien_visible_devices(visible, by_bus, gpus, count, &ordinals)) {
		memset(found, 0, sizeof(found));
		for (unsigned i = 0; i < ordinals.count; i++)
			found[i] = lien_uuid_equal(&ordinals.uuid[i], &gpus[0])	  ? 'a'
				   : lien_uuid_equal(&ordinals.uuid[i], &gpus[1]) ? 'b'
										  : 'x';
	}
	if (strcmp(found, expected))
		fail_msg("%s: found %s, expected %s", visible, found, expected);
}

static void understands_what_is_certain(void **state)
{
	(void)state;
	see(A "," B, false, 2, "ab");
	see(B, false, 0, "b");
	see("GPU-5f0a99", false, 2, "b");
	see("1,0", true, 2, "ba");
	see("0", false, 1, "a");
	see(NULL, true, 2, "ab");
	see(NULL, false, 1, "a");
	see("1," A, true, 2, "ba");
	see("MIG-00112233-4455-6677-8899-aabbccddeeff", false, 1, "x");
}

static void guesses_nothing(void **state)
{
	(void)state;
	see("0", false, 2, "?"); /* CUDA counts the fastest first */
	see(NULL, false, 2, "?");
	see(NULL, true, 0, "?");
	see("2", true, 2, "?");
	see("GPU-5f0a", false, 2, "?"); /* either */
	see("GPU-5f0a99", false, 0, "?");
	see("0,0", true, 2, "?");
	see("-1", true, 2, "?");
	see("0,none", true, 2, "?");
	see("", true, 2, "?");
	see("0x1", true, 2, "?");
	see("18446744073709551616", true, 2, "?");
	see("MIG-5f", false, 2, "?");
}

static void many_are_too_many(void **state)
{
	char visible[100 * sizeof(A)] = "", entry[sizeof(A) + 1];
	struct lien_ordinals ordinals;
	struct lien_uuid each = uuid(A);

	(void)state;
	for (unsigned i = 0; i < LIEN_ORDINALS_MAX; i++) {
		each.bytes[15] = i;
		lien_uuid_print(&each, entry);
		strcat(entry, ",");
		strcat(visible, entry);
	}
	assert_true(lien_visible_devices(visible, false, NULL, 0, &ordinals));
	assert_int_equal(ordinals.count, LIEN_ORDINALS_MAX);
	strcat(visible, B);
	assert_false(lien_visible_devices(visible, false, NULL, 0, &ordinals));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prints_what_it_read),
		cmocka_unit_test(reads_beginnings_and_refuses_the_rest),
		cmocka_unit_test(understands_what_is_certain),
		cmocka_unit_test(guesses_nothing),
		cmocka_unit_test(many_are_too_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
