// SPDX-License-Identifier: BSD-2-Clause
#include "loader/discover/symbols.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTIONS_MAX   65536
#define SEGMENTS_MAX   4096
#define SYMBOLS_CHUNK  4096
#define NAME_MAX_BYTES 4096

struct file {
	int fd;
	uint64_t size;
	Elf64_Phdr *segments;
	Elf64_Shdr *sections;
	unsigned segments_count, sections_count;
};

enum rank {
	RANK_LOCAL = 1,
	RANK_GLOBAL,
	RANK_EXPORTED,
};

/* A place to name, by its address: symbols do not refer to places in the file. */
struct target {
	struct lien_symbol_lookup *lookup;
	uint64_t address;
	uint64_t start; /* start of the function that contains it */
	enum rank rank; /* 0: no function yet */
	unsigned names, name;
	/* The last symbol without a size between the previous target and this one. */
	uint64_t nearest;
	uint64_t nearest_end; /* end of its section */
	bool nearest_known, nearest_open;
	unsigned nearest_names, nearest_name;
};

struct search {
	struct file file;
	struct target *targets; /* sorted by address */
	unsigned count;
};

/* -EBADMSG: the file is too short. */
static int read_at(const struct file *file, uint64_t offset, void *to, size_t size)
{
	char *at = to;
	ssize_t n;

	if (offset > file->size || size > file->size - offset)
		return -EBADMSG;
	while (size) {
		n = pread(file->fd, at, size, offset);
		if (n < 0)
			return -errno;
		if (!n)
			return -EBADMSG; /* the file shrank */
		at += n;
		offset += n;
		size -= n;
	}
	return 0;
}

static int read_table(
	const struct file *file, uint64_t offset, unsigned count, size_t each, void **table)
{
	int err;

	*table = calloc(count ? count : 1, each);
	if (!*table)
		return -ENOMEM;
	err = read_at(file, offset, *table, count * each);
	if (err) {
		free(*table);
		*table = NULL;
	}
	return err;
}

static void file_clear(struct file *file)
{
	free(file->segments);
	free(file->sections);
}

static int read_sections(struct file *file, const Elf64_Ehdr *header)
{
	Elf64_Shdr first;
	uint64_t count = header->e_shnum;
	int err;

	if (!header->e_shoff)
		return 0;
	if (header->e_shentsize != sizeof(Elf64_Shdr))
		return -EBADMSG;
	if (!count) { /* the count exceeds e_shnum */
		err = read_at(file, header->e_shoff, &first, sizeof(first));
		if (err)
			return err;
		count = first.sh_size;
	}
	if (count > SECTIONS_MAX)
		return -EBADMSG;
	err = read_table(
		file, header->e_shoff, count, sizeof(Elf64_Shdr), (void **)&file->sections);
	if (!err)
		file->sections_count = count;
	return err;
}

static int file_read(int fd, struct file *file)
{
	Elf64_Ehdr header;
	struct stat st;
	int err;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOEXEC;
	*file = (struct file){.fd = fd, .size = st.st_size};
	err = read_at(file, 0, &header, sizeof(header));
	if (err == -EBADMSG || (!err && (memcmp(header.e_ident, ELFMAG, SELFMAG) ||
						header.e_ident[EI_CLASS] != ELFCLASS64 ||
						header.e_ident[EI_DATA] != ELFDATA2LSB ||
						header.e_machine != EM_X86_64)))
		return -ENOEXEC;
	if (err)
		return err;
	if (header.e_phnum > SEGMENTS_MAX || header.e_phentsize != sizeof(Elf64_Phdr))
		return -EBADMSG;
	err = read_table(
		file, header.e_phoff, header.e_phnum, sizeof(Elf64_Phdr), (void **)&file->segments);
	if (err)
		return err;
	file->segments_count = header.e_phnum;
	return read_sections(file, &header);
}

/* Finds the address that the linker gave this byte of the code. */
static bool address_of(const struct file *file, uint64_t offset, uint64_t *address)
{
	const Elf64_Phdr *segment;
	unsigned i;

	for (i = 0; i < file->segments_count; i++) {
		segment = &file->segments[i];
		if (segment->p_type == PT_LOAD && segment->p_flags & PF_X &&
			offset >= segment->p_offset &&
			offset - segment->p_offset < segment->p_filesz) {
			*address = offset - segment->p_offset + segment->p_vaddr;
			return true;
		}
	}
	return false;
}

static int target_cmp(const void *a, const void *b)
{
	const struct target *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

/* Returns the first target at or after an address. */
static unsigned target_from(const struct search *search, uint64_t address)
{
	unsigned low = 0, high = search->count, middle;

	while (low < high) {
		middle = low + (high - low) / 2;
		if (search->targets[middle].address < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static uint64_t section_end(const struct file *file, unsigned section)
{
	return section < file->sections_count
		       ? file->sections[section].sh_addr + file->sections[section].sh_size
		       : 0;
}

static void offer(struct search *search, const Elf64_Sym *symbol, unsigned names, enum rank rank)
{
	unsigned i = target_from(search, symbol->st_value);
	struct target *target = &search->targets[i];

	if (i == search->count)
		return;
	if (!target->nearest_known || symbol->st_value > target->nearest ||
		(symbol->st_value == target->nearest && symbol->st_size)) {
		target->nearest_known = true;
		target->nearest = symbol->st_value;
		target->nearest_open = !symbol->st_size;
		target->nearest_end = section_end(&search->file, symbol->st_shndx);
		target->nearest_names = names;
		target->nearest_name = symbol->st_name;
	}
	for (; i < search->count; i++) {
		target = &search->targets[i];
		if (target->address - symbol->st_value >= symbol->st_size)
			break;
		if (target->rank &&
			(symbol->st_value < target->start ||
				(symbol->st_value == target->start && rank <= target->rank)))
			continue;
		target->start = symbol->st_value;
		target->rank = rank;
		target->names = names;
		target->name = symbol->st_name;
	}
}

static int search_table(struct search *search, const Elf64_Shdr *table)
{
	uint64_t count = table->sh_size / sizeof(Elf64_Sym), done, n, i;
	Elf64_Sym *chunk;
	int err = 0;

	if (table->sh_entsize != sizeof(Elf64_Sym) ||
		table->sh_link >= search->file.sections_count ||
		table->sh_offset > search->file.size ||
		table->sh_size > search->file.size - table->sh_offset)
		return -EBADMSG;
	chunk = malloc(SYMBOLS_CHUNK * sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	for (done = 0; done < count && !err; done += n) {
		n = count - done < SYMBOLS_CHUNK ? count - done : SYMBOLS_CHUNK;
		err = read_at(&search->file, table->sh_offset + done * sizeof(*chunk), chunk,
			n * sizeof(*chunk));
		for (i = 0; i < n && !err; i++) {
			unsigned type = ELF64_ST_TYPE(chunk[i].st_info);

			if ((type != STT_FUNC && type != STT_GNU_IFUNC) || !chunk[i].st_name ||
				chunk[i].st_shndx == SHN_UNDEF || chunk[i].st_shndx == SHN_ABS)
				continue;
			offer(search, &chunk[i], table->sh_link,
				ELF64_ST_BIND(chunk[i].st_info) == STB_LOCAL ? RANK_LOCAL
				: table->sh_type == SHT_DYNSYM		     ? RANK_EXPORTED
									     : RANK_GLOBAL);
		}
	}
	free(chunk);
	return err;
}

/* A symbol without a size reaches to the next symbol, which need not have a target of its own. */
static void give_sizes(struct search *search)
{
	struct target *target, *before = NULL;
	unsigned i;

	for (i = 0; i < search->count; i++, before = target) {
		target = &search->targets[i];
		if (!target->nearest_known && before && before->nearest_known) {
			target->nearest_known = true;
			target->nearest = before->nearest;
			target->nearest_open = before->nearest_open;
			target->nearest_end = before->nearest_end;
			target->nearest_names = before->nearest_names;
			target->nearest_name = before->nearest_name;
		}
		if (!target->rank && target->nearest_open &&
			target->address < target->nearest_end) {
			target->rank = RANK_LOCAL;
			target->start = target->nearest;
			target->names = target->nearest_names;
			target->name = target->nearest_name;
		}
	}
}

static int read_name(const struct file *file, const struct target *target)
{
	const Elf64_Shdr *names = &file->sections[target->names];
	char text[NAME_MAX_BYTES + 1], *version;
	uint64_t size = NAME_MAX_BYTES;
	int err;

	if (names->sh_type != SHT_STRTAB || target->name >= names->sh_size)
		return -EBADMSG;
	if (size > names->sh_size - target->name)
		size = names->sh_size - target->name;
	err = read_at(file, names->sh_offset + target->name, text, size);
	if (err)
		return err;
	text[size] = '\0';
	version = strchr(text, '@');
	if (version)
		*version = '\0';
	target->lookup->name = lien_symbols_demangle(text);
	target->lookup->into = target->address - target->start;
	return target->lookup->name ? 0 : -ENOMEM;
}

static int search_file(struct search *search, struct lien_symbol_lookup *lookups, unsigned count)
{
	struct file *file = &search->file;
	unsigned i;
	int err = 0;

	search->targets = calloc(count, sizeof(*search->targets));
	if (!search->targets)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		struct target *target = &search->targets[search->count];

		target->lookup = &lookups[i];
		search->count += address_of(file, lookups[i].offset, &target->address);
	}
	qsort(search->targets, search->count, sizeof(*search->targets), target_cmp);
	for (i = 0; i < file->sections_count && !err; i++)
		if (file->sections[i].sh_type == SHT_DYNSYM ||
			file->sections[i].sh_type == SHT_SYMTAB)
			err = search_table(search, &file->sections[i]);
	give_sizes(search);
	for (i = 0; i < search->count && !err; i++)
		if (search->targets[i].rank)
			err = read_name(file, &search->targets[i]);
	return err;
}

int lien_symbols_find(int fd, struct lien_symbol_lookup *lookups, unsigned count)
{
	struct search search = {.count = 0};
	unsigned i;
	int err;

	for (i = 0; i < count; i++)
		lookups[i].name = NULL;
	err = file_read(fd, &search.file);
	if (!err && count)
		err = search_file(&search, lookups, count);
	for (i = 0; i < count && err; i++) {
		free(lookups[i].name);
		lookups[i].name = NULL;
	}
	free(search.targets);
	file_clear(&search.file);
	return err;
}
