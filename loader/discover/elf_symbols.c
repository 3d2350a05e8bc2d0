/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/elf_symbols.h"

#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* libtorch's tables have some 100 MiB; libelf allocates whatever a section header claims. */
#define SECTION_MAX ((uint64_t)1 << 30)
#define PAGE	    ((uint64_t)4096)

struct lien_elf {
	Elf *elf;
	int fd;
	uint64_t size;
	size_t segments;
};

/* Ranks of symbols: exported over global in .symtab over local. */
enum rank {
	RANK_NONE,
	RANK_LOCAL,
	RANK_GLOBAL,
	RANK_OLD_VERSION, /* exported for old programs: name@VERSION, not name@@VERSION */
	RANK_EXPORTED,
};

struct wanted {
	const char *name;
	unsigned place; /* index in the caller's list */
	enum rank rank;
	uint64_t value;
};

struct search {
	struct lien_elf *elf;
	bool functions; /* otherwise data */
	struct wanted *wanted;
	unsigned count;
};

static int check_header(int fd)
{
	Elf64_Ehdr header;
	ssize_t n = pread(fd, &header, sizeof(header), 0);

	if (n < 0)
		return -errno;
	if (n < SELFMAG || memcmp(header.e_ident, ELFMAG, SELFMAG))
		return -ENOEXEC;
	if (n < (ssize_t)offsetof(Elf64_Ehdr, e_version))
		return -EBADMSG;
	if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
		header.e_machine != EM_X86_64 ||
		(header.e_type != ET_DYN && header.e_type != ET_EXEC))
		return -ENOEXEC;
	return n < (ssize_t)sizeof(header) ? -EBADMSG : 0;
}

static bool inside(const struct lien_elf *elf, uint64_t offset, uint64_t length)
{
	return offset <= elf->size && length <= elf->size - offset;
}

/* libelf treats truncated parts as if they had never existed; this detects them. */
static int check_tables(struct lien_elf *elf)
{
	GElf_Ehdr header;
	GElf_Phdr segment;
	size_t sections;

	if (!gelf_getehdr(elf->elf, &header) || elf_getphdrnum(elf->elf, &elf->segments) ||
		elf_getshdrnum(elf->elf, &sections))
		return -EBADMSG;
	if (elf->segments > UINT16_MAX ||
		!inside(elf, header.e_phoff, elf->segments * sizeof(Elf64_Phdr)))
		return -EBADMSG;
	if (header.e_shoff && (!sections || sections > SECTION_MAX / sizeof(Elf64_Shdr) ||
				      !inside(elf, header.e_shoff, sections * sizeof(Elf64_Shdr))))
		return -EBADMSG;
	for (size_t i = 0; i < elf->segments; i++) {
		if (!gelf_getphdr(elf->elf, i, &segment))
			return -EBADMSG;
		if (segment.p_type == PT_LOAD && !inside(elf, segment.p_offset, segment.p_filesz))
			return -EBADMSG;
	}
	return 0;
}

int lien_elf_open(int fd, struct lien_elf **out)
{
	struct lien_elf *elf;
	struct stat st;
	int err;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOEXEC;
	err = check_header(fd);
	if (err)
		return err;
	elf = calloc(1, sizeof(*elf));
	if (!elf)
		return -ENOMEM;
	elf->size = st.st_size;
	elf->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (elf->fd < 0) {
		err = -errno;
		goto fail;
	}
	elf_version(EV_CURRENT);
	elf->elf = elf_begin(elf->fd, ELF_C_READ, NULL);
	err = -EBADMSG;
	if (!elf->elf || elf_kind(elf->elf) != ELF_K_ELF)
		goto fail;
	err = check_tables(elf);
	if (err)
		goto fail;
	*out = elf;
	return 0;
fail:
	lien_elf_close(elf);
	return err;
}

void lien_elf_close(struct lien_elf *elf)
{
	if (!elf)
		return;
	if (elf->elf)
		elf_end(elf->elf);
	if (elf->fd >= 0)
		close(elf->fd);
	free(elf);
}

static int compare_wanted(const void *a, const void *b)
{
	const struct wanted *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* strcmp() of a plain name and a symbol's name, which may carry "@version". */
static int compare_symbol(const char *wanted, const char *symbol)
{
	while (*wanted && *wanted == *symbol) {
		wanted++;
		symbol++;
	}
	return (unsigned char)*wanted - (*symbol == '@' ? 0 : (unsigned char)*symbol);
}

static bool fits(const struct search *search, const GElf_Sym *symbol)
{
	int type = GELF_ST_TYPE(symbol->st_info);

	return search->functions ? type == STT_FUNC : type == STT_OBJECT || type == STT_NOTYPE;
}

/* Lookups of the same name are neighbours in the sorted list: each gets the answer. */
static void offer(struct search *search, const char *name, enum rank rank, uint64_t value)
{
	unsigned low = 0, high = search->count;

	while (low < high) {
		unsigned middle = low + (high - low) / 2;

		if (compare_symbol(search->wanted[middle].name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < search->count && !compare_symbol(search->wanted[low].name, name); low++) {
		struct wanted *wanted = &search->wanted[low];

		if (rank > wanted->rank) {
			wanted->rank = rank;
			wanted->value = value;
		}
	}
}

/* Returns the version of each symbol of a table; NULL: it has none. */
static const uint16_t *versions_of(Elf *elf, Elf_Scn *table, uint64_t count)
{
	size_t index = elf_ndxscn(table);
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	Elf_Data *data;

	while ((section = elf_nextscn(elf, section))) {
		if (!gelf_getshdr(section, &header) || header.sh_type != SHT_GNU_versym ||
			header.sh_link != index || header.sh_size > SECTION_MAX)
			continue;
		data = elf_getdata(section, NULL);
		return data && data->d_buf && data->d_size >= count * sizeof(uint16_t) ? data->d_buf
										       : NULL;
	}
	return NULL;
}

#define VERSION_HIDDEN 0x8000

/* `old`: the symbol is for old programs. */
typedef int symbol_fn(
	void *context, const char *name, const GElf_Sym *symbol, bool exported, bool old);

/* Calls fn for each named symbol of a table until it returns non-zero, and returns that value. */
static int walk_table(
	Elf *elf, Elf_Scn *section, const GElf_Shdr *header, symbol_fn *fn, void *context)
{
	bool exported = header->sh_type == SHT_DYNSYM;
	GElf_Shdr names_header;
	Elf_Data *data, *names;
	const uint16_t *versions;
	Elf_Scn *names_section;
	uint64_t count;
	int err = 0;

	names_section = elf_getscn(elf, header->sh_link);
	if (!names_section || !gelf_getshdr(names_section, &names_header) ||
		names_header.sh_type != SHT_STRTAB || names_header.sh_size > SECTION_MAX ||
		header->sh_size > SECTION_MAX || header->sh_entsize != sizeof(Elf64_Sym))
		return -EBADMSG;
	data = elf_getdata(section, NULL);
	names = elf_getdata(names_section, NULL);
	if (!data || !names || !names->d_buf || !names->d_size ||
		((const char *)names->d_buf)[names->d_size - 1])
		return -EBADMSG;
	count = data->d_buf ? data->d_size / sizeof(Elf64_Sym) : 0;
	versions = exported ? versions_of(elf, section, count) : NULL;
	for (uint64_t i = 1; i < count && !err; i++) {
		GElf_Sym symbol;

		if (!gelf_getsym(data, i, &symbol))
			return -EBADMSG;
		if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS || !symbol.st_name)
			continue;
		if (symbol.st_name >= names->d_size)
			return -EBADMSG;
		err = fn(context, (const char *)names->d_buf + symbol.st_name, &symbol, exported,
			versions && versions[i] & VERSION_HIDDEN);
	}
	return err;
}

static int walk_tables(Elf *elf, unsigned type, symbol_fn *fn, void *context)
{
	Elf_Scn *section = NULL;
	int err = 0;

	while (!err && (section = elf_nextscn(elf, section))) {
		GElf_Shdr header;

		if (!gelf_getshdr(section, &header))
			return -EBADMSG;
		if (header.sh_type == type)
			err = walk_table(elf, section, &header, fn, context);
	}
	return err;
}

static int offer_symbol(
	void *context, const char *name, const GElf_Sym *symbol, bool exported, bool old)
{
	bool local = GELF_ST_BIND(symbol->st_info) == STB_LOCAL;
	struct search *search = context;

	if (fits(search, symbol) && !(local && exported))
		offer(search, name,
			old	   ? RANK_OLD_VERSION
			: exported ? RANK_EXPORTED
			: local	   ? RANK_LOCAL
				   : RANK_GLOBAL,
			symbol->st_value);
	return 0;
}

static bool all_exported(const struct search *search)
{
	for (unsigned i = 0; i < search->count; i++) {
		if (search->wanted[i].rank != RANK_EXPORTED)
			return false;
	}
	return true;
}

static int search_all(struct search *search)
{
	int err;

	qsort(search->wanted, search->count, sizeof(*search->wanted), compare_wanted);
	err = walk_tables(search->elf->elf, SHT_DYNSYM, offer_symbol, search);
	if (err || all_exported(search))
		return err;
	return walk_tables(search->elf->elf, SHT_SYMTAB, offer_symbol, search);
}

static int segment_of(struct lien_elf *elf, uint64_t address, GElf_Phdr *segment)
{
	for (size_t i = 0; i < elf->segments; i++) {
		if (gelf_getphdr(elf->elf, i, segment) && segment->p_type == PT_LOAD &&
			address >= segment->p_vaddr &&
			address - segment->p_vaddr < segment->p_memsz)
			return 0;
	}
	return -ENOENT;
}

static int function_offset(struct lien_elf *elf, uint64_t address, uint64_t *offset)
{
	GElf_Phdr segment;

	if (segment_of(elf, address, &segment) || !(segment.p_flags & PF_X) ||
		address - segment.p_vaddr >= segment.p_filesz)
		return -ENOENT;
	*offset = address - segment.p_vaddr + segment.p_offset;
	return 0;
}

int lien_elf_functions(struct lien_elf *elf, struct lien_elf_lookup *lookups, unsigned count)
{
	struct search search = {.elf = elf, .functions = true, .count = count};
	int err, found = 0;

	if (!count)
		return 0;
	search.wanted = calloc(count, sizeof(*search.wanted));
	if (!search.wanted)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++) {
		search.wanted[i].name = lookups[i].name;
		search.wanted[i].place = i;
	}
	err = search_all(&search);
	for (unsigned i = 0; i < count && !err; i++) {
		struct wanted *wanted = &search.wanted[i];
		struct lien_elf_lookup *lookup = &lookups[wanted->place];

		lookup->result = -ENOENT;
		if (wanted->rank)
			lookup->result = function_offset(elf, wanted->value, &lookup->file_offset);
		if (!lookup->result)
			found++;
	}
	free(search.wanted);
	return err ? err : found;
}

int lien_elf_function(struct lien_elf *elf, const char *name, uint64_t *file_offset)
{
	struct lien_elf_lookup lookup = {.name = name};
	int err = lien_elf_functions(elf, &lookup, 1);

	if (err < 0)
		return err;
	if (!lookup.result)
		*file_offset = lookup.file_offset;
	return lookup.result;
}

struct exports {
	struct lien_elf *elf;
	int (*fn)(void *context, const char *name, uint64_t file_offset);
	void *context;
};

#define NAME_SIZE 256 /* no function of our libraries has a longer name */

static int give_export(
	void *context, const char *name, const GElf_Sym *symbol, bool exported, bool old)
{
	unsigned type = GELF_ST_TYPE(symbol->st_info);
	const struct exports *exports = context;
	uint64_t offset = UINT64_MAX;
	char plain[NAME_SIZE];
	size_t length = strcspn(name, "@");

	(void)exported;
	(void)old;
	if ((type != STT_FUNC && type != STT_GNU_IFUNC) ||
		GELF_ST_BIND(symbol->st_info) == STB_LOCAL || length >= sizeof(plain))
		return 0;
	memcpy(plain, name, length);
	plain[length] = '\0';
	if (type == STT_FUNC && function_offset(exports->elf, symbol->st_value, &offset))
		return 0;
	return exports->fn(exports->context, plain, offset);
}

int lien_elf_exports(struct lien_elf *elf,
	int (*fn)(void *context, const char *name, uint64_t file_offset), void *context)
{
	struct exports exports = {elf, fn, context};

	return walk_tables(elf->elf, SHT_DYNSYM, give_export, &exports);
}

int lien_elf_object(struct lien_elf *elf, const char *name, uint64_t *value)
{
	struct wanted wanted = {.name = name};
	struct search search = {.elf = elf, .wanted = &wanted, .count = 1};
	uint64_t first = UINT64_MAX;
	GElf_Phdr segment;
	int err;

	err = search_all(&search);
	if (err)
		return err;
	if (!wanted.rank || segment_of(elf, wanted.value, &segment))
		return -ENOENT;
	for (size_t i = 0; i < elf->segments; i++) {
		if (gelf_getphdr(elf->elf, i, &segment) && segment.p_type == PT_LOAD &&
			segment.p_vaddr < first)
			first = segment.p_vaddr;
	}
	*value = wanted.value - first / PAGE * PAGE;
	return 0;
}

int lien_elf_text(struct lien_elf *elf, uint64_t *address, uint64_t *file_offset)
{
	GElf_Phdr segment;

	for (size_t i = 0; i < elf->segments; i++)
		if (gelf_getphdr(elf->elf, i, &segment) && segment.p_type == PT_LOAD &&
			segment.p_flags & PF_X) {
			*address = segment.p_vaddr / PAGE * PAGE;
			*file_offset = segment.p_offset / PAGE * PAGE;
			return 0;
		}
	return -ENOENT;
}

static int put_hex(const unsigned char *bytes, size_t count, char *hex, size_t size)
{
	static const char digits[] = "0123456789abcdef";

	if (size / 2 < count || size < 2 * count + 1)
		return -ENOSPC;
	for (size_t i = 0; i < count; i++) {
		hex[2 * i] = digits[bytes[i] >> 4];
		hex[2 * i + 1] = digits[bytes[i] & 15];
	}
	hex[2 * count] = 0;
	return 0;
}

int lien_elf_build_id(struct lien_elf *elf, char *hex, size_t size)
{
	for (size_t i = 0; i < elf->segments; i++) {
		size_t next, offset = 0, name, body;
		GElf_Phdr segment;
		Elf_Data *data;
		GElf_Nhdr note;

		if (!gelf_getphdr(elf->elf, i, &segment) || segment.p_type != PT_NOTE)
			continue;
		if (!inside(elf, segment.p_offset, segment.p_filesz) ||
			segment.p_filesz > SECTION_MAX)
			return -EBADMSG;
		data = elf_getdata_rawchunk(elf->elf, segment.p_offset, segment.p_filesz,
			segment.p_align == 8 ? ELF_T_NHDR8 : ELF_T_NHDR);
		while (data && (next = gelf_getnote(data, offset, &note, &name, &body))) {
			if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof("GNU") &&
				!memcmp((char *)data->d_buf + name, "GNU", sizeof("GNU")))
				return put_hex((unsigned char *)data->d_buf + body, note.n_descsz,
					hex, size);
			offset = next;
		}
	}
	return -ENOENT;
}
