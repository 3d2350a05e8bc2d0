// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/elf_symbols.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/elf_image.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int file_of(const void *bytes, size_t size)
{
	int fd = memfd_create("elf", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, size), (ssize_t)size);
	return fd;
}

/* The name that is shown for a function with this symbol. The caller frees it. */
static char *shown(const char *symbol)
{
	struct lien_symbol_lookup lookup = {.offset = CODE_OFFSET + 0x10};
	struct {
		struct image image;
		char names[1024];
	} bytes = {.names = ""};
	int fd;

	build(&bytes.image);
	strcpy(bytes.names + 1, symbol);
	bytes.image.section[1].sh_offset = sizeof(bytes.image);
	bytes.image.section[1].sh_size = sizeof(bytes.names);
	bytes.image.exported[1].st_name = 1;
	fd = file_of(&bytes, sizeof(bytes));
	assert_int_equal(lien_symbols_find(fd, &lookup, 1), 0);
	close(fd);
	return lookup.name;
}

/* "name+into" of a place in an image's code, or "-". */
static void expect(const struct image *image, uint64_t in_text, const char *expected)
{
	struct lien_symbol_lookup lookup = {.offset = CODE_OFFSET + in_text};
	int fd = file_of(image, sizeof(*image));
	char found[600] = "-";

	assert_int_equal(lien_symbols_find(fd, &lookup, 1), 0);
	close(fd);
	if (lookup.name)
		snprintf(found, sizeof(found), "%s+%llu", lookup.name,
			(unsigned long long)lookup.into);
	free(lookup.name);
	assert_string_equal(found, expected);
}

/* Symbols of the image have 16 bytes each. */
static void names_places(void **state)
{
	struct image image;

	(void)state;
	build(&image);
	expect(&image, 0x10, "cuMemMap+0");
	expect(&image, 0x1f, "cuMemMap+15");
	expect(&image, 0x25, "cuMemAlloc_v2+5");
	expect(&image, 0x35, "both+5");
	expect(&image, 0x51, "hidden+1");
	expect(&image, 0x68, "ifunc+8");
	expect(&image, 0x72, "named+2"); /* without its version */
	expect(&image, 0x0f, "-");
	expect(&image, 0x80, "-");
	expect(&image, TEXT_BYTES, "-");
	image.header.e_type = ET_EXEC;
	expect(&image, 0x1f, "cuMemMap+15");
}

static void chooses_the_inner_and_the_exported(void **state)
{
	struct image image;

	(void)state;
	build(&image);
	image.local[2].st_size = 0x100; /* hidden: 0x50 on */
	expect(&image, 0x58, "hidden+8");
	expect(&image, 0x75, "named+5");
	expect(&image, 0x90, "hidden+64");
	image.local[1].st_value = CODE_ADDRESS + 0x10; /* a local one where cuMemMap is */
	expect(&image, 0x18, "cuMemMap+8");
}

/* Written in assembler: a function that does not say how long it is. */
static void without_sizes(void **state)
{
	struct image image;

	(void)state;
	build(&image);
	image.local[4].st_size = 0; /* named, at 0x70 */
	expect(&image, 0x70, "-");  /* its section has no address */
	image.section[4].sh_addr = CODE_ADDRESS;
	expect(&image, 0x70, "named+0");
	expect(&image, 0x100, "named+144");
	image.local[2].st_size = 8; /* hidden, at 0x50 */
	expect(&image, 0x5a, "-");  /* what has a size ends there */
	image.section[4].sh_size = 0x80;
	expect(&image, 0x7f, "named+15");
	expect(&image, 0x80, "-");
}

/* Targets that share the symbol before them. */
static void many_at_once(void **state)
{
	static const uint64_t places[] = {0x1f, 0x100, 0x10, 0x90, 0x1f, 0x7fffffff, 0x51};
	static const char *const names[] = {
		"cuMemMap", "named", "cuMemMap", "named", "cuMemMap", NULL, "hidden"};
	struct lien_symbol_lookup lookups[7];
	struct image image;
	int fd;

	(void)state;
	build(&image);
	image.local[4].st_size = 0;
	image.section[4].sh_addr = CODE_ADDRESS;
	for (unsigned i = 0; i < 7; i++)
		lookups[i].offset = CODE_OFFSET + places[i];
	fd = file_of(&image, sizeof(image));
	assert_int_equal(lien_symbols_find(fd, lookups, 7), 0);
	for (unsigned i = 0; i < 7; i++) {
		if (names[i])
			assert_string_equal(lookups[i].name, names[i]);
		else
			assert_null(lookups[i].name);
		free(lookups[i].name);
	}
	assert_int_equal(lien_symbols_find(fd, NULL, 0), 0);
	close(fd);
}

static int find_at(const void *bytes, size_t size)
{
	struct lien_symbol_lookup lookup = {.offset = CODE_OFFSET + 0x15};
	int fd = file_of(bytes, size), err;

	err = lien_symbols_find(fd, &lookup, 1);
	close(fd);
	if (err)
		assert_null(lookup.name);
	free(lookup.name);
	return err;
}

static void refuses_damage(void **state)
{
	struct image image;
	size_t size;

	(void)state;
	build(&image);
	assert_int_equal(find_at("#!/bin/sh\n", 10), -ENOEXEC);
	for (size = 0; size < sizeof(image); size += 7)
		assert_true(find_at(&image, size) < 0);
	image.section[2].sh_link = 77;
	assert_int_equal(find_at(&image, sizeof(image)), -EBADMSG);
	build(&image);
	image.section[2].sh_size = UINT64_MAX;
	assert_int_equal(find_at(&image, sizeof(image)), -EBADMSG);
	build(&image);
	image.exported[1].st_name = 1 << 20;
	assert_int_equal(find_at(&image, sizeof(image)), -EBADMSG);
	build(&image);
	image.header.e_phnum = 0xfffe;
	assert_int_equal(find_at(&image, sizeof(image)), -EBADMSG);
	build(&image);
	image.exported[1].st_size = UINT64_MAX;
	image.exported[1].st_value = UINT64_MAX;
	assert_int_equal(find_at(&image, sizeof(image)), 0);
}

static void stands_random_bytes(void **state)
{
	struct image image;

	(void)state;
	srand(7);
	for (unsigned round = 0; round < 3000; round++) {
		build(&image);
		for (unsigned i = 0; i < 4; i++)
			((unsigned char *)&image)[rand() % CODE_OFFSET] = rand();
		for (unsigned i = 0; i < 2; i++)
			((unsigned char *)image.section)[rand() % sizeof(image.section)] = rand();
		find_at(&image, sizeof(image));
	}
}

/* This program, as the linker made it. */
static __attribute__((noinline)) void *here(void)
{
	return __builtin_return_address(0);
}

static int first_segment(struct dl_phdr_info *info, size_t size, void *base)
{
	(void)size;
	*(uintptr_t *)base = info->dlpi_addr;
	return 1;
}

static void names_itself(void **state)
{
	uintptr_t base = 0, at = (uintptr_t)here();
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct lien_symbol_lookup lookup;
	Elf64_Ehdr header;
	Elf64_Phdr segment;

	(void)state;
	dl_iterate_phdr(first_segment, &base);
	assert_int_equal(pread(fd, &header, sizeof(header), 0), sizeof(header));
	lookup.offset = 0;
	for (unsigned i = 0; i < header.e_phnum; i++) {
		assert_int_equal(
			pread(fd, &segment, sizeof(segment), header.e_phoff + i * sizeof(segment)),
			sizeof(segment));
		if (segment.p_type == PT_LOAD && segment.p_flags & PF_X)
			lookup.offset = at - base - segment.p_vaddr + segment.p_offset;
	}
	assert_int_equal(lien_symbols_find(fd, &lookup, 1), 0);
	close(fd);
	assert_string_equal(lookup.name, "names_itself");
	assert_int_equal(lookup.into, at - (uintptr_t)names_itself);
	free(lookup.name);
}

static void demangles(void **state)
{
	static const char *const cases[][2] = {
		{"cuMemMap", "cuMemMap"},
		{"_ZN3c104cuda6mallocEmP11CUstream_st", "c10::cuda::malloc"},
		{"_ZNSt6vectorIiSaIiEE9push_backERKi",
			"std::vector<int, std::allocator<int> >::push_back"},
		{"_Znot", "_Znot"},
		{"_Z", "_Z"},
		{"", ""},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char *found = shown(cases[i][0]);

		assert_string_equal(found, cases[i][1]);
		free(found);
	}
}

/* f<A<int, int>, A<1st, 1st>, A<2nd, 2nd>, ...>: each twice as long as the one before. */
static void ends_what_has_no_end(void **state)
{
	static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
	char name[1000] = "_Z1fI1AIiiE", *found;

	(void)state;
	for (unsigned i = 1; i < 32; i++) {
		char part[16];

		snprintf(part, sizeof(part), "S_IS%c_S%c_E", digits[i], digits[i]);
		strcat(name, part);
	}
	strcat(name, "EvT_");
	found = shown(name);
	assert_int_equal(strlen(found), 480);
	assert_int_equal(strncmp(found, "f<A<int, int>, f<A<int, int>, A<int, int> >", 43), 0);
	free(found);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_places),
		cmocka_unit_test(chooses_the_inner_and_the_exported),
		cmocka_unit_test(without_sizes),
		cmocka_unit_test(many_at_once),
		cmocka_unit_test(refuses_damage),
		cmocka_unit_test(stands_random_bytes),
		cmocka_unit_test(names_itself),
		cmocka_unit_test(demangles),
		cmocka_unit_test(ends_what_has_no_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
