/* SPDX-License-Identifier: BSD-2-Clause */
#include "loader/discover/elf_symbols.h"

#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <libiberty/demangle.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
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
	RANK_EXPORTED,
};

static bool inside(const struct lien_elf *elf, uint64_t offset, uint64_t length)
{
	return offset <= elf->size && length <= elf->size - offset;
}

/* libelf treats truncated parts as if they had never existed; this detects them. */
static int check(struct lien_elf *elf)
{
	GElf_Ehdr header;
	char magic[SELFMAG];
	GElf_Phdr segment;
	size_t sections;
	ssize_t n;

	if (elf_kind(elf->elf) != ELF_K_ELF) {
		n = pread(elf->fd, magic, SELFMAG, 0);
		if (n < 0)
			return -errno;
		return n == SELFMAG && !memcmp(magic, ELFMAG, SELFMAG) ? -EBADMSG : -ENOEXEC;
	}
	if (!gelf_getehdr(elf->elf, &header) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
		header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_machine != EM_X86_64 ||
		(header.e_type != ET_DYN && header.e_type != ET_EXEC))
		return -ENOEXEC;
	if (elf_getphdrnum(elf->elf, &elf->segments) || elf_getshdrnum(elf->elf, &sections) ||
		elf->segments > UINT16_MAX ||
		!inside(elf, header.e_phoff, elf->segments * sizeof(Elf64_Phdr)))
		return -EBADMSG;
	if (header.e_shoff && (!sections || sections > SECTION_MAX / sizeof(Elf64_Shdr) ||
				      !inside(elf, header.e_shoff, sections * sizeof(Elf64_Shdr))))
		return -EBADMSG;
	for (size_t i = 0; i < elf->segments; i++)
		if (!gelf_getphdr(elf->elf, i, &segment) ||
			(segment.p_type == PT_LOAD &&
				!inside(elf, segment.p_offset, segment.p_filesz)))
			return -EBADMSG;
	return 0;
}

/* On success the caller must elf_end(elf->elf). */
static int open_elf(struct lien_elf *elf, int fd)
{
	struct stat st;
	int err;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOEXEC;
	elf_version(EV_CURRENT);
	*elf = (struct lien_elf){elf_begin(fd, ELF_C_READ, NULL), fd, st.st_size, 0};
	err = check(elf);
	if (err)
		elf_end(elf->elf);
	return err;
}

/* -EBADMSG: the file is too short. */
static int read_at(const struct lien_elf *elf, uint64_t offset, void *to, size_t size)
{
	char *at = to;
	ssize_t n;

	if (!inside(elf, offset, size))
		return -EBADMSG;
	for (; size; at += n, offset += n, size -= n) {
		n = pread(elf->fd, at, size, offset);
		if (n <= 0)
			return n ? -errno : -EBADMSG; /* the file shrank */
	}
	return 0;
}

#define SYMBOLS_CHUNK 4096

/* A defined symbol with a name, which is at .st_name of section .names. */
struct symbol {
	const Elf64_Sym *sym;
	uint64_t index; /* in its table */
	unsigned names;
	enum rank rank;
};

typedef int symbol_fn(void *context, const struct symbol *symbol);

/* Calls fn for each such symbol of a table until it returns non-zero, and returns that value. Reads
 * the table piecewise: it may have 100s of MiB. */
static int walk_table(
	const struct lien_elf *elf, const GElf_Shdr *table, symbol_fn *fn, void *context)
{
	uint64_t count = table->sh_size / sizeof(Elf64_Sym), done, n, i;
	enum rank rank = table->sh_type == SHT_DYNSYM ? RANK_EXPORTED : RANK_GLOBAL;
	Elf64_Sym *chunk;
	int err = 0;

	if (table->sh_entsize != sizeof(*chunk) || !elf_getscn(elf->elf, table->sh_link) ||
		!inside(elf, table->sh_offset, table->sh_size))
		return -EBADMSG;
	chunk = malloc(SYMBOLS_CHUNK * sizeof(*chunk));
	if (!chunk)
		return -ENOMEM;
	for (done = 0; done < count && !err; done += n) {
		n = count - done < SYMBOLS_CHUNK ? count - done : SYMBOLS_CHUNK;
		err = read_at(
			elf, table->sh_offset + done * sizeof(*chunk), chunk, n * sizeof(*chunk));
		for (i = 0; i < n && !err; i++) {
			bool local = ELF64_ST_BIND(chunk[i].st_info) == STB_LOCAL;
			struct symbol symbol = {
				chunk + i, done + i, table->sh_link, local ? RANK_LOCAL : rank};

			if (chunk[i].st_name && chunk[i].st_shndx != SHN_UNDEF &&
				chunk[i].st_shndx != SHN_ABS)
				err = fn(context, &symbol);
		}
	}
	free(chunk);
	return err;
}

/* Finds the first loaded segment with these flags that has this address or, `in_file`, this byte of
 * the file; NULL: any. */
static bool find_segment(
	struct lien_elf *elf, unsigned flags, const uint64_t *at, bool in_file, GElf_Phdr *segment)
{
	for (size_t i = 0; i < elf->segments; i++) {
		uint64_t start, size;

		if (!gelf_getphdr(elf->elf, i, segment) || segment->p_type != PT_LOAD ||
			(segment->p_flags & flags) != flags)
			continue;
		start = in_file ? segment->p_offset : segment->p_vaddr;
		size = in_file ? segment->p_filesz : segment->p_memsz;
		if (!at || (*at >= start && *at - start < size))
			return true;
	}
	return false;
}

static int function_offset(struct lien_elf *elf, uint64_t address, uint64_t *offset)
{
	GElf_Phdr segment;

	if (!find_segment(elf, PF_X, &address, false, &segment) ||
		address - segment.p_vaddr >= segment.p_filesz)
		return -ENOENT;
	*offset = address - segment.p_vaddr + segment.p_offset;
	return 0;
}

int lien_elf_text(int fd, uint64_t *address, uint64_t *file_offset)
{
	GElf_Phdr segment;
	struct lien_elf elf;
	int err = open_elf(&elf, fd);

	if (err)
		return err;
	err = find_segment(&elf, PF_X, NULL, false, &segment) ? 0 : -ENOENT;
	elf_end(elf.elf);
	*address = err ? 0 : segment.p_vaddr / PAGE * PAGE;
	*file_offset = err ? 0 : segment.p_offset / PAGE * PAGE;
	return err;
}

/* --- what a file exports ---------------------------------------------------------------------- */

struct exports {
	struct lien_elf *elf;
	lien_elf_export_fn *fn;
	void *context;
	const Elf_Data *names;
	const uint16_t *versions; /* of each symbol; NULL: none */
};

#define VERSION_HIDDEN 0x8000
#define NAME_SIZE      256 /* no function of our libraries has a longer name */

static int give_export(void *context, const struct symbol *symbol)
{
	const struct exports *exports = context;
	const Elf64_Sym *sym = symbol->sym;
	unsigned type = ELF64_ST_TYPE(sym->st_info);
	struct lien_elf_export export = {
		.function = type == STT_FUNC || type == STT_GNU_IFUNC,
		.old = exports->versions && exports->versions[symbol->index] & VERSION_HIDDEN,
		.address = sym->st_value,
		.file_offset = UINT64_MAX,
	};

	if (sym->st_name >= exports->names->d_size)
		return -EBADMSG;
	if (symbol->rank == RANK_LOCAL ||
		(!export.function && type != STT_OBJECT && type != STT_NOTYPE) ||
		(type == STT_FUNC &&
			function_offset(exports->elf, sym->st_value, &export.file_offset)))
		return 0;
	export.name = (const char *)exports->names->d_buf + sym->st_name;
	return strnlen(export.name, NAME_SIZE) < NAME_SIZE ? exports->fn(exports->context, &export)
							   : 0;
}

/* Finds the version of each symbol of a table. */
static const uint16_t *versions_of(Elf *elf, Elf_Scn *table, uint64_t size)
{
	size_t index = elf_ndxscn(table), bytes = size / sizeof(Elf64_Sym) * sizeof(uint16_t);
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	Elf_Data *data;

	while ((section = elf_nextscn(elf, section))) {
		if (!gelf_getshdr(section, &header) || header.sh_type != SHT_GNU_versym ||
			header.sh_link != index || header.sh_size > SECTION_MAX)
			continue;
		data = elf_getdata(section, NULL);
		return data && data->d_buf && data->d_size >= bytes ? data->d_buf : NULL;
	}
	return NULL;
}

static int walk_exports(struct exports *exports, Elf_Scn *table, const GElf_Shdr *header)
{
	Elf *elf = exports->elf->elf;
	Elf_Scn *section = elf_getscn(elf, header->sh_link);
	GElf_Shdr names;
	const Elf_Data *data;

	if (!section || !gelf_getshdr(section, &names) || names.sh_type != SHT_STRTAB ||
		names.sh_size > SECTION_MAX || header->sh_size > SECTION_MAX)
		return -EBADMSG;
	data = exports->names = elf_getdata(section, NULL);
	if (!data || !data->d_buf || !data->d_size || ((const char *)data->d_buf)[data->d_size - 1])
		return -EBADMSG;
	exports->versions = versions_of(elf, table, header->sh_size);
	return walk_table(exports->elf, header, give_export, exports);
}

static int walk_all_exports(struct lien_elf *elf, lien_elf_export_fn *fn, void *context)
{
	struct exports exports = {.elf = elf, .fn = fn, .context = context};
	Elf_Scn *section = NULL;
	GElf_Shdr header;

	while ((section = elf_nextscn(elf->elf, section))) {
		if (!gelf_getshdr(section, &header))
			return -EBADMSG;
		if (header.sh_type == SHT_DYNSYM) /* a file has one; ten thousand would take long */
			return walk_exports(&exports, section, &header);
	}
	return 0;
}

int lien_elf_exports(int fd, lien_elf_export_fn *fn, void *context)
{
	struct lien_elf elf;
	int err = open_elf(&elf, fd);

	if (err)
		return err;
	err = walk_all_exports(&elf, fn, context);
	elf_end(elf.elf);
	return err;
}

struct object {
	const char *name;
	uint64_t address;
};

static int take_object(void *context, const struct lien_elf_export *export)
{
	struct object *object = context;

	if (export->function || strcmp(export->name, object->name))
		return 0;
	object->address = export->address;
	return 1;
}

int lien_elf_object(int fd, const char *name, uint64_t *value)
{
	struct object object = {.name = name};
	GElf_Phdr segment;
	struct lien_elf elf;
	int err = open_elf(&elf, fd), found;

	if (err)
		return err;
	found = walk_all_exports(&elf, take_object, &object);
	err = found < 0 ? found : -ENOENT;
	if (found > 0 && find_segment(&elf, 0, &object.address, false, &segment) &&
		find_segment(&elf, 0, NULL, false, &segment)) {
		*value = object.address - segment.p_vaddr / PAGE * PAGE;
		err = 0;
	}
	elf_end(elf.elf);
	return err;
}

static int put_hex(const unsigned char *bytes, size_t count, char *hex, size_t size)
{
	if (size / 2 < count || size < 2 * count + 1)
		return -ENOSPC;
	*hex = '\0';
	for (size_t i = 0; i < count; i++)
		sprintf(hex + 2 * i, "%02x", bytes[i]);
	return 0;
}

static int find_build_id(const struct lien_elf *elf, char *hex, size_t size)
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

int lien_elf_build_id(int fd, char *hex, size_t size)
{
	struct lien_elf elf;
	int err = open_elf(&elf, fd);

	if (err)
		return err;
	err = find_build_id(&elf, hex, size);
	elf_end(elf.elf);
	return err;
}

/* --- functions by place ---------------------------------------------------------------------- */

#define NAME_MAX_BYTES 4096
/* A mangled name can be written so that it expands without end; such names are truncated. */
#define DEMANGLED_MAX 480

/* A function: its symbol without the name, which is read when it is known to be needed. */
struct function {
	uint64_t start, size;
	unsigned section, names, name;
	enum rank rank; /* RANK_NONE: no function */
};

/* A place to name, by its address: symbols do not refer to places in the file. */
struct target {
	struct lien_symbol_lookup *lookup;
	uint64_t address;
	struct function inner;	 /* the one with a size that contains it */
	struct function nearest; /* the last one between the previous target and this one */
};

struct targets {
	struct lien_elf *elf;
	struct target *list; /* sorted by address */
	unsigned count;
};

static int compare_targets(const void *a, const void *b)
{
	const struct target *x = a, *y = b;

	return (x->address > y->address) - (x->address < y->address);
}

/* Returns the first target at or after an address. */
static unsigned target_from(const struct targets *targets, uint64_t address)
{
	unsigned low = 0, high = targets->count, middle;

	while (low < high) {
		middle = low + (high - low) / 2;
		if (targets->list[middle].address < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int offer_function(void *context, const struct symbol *symbol)
{
	const struct function function = {.start = symbol->sym->st_value,
		.size = symbol->sym->st_size,
		.section = symbol->sym->st_shndx,
		.names = symbol->names,
		.name = symbol->sym->st_name,
		.rank = symbol->rank};
	unsigned type = ELF64_ST_TYPE(symbol->sym->st_info), i;
	struct targets *targets = context;
	struct target *target;

	i = target_from(targets, function.start);
	if (i == targets->count || (type != STT_FUNC && type != STT_GNU_IFUNC))
		return 0;
	target = &targets->list[i];
	if (!target->nearest.rank || function.start > target->nearest.start ||
		(function.start == target->nearest.start && function.size))
		target->nearest = function;
	for (; i < targets->count; i++) {
		target = &targets->list[i];
		if (target->address - function.start >= function.size)
			break;
		if (function.start > target->inner.start || !target->inner.rank ||
			(function.start == target->inner.start &&
				function.rank > target->inner.rank))
			target->inner = function;
	}
	return 0;
}

struct demangled {
	char text[DEMANGLED_MAX + 1];
	size_t length;
	jmp_buf full;
};

static void take_demangled(const char *text, size_t length, void *opaque)
{
	struct demangled *demangled = opaque;
	size_t room = DEMANGLED_MAX - demangled->length;

	memcpy(demangled->text + demangled->length, text, length < room ? length : room);
	demangled->length += length < room ? length : room;
	/* libiberty has nothing on the heap at this point, so longjmp() leaks nothing. */
	if (length > room)
		longjmp(demangled->full, 1);
}

/* Returns the demangled C++ name without arguments; a copy of any other name. The caller frees. */
static char *demangle(const char *name)
{
	struct demangled demangled;

	demangled.length = 0;
	if (strncmp(name, "_Z", 2))
		return strdup(name);
	if (!setjmp(demangled.full) &&
		!cplus_demangle_v3_callback(name, 0, take_demangled, &demangled))
		return strdup(name);
	demangled.text[demangled.length] = '\0';
	return strdup(demangled.text);
}

static int name_target(struct lien_elf *elf, struct target *target)
{
	const struct function *function = &target->inner;
	char text[NAME_MAX_BYTES + 1];
	uint64_t size = NAME_MAX_BYTES;
	GElf_Shdr names;
	int err;

	if (!gelf_getshdr(elf_getscn(elf->elf, function->names), &names) ||
		names.sh_type != SHT_STRTAB || function->name >= names.sh_size)
		return -EBADMSG;
	if (size > names.sh_size - function->name)
		size = names.sh_size - function->name;
	err = read_at(elf, names.sh_offset + function->name, text, size);
	if (err)
		return err;
	text[size] = '\0';
	text[strcspn(text, "@")] = '\0';
	target->lookup->name = demangle(text);
	target->lookup->into = target->address - function->start;
	return target->lookup->name ? 0 : -ENOMEM;
}

/* A symbol without a size reaches to the next symbol, which need not have a target of its own, and
 * at most to the end of its section. */
static int name_all(struct targets *targets)
{
	GElf_Shdr section;
	int err = 0;

	for (unsigned i = 0; i < targets->count && !err; i++) {
		struct target *target = &targets->list[i];

		if (!target->nearest.rank && i)
			target->nearest = targets->list[i - 1].nearest;
		if (!target->inner.rank && target->nearest.rank && !target->nearest.size &&
			gelf_getshdr(
				elf_getscn(targets->elf->elf, target->nearest.section), &section) &&
			target->address < section.sh_addr + section.sh_size)
			target->inner = target->nearest;
		if (target->inner.rank)
			err = name_target(targets->elf, target);
	}
	return err;
}

static int search_places(struct lien_elf *elf, struct lien_symbol_lookup *lookups, unsigned count)
{
	struct targets targets = {.elf = elf, .list = calloc(count, sizeof(*targets.list))};
	Elf_Scn *section = NULL;
	GElf_Shdr header;
	int err = 0;

	if (!targets.list)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++) {
		struct target *target = &targets.list[targets.count];
		GElf_Phdr segment;

		target->lookup = &lookups[i];
		if (!find_segment(elf, PF_X, &lookups[i].offset, true, &segment))
			continue;
		target->address = lookups[i].offset - segment.p_offset + segment.p_vaddr;
		targets.count++;
	}
	qsort(targets.list, targets.count, sizeof(*targets.list), compare_targets);
	while (!err && (section = elf_nextscn(elf->elf, section)))
		if (!gelf_getshdr(section, &header))
			err = -EBADMSG;
		else if (header.sh_type == SHT_DYNSYM || header.sh_type == SHT_SYMTAB)
			err = walk_table(elf, &header, offer_function, &targets);
	if (!err)
		err = name_all(&targets);
	free(targets.list);
	return err;
}

int lien_symbols_find(int fd, struct lien_symbol_lookup *lookups, unsigned count)
{
	struct lien_elf elf;
	int err = open_elf(&elf, fd);

	for (unsigned i = 0; i < count; i++)
		lookups[i].name = NULL;
	if (err)
		return err;
	if (count)
		err = search_places(&elf, lookups, count);
	for (unsigned i = 0; i < count && err; i++) {
		free(lookups[i].name);
		lookups[i].name = NULL;
	}
	elf_end(elf.elf);
	return err;
}
