// SPDX-License-Identifier: BSD-2-Clause
#include <elf.h>
#include <link.h>
#include <string.h>

#include "control/driver/genuine.h"

static const char *const names[LIEN_GENUINE_COUNT] = {"dlsym", "dlvsym"};
static void *genuine[LIEN_GENUINE_COUNT];

struct symbols {
	const uint32_t *hash; /* DT_GNU_HASH */
	const ElfW(Sym) * symbol;
	const char *names;
};

static struct symbols symbols_of(const struct dl_phdr_info *info)
{
	struct symbols symbols = {0};
	const ElfW(Dyn) *entry = NULL;
	uintptr_t at;
	unsigned i;

	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		at = entry->d_un.d_ptr;
		if (at < info->dlpi_addr) /* the linker has not turned it into an address */
			at += info->dlpi_addr;
		if (entry->d_tag == DT_GNU_HASH)
			symbols.hash = (const void *)at;
		else if (entry->d_tag == DT_SYMTAB)
			symbols.symbol = (const void *)at;
		else if (entry->d_tag == DT_STRTAB)
			symbols.names = (const char *)at;
	}
	return symbols;
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
static uintptr_t find(const struct symbols *symbols, const char *name)
{
	const uint32_t *table = symbols->hash, hash = hash_of(name), *buckets, *chains;
	const ElfW(Sym) * symbol;
	uint32_t i;

	if (!table || !symbols->symbol || !symbols->names || !table[0])
		return 0;
	buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	chains = buckets + table[0];
	for (i = buckets[hash % table[0]]; i >= table[1]; i++) {
		symbol = &symbols->symbol[i];
		if ((chains[i - table[1]] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
			!strcmp(symbols->names + symbol->st_name, name))
			return symbol->st_value;
		if (chains[i - table[1]] & 1)
			break;
	}
	return 0;
}

static int is_libc(const char *path)
{
	const char *name = strrchr(path, '/');

	name = name ? name + 1 : path;
	return !strcmp(name, "libc.so.6") ||
	       !strcmp(name, "libdl.so.2"); /* contains it up to 2.33 */
}

static int look(struct dl_phdr_info *info, size_t size, void *unused)
{
	struct symbols symbols;
	uintptr_t value;
	unsigned i;

	(void)size, (void)unused;
	if (!is_libc(info->dlpi_name))
		return 0;
	symbols = symbols_of(info);
	for (i = 0; i < LIEN_GENUINE_COUNT; i++) {
		value = find(&symbols, names[i]);
		if (value)
			__atomic_store_n(
				&genuine[i], (void *)(info->dlpi_addr + value), __ATOMIC_RELEASE);
	}
	return 0;
}

struct wanted {
	const char *library, *name;
	const void *ours;
	void *found;
};

static int look_for(struct dl_phdr_info *info, size_t size, void *context)
{
	const char *file = strrchr(info->dlpi_name, '/');
	struct wanted *wanted = context;
	struct symbols symbols;
	uintptr_t value;

	(void)size;
	file = file ? file + 1 : info->dlpi_name;
	if (strncmp(file, wanted->library, strlen(wanted->library)))
		return 0;
	symbols = symbols_of(info);
	value = find(&symbols, wanted->name);
	if (value && (void *)(info->dlpi_addr + value) != wanted->ours)
		wanted->found = (void *)(info->dlpi_addr + value);
	return wanted->found != NULL;
}

void *lien_genuine_of(const char *library, const char *name, const void *ours)
{
	struct wanted wanted = {library, name, ours, NULL};

	dl_iterate_phdr(look_for, &wanted);
	return wanted.found;
}

void *lien_genuine(enum lien_genuine which)
{
	void *found = __atomic_load_n(&genuine[which], __ATOMIC_ACQUIRE);

	if (!found)
		dl_iterate_phdr(look, NULL);
	return found ? found : __atomic_load_n(&genuine[which], __ATOMIC_ACQUIRE);
}
