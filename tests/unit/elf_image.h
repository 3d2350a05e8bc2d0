/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A small shared object, built by hand so that every field is known: two segments, the second one
 * at another address than its offset, an exported and a private symbol table, a build id.
 */
#ifndef LIEN_TEST_ELF_IMAGE_H
#define LIEN_TEST_ELF_IMAGE_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CODE_ADDRESS 0x403000
#define CODE_OFFSET  0x1000
#define BASE	     0x400000
#define TEXT_BYTES   0x200

struct image {
	Elf64_Ehdr header;
	Elf64_Phdr segment[3];
	struct {
		Elf64_Nhdr header;
		char name[4];
		unsigned char id[8];
	} note;
	char names[128];
	Elf64_Sym exported[6];
	Elf64_Sym local[5];
	Elf64_Versym versions[8]; /* of the exported ones; 0: no version */
	char padding[CODE_OFFSET - 64 - 3 * 56 - 24 - 128 - 11 * 24 - 8 * 2];
	char text[TEXT_BYTES];
	Elf64_Shdr section[6];
};

_Static_assert(offsetof(struct image, text) == CODE_OFFSET, "test image");

static unsigned add_name(struct image *image, unsigned *used, const char *name)
{
	unsigned at = *used;

	strcpy(image->names + at, name);
	*used += strlen(name) + 1;
	return at;
}

static Elf64_Sym symbol(unsigned name, int bind, int type, int section, uint64_t value)
{
	return (Elf64_Sym){.st_name = name,
		.st_info = ELF64_ST_INFO(bind, type),
		.st_shndx = section,
		.st_value = value,
		.st_size = 16};
}

static Elf64_Shdr section(unsigned type, size_t offset, size_t size, size_t entry)
{
	return (Elf64_Shdr){.sh_type = type,
		.sh_offset = offset,
		.sh_size = size,
		.sh_entsize = entry,
		.sh_addralign = 8,
		.sh_link = 1,
		.sh_info = 1};
}

static void build(struct image *image)
{
	static const unsigned char id[8] = {0xde, 0xad, 0xbe, 0xef, 0, 1, 2, 0xff};
	unsigned used = 1, plain, versioned, both, hidden, missing, data, ifunc, at;

	memset(image, 0, sizeof(*image));
	memcpy(image->header.e_ident, ELFMAG, SELFMAG);
	image->header.e_ident[EI_CLASS] = ELFCLASS64;
	image->header.e_ident[EI_DATA] = ELFDATA2LSB;
	image->header.e_ident[EI_VERSION] = EV_CURRENT;
	image->header.e_type = ET_DYN;
	image->header.e_machine = EM_X86_64;
	image->header.e_version = EV_CURRENT;
	image->header.e_ehsize = sizeof(Elf64_Ehdr);
	image->header.e_phoff = offsetof(struct image, segment);
	image->header.e_phentsize = sizeof(Elf64_Phdr);
	image->header.e_phnum = 3;
	image->header.e_shoff = offsetof(struct image, section);
	image->header.e_shentsize = sizeof(Elf64_Shdr);
	image->header.e_shnum = 6;
	image->segment[0] = (Elf64_Phdr){.p_type = PT_LOAD,
		.p_flags = PF_R,
		.p_vaddr = BASE,
		.p_filesz = CODE_OFFSET,
		.p_memsz = CODE_OFFSET};
	image->segment[1] = (Elf64_Phdr){.p_type = PT_LOAD,
		.p_flags = PF_R | PF_X,
		.p_offset = CODE_OFFSET,
		.p_vaddr = CODE_ADDRESS,
		.p_filesz = TEXT_BYTES,
		.p_memsz = TEXT_BYTES};
	image->segment[2] = (Elf64_Phdr){.p_type = PT_NOTE,
		.p_offset = offsetof(struct image, note),
		.p_filesz = sizeof(image->note),
		.p_align = 4};
	image->note.header = (Elf64_Nhdr){4, sizeof(id), NT_GNU_BUILD_ID};
	strcpy(image->note.name, "GNU");
	memcpy(image->note.id, id, sizeof(id));

	plain = add_name(image, &used, "cuMemMap");
	versioned = add_name(image, &used, "cuMemAlloc_v2");
	both = add_name(image, &used, "both");
	hidden = add_name(image, &used, "hidden");
	missing = add_name(image, &used, "missing");
	data = add_name(image, &used, "data");
	ifunc = add_name(image, &used, "ifunc");
	at = add_name(image, &used, "named@@NCCL_2");
	assert_true(used < sizeof(image->names));

	image->exported[1] = symbol(plain, STB_GLOBAL, STT_FUNC, 4, CODE_ADDRESS + 0x10);
	image->exported[2] = symbol(versioned, STB_WEAK, STT_FUNC, 4, CODE_ADDRESS + 0x20);
	image->exported[3] = symbol(both, STB_GLOBAL, STT_FUNC, 4, CODE_ADDRESS + 0x30);
	image->exported[4] = symbol(missing, STB_GLOBAL, STT_FUNC, SHN_UNDEF, 0);
	image->exported[5] = symbol(data, STB_GLOBAL, STT_OBJECT, 4, BASE + 0x123);
	image->local[1] = symbol(both, STB_LOCAL, STT_FUNC, 4, CODE_ADDRESS + 0x40);
	image->local[2] = symbol(hidden, STB_LOCAL, STT_FUNC, 4, CODE_ADDRESS + 0x50);
	image->local[3] = symbol(ifunc, STB_GLOBAL, STT_GNU_IFUNC, 4, CODE_ADDRESS + 0x60);
	image->local[4] = symbol(at, STB_GLOBAL, STT_FUNC, 4, CODE_ADDRESS + 0x70);

	image->section[1] = section(SHT_STRTAB, offsetof(struct image, names), used, 0);
	image->section[2] = section(SHT_DYNSYM, offsetof(struct image, exported),
		sizeof(image->exported), sizeof(Elf64_Sym));
	image->section[3] = section(
		SHT_SYMTAB, offsetof(struct image, local), sizeof(image->local), sizeof(Elf64_Sym));
	image->section[4] = section(SHT_PROGBITS, CODE_OFFSET, TEXT_BYTES, 0);
	image->section[5] = section(SHT_GNU_versym, offsetof(struct image, versions),
		sizeof(image->versions), sizeof(Elf64_Versym));
	image->section[5].sh_link = 2;
}

#endif
