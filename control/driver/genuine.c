// SPDX-License-Identifier: BSD-2-Clause
#include <elf.h>
#include <link.h>
#include <string.h>

#include "control/driver/genuine.h"
#include "control/driver/interpose.h"

static const char *const names[LIEN_GENUINE_COUNT] = {"dlsym", "dlvsym"};
static void *genuine[LIEN_GENUINE_COUNT];

struct lien_symbols lien_symbols_of(uintptr_t base, const ElfW(Dyn) * entry)
{
	struct lien_symbols symbols = {0};
	uintptr_t at, library = 0;

	for (; entry && entry->d_tag != DT_NULL; entry++) {
		at = entry->d_un.d_ptr;
		if (at < base) /* the linker has not turned it into an address */
			at += base;
		if (entry->d_tag == DT_GNU_HASH)
			symbols.hash = (const void *)at;
		else if (entry->d_tag == DT_SYMTAB)
			symbols.symbol = (const void *)at;
		else if (entry->d_tag == DT_STRTAB)
			symbols.names = (const char *)at;
		else if (entry->d_tag == DT_VERSYM)
			symbols.versions = (const void *)at;
		else if (entry->d_tag == DT_SONAME)
			library = entry->d_un.d_val;
		else if (entry->d_tag == DT_JMPREL)
			symbols.calls = (const void *)at;
		else if (entry->d_tag == DT_PLTRELSZ)
			symbols.calls_count = entry->d_un.d_val / sizeof(*symbols.calls);
	}
	if (library && symbols.names)
		symbols.library = symbols.names + library;
	return symbols;
}

/* A function may have several versions. Returns true for the default one. */
static int is_default(const struct lien_symbols *symbols, uint32_t i)
{
	return !symbols->versions || !(symbols->versions[i] & 0x8000);
}

static uint32_t hash_of(const char *name)
{
	uint32_t hash = 5381;

	while (*name)
		hash = hash * 33 + (unsigned char)*name++;
	return hash;
}

/* Layout of DT_GNU_HASH: number of buckets, index of the first symbol, words of the filter, its
 * shift; then the filter, the buckets and the chains. The last entry of a chain is odd. */
static const ElfW(Sym) * find_symbol(const struct lien_symbols *symbols, const char *name)
{
	const uint32_t *table = symbols->hash, hash = hash_of(name), *buckets, *chains;
	const ElfW(Sym) * symbol;
	uint32_t i;

	if (!table || !symbols->symbol || !symbols->names || !table[0])
		return NULL;
	buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	chains = buckets + table[0];
	for (i = buckets[hash % table[0]]; i >= table[1]; i++) {
		symbol = &symbols->symbol[i];
		if ((chains[i - table[1]] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
			is_default(symbols, i) && lien_same(symbols->names + symbol->st_name, name))
			return symbol;
		if (chains[i - table[1]] & 1)
			break;
	}
	return NULL;
}

static uintptr_t find(const struct lien_symbols *symbols, const char *name)
{
	const ElfW(Sym) *symbol = find_symbol(symbols, name);

	return symbol ? symbol->st_value : 0;
}

static int begins(const char *text, const char *with)
{
	while (*with && *text == *with)
		text++, with++;
	return !*with;
}

static int is_libc(const char *path)
{
	const char *file = lien_file_of(path);

	return lien_same(file, "libc.so.6") ||
	       lien_same(file, "libdl.so.2"); /* contains it up to 2.33 */
}

static void look_in(const struct link_map *map)
{
	const struct lien_symbols symbols = lien_symbols_of(map->l_addr, map->l_ld);
	uintptr_t value;
	unsigned i;

	for (i = 0; i < LIEN_GENUINE_COUNT; i++) {
		value = find(&symbols, names[i]);
		if (value)
			__atomic_store_n(
				&genuine[i], (void *)(map->l_addr + value), __ATOMIC_RELEASE);
	}
}

/* Sanitizers intercept dl_iterate_phdr(), and call dlsym() before they are ready. The list is read
 * without glibc's lock: libc is there from the start, and before all that may come and go. */
static void look(void)
{
	const struct link_map *map;

	for (map = _r_debug.r_map; map && !genuine[LIEN_GENUINE_COUNT - 1]; map = map->l_next)
		if (is_libc(map->l_name))
			look_in(map);
}

/* This library's. */
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

struct wanted {
	const char *library, *name;
	struct lien_genuine_range found;
};

/* The linker takes a library by its file's name, or by the name in it. */
static int is_named(const char *path, const struct lien_symbols *symbols, const char *name)
{
	return begins(lien_file_of(path), name) ||
	       (symbols->library && begins(symbols->library, name));
}

static const ElfW(Dyn) * dynamic_of(const struct dl_phdr_info *info)
{
	unsigned i;

	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return NULL;
}

static int look_for(struct dl_phdr_info *info, size_t size, void *context)
{
	const ElfW(Dyn) *dynamic = dynamic_of(info);
	const struct lien_symbols symbols = lien_symbols_of(info->dlpi_addr, dynamic);
	struct wanted *wanted = context;
	const ElfW(Sym) * symbol;

	(void)size;
	if (dynamic == _DYNAMIC || !is_named(info->dlpi_name, &symbols, wanted->library))
		return 0;
	symbol = find_symbol(&symbols, wanted->name);
	if (symbol)
		wanted->found = (struct lien_genuine_range){
			info->dlpi_addr + symbol->st_value, symbol->st_size};
	return wanted->found.base != 0;
}

int lien_genuine_range_of(const char *library, const char *name, struct lien_genuine_range *range)
{
	struct wanted wanted = {library, name, {0}};

	dl_iterate_phdr(look_for, &wanted);
	if (wanted.found.base)
		*range = wanted.found;
	return wanted.found.base != 0;
}

/* The list is read without glibc's lock: what lies before libc was there from the start. */
static const struct link_map *self(void)
{
	const struct link_map *map;

	for (map = _r_debug.r_map; map && !is_libc(map->l_name); map = map->l_next)
		if (map->l_ld == _DYNAMIC)
			return map;
	return NULL;
}

int lien_genuine_is_preloaded(void)
{
	return self() != NULL;
}

void *lien_genuine_behind(const char *name)
{
	const struct link_map *map = self();
	struct lien_symbols symbols;
	uintptr_t value;

	while (map && (map = map->l_next) && !is_libc(map->l_name)) {
		symbols = lien_symbols_of(map->l_addr, map->l_ld);
		value = find(&symbols, name);
		if (value && is_named(map->l_name, &symbols, LIEN_GENUINE_DRIVER))
			return NULL;
		if (value)
			return (void *)(map->l_addr + value);
	}
	return NULL;
}

struct after {
	const char *name;
	uintptr_t code;
	int behind;
	void *found;
};

static int look_after(struct dl_phdr_info *info, size_t size, void *context)
{
	const struct lien_symbols symbols = lien_symbols_of(info->dlpi_addr, dynamic_of(info));
	struct after *after = context;
	uintptr_t value;

	(void)size;
	value = after->behind ? find(&symbols, after->name) : 0;
	if (value)
		after->found = (void *)(info->dlpi_addr + value);
	if (lien_segment_of(info, after->code))
		after->behind = 1;
	return value != 0;
}

void *lien_genuine_after(const void *code, const char *name)
{
	struct after after = {name, (uintptr_t)code, 0, NULL};

	dl_iterate_phdr(look_after, &after);
	return after.found;
}

void *lien_genuine(enum lien_genuine which)
{
	void *found = __atomic_load_n(&genuine[which], __ATOMIC_ACQUIRE);

	if (!found)
		look();
	return found ? found : __atomic_load_n(&genuine[which], __ATOMIC_ACQUIRE);
}

void *lien_genuine_dlsym(void *handle, const char *name)
{
	void *(*dlsym)(void *, const char *) = lien_genuine(LIEN_GENUINE_DLSYM);

	return dlsym ? dlsym(handle, name) : NULL;
}

/* --- exported functions ----------------------------------------------------------------------- */

/* Called by the assembly below, maybe by several threads. */
__attribute__((used)) static void *lien_exported_target(struct lien_exported *exported)
{
	void *behind, *target;

	if (exported->choose)
		return exported->choose(exported->name);
	behind = lien_genuine_behind(exported->name);
	target = behind ? behind : exported->ours;
	__atomic_store_n(&exported->target, target, __ATOMIC_RELAXED);
	return target;
}

/* In %rax: the struct lien_exported. At the jump, arguments and stack are the caller's. */
/* clang-format off */
#define KEEP(reg) "	push %" reg "\n	.cfi_adjust_cfa_offset 8\n"
#define GIVE_BACK(reg) "	pop %" reg "\n	.cfi_adjust_cfa_offset -8\n"
__asm__("	.pushsection .text\n"
	"	.p2align 4\n"
	"	.hidden lien_exported_first_call\n"
	"	.globl lien_exported_first_call\n"
	"	.type lien_exported_first_call, @function\n"
	"lien_exported_first_call:\n"
	"	.cfi_startproc\n"
	KEEP("rdi") KEEP("rsi") KEEP("rdx") KEEP("rcx") KEEP("r8") KEEP("r9")
	"	sub $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	mov %rax, %rdi\n"
	"	call lien_exported_target\n"
	"	add $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	GIVE_BACK("r9") GIVE_BACK("r8") GIVE_BACK("rcx") GIVE_BACK("rdx") GIVE_BACK("rsi")
	GIVE_BACK("rdi")
	"	jmp *%rax\n"
	"	.cfi_endproc\n"
	"	.size lien_exported_first_call, . - lien_exported_first_call\n"
	"	.popsection\n");
/* clang-format on */
