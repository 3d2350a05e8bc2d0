// SPDX-License-Identifier: BSD-2-Clause
/* What a file may have that is mapped as a library. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader/discover/elf_symbols.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int file;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	file = memfd_create("library", MFD_CLOEXEC);
	return file < 0;
}

static int read_export(void *context, const struct lien_elf_export *export)
{
	size_t *bytes = context;

	*bytes += strlen(export->name);
	if (!export->function && export->file_offset != UINT64_MAX)
		abort();
	return 0;
}

static void read_symbols(void)
{
	uint64_t offset, address;
	char id[41], short_id[4];
	size_t bytes = 0;

	if (lien_elf_exports(file, read_export, &bytes) > 0)
		abort();
	lien_elf_object(file, "data", &offset);
	lien_elf_text(file, &address, &offset);
	if (!lien_elf_build_id(file, id, sizeof(id)) && strnlen(id, sizeof(id)) == sizeof(id))
		abort();
	lien_elf_build_id(file, short_id, sizeof(short_id));
}

static void find_places(void)
{
	struct lien_symbol_lookup lookups[] = {{.offset = 0}, {.offset = 0x1000},
		{.offset = 0x1018}, {.offset = 0x1074}, {.offset = 0x10ff}, {.offset = 0x1018},
		{.offset = UINT64_MAX}};
	const unsigned count = sizeof(lookups) / sizeof(lookups[0]);
	int err = lien_symbols_find(file, lookups, count);
	unsigned i;

	for (i = 0; i < count; i++) {
		if (err && lookups[i].name)
			abort();
		free(lookups[i].name);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (ftruncate(file, 0) || pwrite(file, data, size, 0) != (ssize_t)size)
		return 0;
	read_symbols();
	find_places();
	return 0;
}
