/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/elf_symbols.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/elf_image.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int file_of(const void *bytes, size_t size)
{
	int fd = memfd_create("elf", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, size), (ssize_t)size);
	return fd;
}

static int open_image(const struct image *image)
{
	return file_of(image, sizeof(*image));
}

struct lookup {
	const char *name;
	uint64_t offset;
};

static int look_up(void *context, const struct lien_elf_export *export)
{
	struct lookup *lookup = context;

	assert_true(export->function || export->file_offset == UINT64_MAX);
	if (export->file_offset == UINT64_MAX || export->old || strcmp(export->name, lookup->name))
		return 0;
	lookup->offset = export->file_offset;
	return 1;
}

static int function_of(int elf, const char *name, uint64_t *offset)
{
	struct lookup lookup = {.name = name};
	int found = lien_elf_exports(elf, look_up, &lookup);

	if (found == 1)
		*offset = lookup.offset;
	return found < 0 ? found : found ? 0 : -ENOENT;
}

static int count_export(void *context, const struct lien_elf_export *export)
{
	unsigned *count = context;

	assert_non_null(export->name);
	++*count;
	return 0;
}

/* Every call on whatever this is: no crash, and nothing but the promised errors. */
static int poke(int fd)
{
	unsigned count = 0;
	uint64_t value;
	char id[128];
	int err;

	err = lien_elf_exports(fd, count_export, &count);
	assert_true(!err || err == -ENOEXEC || err == -EBADMSG);
	lien_elf_object(fd, "stdout", &value);
	lien_elf_text(fd, &value, &value);
	lien_elf_build_id(fd, id, sizeof(id));
	return err;
}

static void finds_functions(void **state)
{
	struct image image;
	int elf;
	uint64_t offset = 1;

	(void)state;
	build(&image);
	elf = open_image(&image);
	assert_int_equal(function_of(elf, "cuMemMap", &offset), 0);
	assert_int_equal(offset, CODE_OFFSET + 0x10);
	assert_int_equal(function_of(elf, "cuMemAlloc_v2", &offset), 0);
	assert_int_equal(offset, CODE_OFFSET + 0x20);
	assert_int_equal(function_of(elf, "both", &offset), 0);
	assert_int_equal(offset, CODE_OFFSET + 0x30);
	assert_int_equal(function_of(elf, "hidden", &offset), -ENOENT); /* in .symtab alone */
	assert_int_equal(function_of(elf, "named", &offset), -ENOENT);
	assert_int_equal(function_of(elf, "cuMemAlloc", &offset), -ENOENT);
	assert_int_equal(function_of(elf, "missing", &offset), -ENOENT);
	assert_int_equal(function_of(elf, "ifunc", &offset), -ENOENT);
	assert_int_equal(function_of(elf, "data", &offset), -ENOENT);
	assert_int_equal(function_of(elf, "", &offset), -ENOENT);
	close(elf);
}

/* Two versions of one name: which of them is for new programs. An ifunc has no place. */
static void tells_versions_and_kinds(void **state)
{
	struct lookup lookup = {.name = "cuMemMap"};
	int elf;
	struct image image;
	unsigned count = 0;

	(void)state;
	build(&image);
	image.exported[2].st_name = image.exported[1].st_name;
	image.exported[3].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_GNU_IFUNC);
	image.versions[1] = 2 | 0x8000;
	image.versions[2] = 3;
	elf = open_image(&image);
	assert_int_equal(lien_elf_exports(elf, count_export, &count), 0);
	assert_int_equal(count, 4); /* not the one that is undefined */
	assert_int_equal(lien_elf_exports(elf, look_up, &lookup), 1);
	assert_int_equal(lookup.offset, CODE_OFFSET + 0x20);
	lookup.name = "both";
	assert_int_equal(lien_elf_exports(elf, look_up, &lookup), 0);
	close(elf);
}

static void finds_data(void **state)
{
	int elf;
	struct image image;
	uint64_t value = 0;

	(void)state;
	build(&image);
	elf = open_image(&image);
	assert_int_equal(lien_elf_object(elf, "data", &value), 0);
	assert_int_equal(value, 0x123);
	assert_int_equal(lien_elf_object(elf, "cuMemMap", &value), -ENOENT);
	assert_int_equal(lien_elf_object(elf, "missing", &value), -ENOENT);
	close(elf);
}

static void reads_build_id(void **state)
{
	int elf;
	struct image image;
	char id[17];

	(void)state;
	build(&image);
	elf = open_image(&image);
	assert_int_equal(lien_elf_build_id(elf, id, sizeof(id)), 0);
	assert_string_equal(id, "deadbeef000102ff");
	assert_int_equal(lien_elf_build_id(elf, id, 16), -ENOSPC);
	assert_int_equal(lien_elf_build_id(elf, id, 0), -ENOSPC);
	close(elf);

	image.note.header.n_descsz = 1 << 30;
	elf = open_image(&image);
	assert_int_equal(lien_elf_build_id(elf, id, sizeof(id)), -ENOENT);
	close(elf);
}

static void refuses_other_machines(void **state)
{
	struct image image;
	int fd;

	(void)state;
	build(&image);
	image.header.e_ident[EI_CLASS] = ELFCLASS32;
	fd = file_of(&image, sizeof(Elf32_Ehdr));
	assert_int_equal(poke(fd), -ENOEXEC);
	close(fd);
	build(&image);
	image.header.e_machine = EM_AARCH64;
	fd = file_of(&image, sizeof(image));
	assert_int_equal(poke(fd), -ENOEXEC);
	close(fd);
	build(&image);
	image.header.e_type = ET_CORE;
	fd = file_of(&image, sizeof(image));
	assert_int_equal(poke(fd), -ENOEXEC);
	close(fd);
	fd = file_of("#!/bin/sh\n", 10);
	assert_int_equal(poke(fd), -ENOEXEC);
	close(fd);
	fd = file_of("", 0);
	assert_int_equal(poke(fd), -ENOEXEC);
	close(fd);
	fd = open("/", O_RDONLY | O_CLOEXEC);
	assert_int_equal(poke(fd), -ENOEXEC);
	close(fd);
	assert_int_equal(lien_elf_exports(-1, NULL, NULL), -EBADF);
}

static void refuses_truncated_files(void **state)
{
	struct image image;

	(void)state;
	build(&image);
	for (size_t size = 0; size < sizeof(image); size++) {
		int fd = file_of(&image, size);

		assert_int_equal(poke(fd), size < SELFMAG ? -ENOEXEC : -EBADMSG);
		close(fd);
	}
}

/* Each byte set to values that tend to hurt. */
static void survives_damage(void **state)
{
	static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
	struct image image, damaged;

	(void)state;
	build(&image);
	for (size_t at = 0; at < sizeof(image); at++) {
		if (at == offsetof(struct image, padding))
			at = offsetof(struct image, section);
		for (size_t i = 0; i < sizeof(values); i++) {
			int fd;

			damaged = image;
			((unsigned char *)&damaged)[at] = values[i];
			fd = file_of(&damaged, sizeof(damaged));
			poke(fd);
			close(fd);
		}
	}
}

static void refuses_hostile_tables(void **state)
{
	struct image image;
	int elf;
	uint64_t offset;

	(void)state;
	build(&image);
	image.exported[1].st_name = 0x7fffffff;
	elf = open_image(&image);
	assert_int_equal(function_of(elf, "cuMemMap", &offset), -EBADMSG);
	close(elf);

	build(&image);
	image.section[1].sh_size = image.section[1].sh_size - 1;
	elf = open_image(&image);
	assert_int_equal(function_of(elf, "cuMemMap", &offset), -EBADMSG);
	close(elf);

	build(&image);
	image.section[2].sh_size = (uint64_t)-1;
	elf = open_image(&image);
	assert_int_equal(function_of(elf, "cuMemMap", &offset), -EBADMSG);
	close(elf);

	/* A symbol outside of every segment, or in one that is not executable. */
	build(&image);
	image.exported[1].st_value = (uint64_t)-8;
	image.exported[2].st_value = BASE + 8;
	elf = open_image(&image);
	assert_int_equal(function_of(elf, "cuMemMap", &offset), -ENOENT);
	assert_int_equal(function_of(elf, "cuMemAlloc_v2", &offset), -ENOENT);
	close(elf);
}

/* The C library as distributions ship it: stripped, versioned, large. */
static void reads_the_c_library(void **state)
{
	int elf;
	struct link_map *map;
	uint64_t offset, object;
	unsigned char in_file[16];
	void *handle;
	struct stat st;
	char id[64];
	int fd;

	(void)state;
	handle = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	assert_non_null(handle);
	assert_int_equal(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
	fd = open(map->l_name, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	elf = dup(fd);
	assert_int_equal(function_of(elf, "malloc", &offset), 0);
	assert_int_equal(pread(fd, in_file, sizeof(in_file), offset), sizeof(in_file));
	assert_memory_equal(in_file, dlsym(handle, "malloc"), sizeof(in_file));
	assert_int_equal(lien_elf_object(elf, "stdout", &object), 0);
	assert_ptr_equal((char *)map->l_addr + object, dlsym(handle, "stdout"));
	assert_int_equal(lien_elf_build_id(elf, id, sizeof(id)), 0);
	assert_int_equal(function_of(elf, "cuInit", &offset), -ENOENT);
	close(elf);

	assert_int_equal(fstat(fd, &st), 0);
	for (int i = 0; i < 200; i++) {
		size_t size = (uint64_t)st.st_size * i / 200;
		char *bytes = malloc(size + 1);
		int cut;

		assert_non_null(bytes);
		assert_int_equal(pread(fd, bytes, size, 0), size);
		cut = file_of(bytes, size);
		assert_true(poke(cut) < 0);
		close(cut);
		free(bytes);
	}
	close(fd);
	dlclose(handle);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_functions),
		cmocka_unit_test(tells_versions_and_kinds),
		cmocka_unit_test(finds_data),
		cmocka_unit_test(reads_build_id),
		cmocka_unit_test(refuses_other_machines),
		cmocka_unit_test(refuses_truncated_files),
		cmocka_unit_test(survives_damage),
		cmocka_unit_test(refuses_hostile_tables),
		cmocka_unit_test(reads_the_c_library),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
