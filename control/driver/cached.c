// SPDX-License-Identifier: BSD-2-Clause
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/driver/cached.h"
#include "control/driver/genuine.h"
#include "control/driver/interpose.h"

/* While another thread loads a library, the linker is still relocating it. */
#define LOADING_TRIES 200
#define LOADING_US    1000

#define REPLACEMENTS 32

static struct replacement {
	const char *name;
	uintptr_t real, ours;
	int binds; /* the linker binds the name to the genuine function or to ours */
} replacements[REPLACEMENTS];

static unsigned count;
static int placed; /* a pointer to ours has been stored somewhere */
/* dlpi_adds when everything was last replaced; 0: not yet, or a pointer has turned up since. */
static unsigned long long scanned;

/* One for the driver's functions and one for glibc's. Most words are outside both. */
struct bounds {
	uintptr_t low, high;
};

struct scan {
	struct bounds bounds[2];
	int back;  /* replace ours by the genuine functions */
	int count; /* replace nothing, and look for the driver's functions only */
	int anew;  /* objects have been loaded since: also scan data that is read-only by now */
	int pagemap;
	unsigned long long loaded; /* dlpi_adds */
	unsigned found;		   /* in this object */
	int loading;		   /* the first error means that `object` is being loaded */
	int error;
	char object[24]; /* short, because replies have little room */
};

static uintptr_t looked_for(const struct scan *scan, const struct replacement *replacement)
{
	return scan->back ? replacement->ours : replacement->real;
}

/* Leaves the word alone if another thread has changed it meanwhile. */
static void replace_word(
	const struct scan *scan, uintptr_t *word, const struct replacement *replacement)
{
	uintptr_t was = looked_for(scan, replacement);

	if (!scan->back)
		placed = 1; /* set first: another thread may copy it at once */
	__atomic_compare_exchange_n(word, &was, scan->back ? replacement->real : replacement->ours,
		0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static int within(const struct scan *scan, uintptr_t value)
{
	return (value >= scan->bounds[0].low && value <= scan->bounds[0].high) ||
	       (value >= scan->bounds[1].low && value <= scan->bounds[1].high);
}

/* Counts the words to replace; with `replace`, replaces them. */
static unsigned scan_words(const struct scan *scan, uintptr_t from, uintptr_t to, int replace)
{
	unsigned i, found = 0;
	uintptr_t *word, value;

	for (word = (uintptr_t *)from; word + 1 <= (uintptr_t *)to; word++) {
		value = *word;
		if (!within(scan, value))
			continue;
		for (i = 0; i < count; i++) {
			if (value != looked_for(scan, &replacements[i]))
				continue;
			found++;
			if (replace)
				replace_word(scan, word, &replacements[i]);
			break;
		}
	}
	return found;
}

#define PAGEMAP_PRESENT (3ull << 62) /* in memory, or swapped out */
#define PAGEMAP_FILE	(1ull << 61) /* still the file's: never written to */
#define PAGEMAP_PAGES	512

/* Scans only pages that have been written to. Reading the others would load them, and some
 * libraries have hundreds of MiB of them. */
static void scan_written(struct scan *scan, uintptr_t from, uintptr_t to)
{
	uint64_t entries[PAGEMAP_PAGES];
	uintptr_t page = sysconf(_SC_PAGESIZE), at = from & ~(page - 1), end;
	ssize_t n, i;

	while (at < to) {
		n = pread(scan->pagemap, entries, sizeof(entries), at / page * sizeof(entries[0]));
		n /= (ssize_t)sizeof(entries[0]);
		if (n <= 0) { /* no pagemap here */
			scan->found += scan_words(scan, at < from ? from : at, to, !scan->count);
			return;
		}
		for (i = 0; i < n && at < to; i++, at += page) {
			if (!(entries[i] & PAGEMAP_PRESENT) || entries[i] & PAGEMAP_FILE)
				continue;
			end = at + page < to ? at + page : to;
			scan->found += scan_words(scan, at < from ? from : at, end, !scan->count);
		}
	}
}

static void fail(struct scan *scan, const struct dl_phdr_info *info, int error, int loading)
{
	const char *name = lien_file_of(info->dlpi_name);

	if (scan->error)
		return;
	scan->error = error;
	scan->loading = loading;
	snprintf(scan->object, sizeof(scan->object), "%s", *name ? name : "the program");
}

/* The part is writable while another thread loads the object and the linker relocates it. */
static int is_read_only(uintptr_t from, uintptr_t to)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char rights[5] = "";
	int read_only = maps != NULL;

	while (maps && fscanf(maps, "%lx-%lx %4s%*[^\n]", &start, &end, rights) == 3)
		if (start < to && from < end && rights[1] == 'w')
			read_only = 0;
	if (maps)
		fclose(maps);
	return read_only;
}

/* Scans the part that the linker makes read-only after relocation. */
static void scan_relro(
	struct scan *scan, const struct dl_phdr_info *info, uintptr_t from, uintptr_t to)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);
	unsigned found;

	from &= ~(page - 1);
	to &= ~(page - 1);
	found = from < to ? scan_words(scan, from, to, 0) : 0;
	scan->found += found;
	if (!found || scan->count) /* make no page writable for nothing */
		return;
	if (!is_read_only(from, to)) {
		fail(scan, info, EAGAIN, 1);
	} else if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE)) {
		fail(scan, info, errno, 0);
	} else {
		scan_words(scan, from, to, 1);
		mprotect((void *)from, to - from, PROT_READ);
	}
}

/* --- calls that are bound on first use -------------------------------------------------------- */

/* Before the first call a slot points back into its own object, at the code that calls the
 * linker. */
static int is_unbound(const struct dl_phdr_info *info, uintptr_t value)
{
	const ElfW(Phdr) *segment = lien_segment_of(info, value);

	return segment && segment->p_flags & PF_X;
}

static int is_drivers(const char *name)
{
	return name[0] == 'c';
}

/* Returns the replacement of the function that the linker would bind; NULL: none. */
static const struct replacement *binding(const struct scan *scan, const char *name)
{
	unsigned i;

	if (!is_drivers(name) && (name[0] != 'd' || scan->count))
		return NULL;
	for (i = 0; i < count; i++)
		if (!strcmp(name, replacements[i].name))
			return replacements[i].binds ? &replacements[i] : NULL;
	return NULL;
}

/* scan_written() finds the slots that are already bound. */
static void bind_calls(
	struct scan *scan, const struct dl_phdr_info *info, const ElfW(Phdr) * segment)
{
	const struct lien_symbols symbols = lien_symbols_of(
		info->dlpi_addr, (const void *)(info->dlpi_addr + segment->p_vaddr));
	const ElfW(Rela) *call = symbols.calls, *end = call + symbols.calls_count;
	const struct replacement *replacement;
	const ElfW(Sym) * symbol;
	uintptr_t *slot, value;

	if (!call || !symbols.symbol || !symbols.names)
		return;
	for (; call < end; call++) {
		if (ELF64_R_TYPE(call->r_info) != R_X86_64_JUMP_SLOT)
			continue;
		symbol = &symbols.symbol[ELF64_R_SYM(call->r_info)];
		if (symbol->st_shndx != SHN_UNDEF)
			continue;
		replacement = binding(scan, symbols.names + symbol->st_name);
		slot = (uintptr_t *)(info->dlpi_addr + call->r_offset);
		value = replacement ? __atomic_load_n(slot, __ATOMIC_ACQUIRE) : 0;
		if (!replacement || !is_unbound(info, value))
			continue;
		scan->found++;
		if (scan->count)
			continue;
		placed = 1;
		__atomic_compare_exchange_n(
			slot, &value, replacement->ours, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	}
}

/* Returns true for this library, glibc and NVIDIA's libraries. */
static int is_left_alone(const struct dl_phdr_info *info)
{
	const char *name = lien_file_of(info->dlpi_name);

	return lien_segment_of(info, (uintptr_t)&placed) ||
	       lien_segment_of(info, (uintptr_t)lien_genuine(LIEN_GENUINE_DLSYM)) ||
	       !strncmp(name, "libcuda", 7) || !strncmp(name, "libnvidia", 9);
}

static int scan_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	uintptr_t from, to, relro_from = 0, relro_to = 0, page = sysconf(_SC_PAGESIZE);
	struct scan *scan = arg;
	unsigned i;

	if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds))
		scan->loaded = info->dlpi_adds;
	if (is_left_alone(info))
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
			relro_from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			relro_to = (relro_from + info->dlpi_phdr[i].p_memsz) & ~(page - 1);
		}
	scan->found = 0;
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];

		if (segment->p_type == PT_DYNAMIC && scan->anew && !scan->back)
			bind_calls(scan, info, segment);
		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W))
			continue;
		from = info->dlpi_addr + segment->p_vaddr;
		to = from + segment->p_memsz;
		if (relro_from >= from && relro_from < to) {
			if (scan->anew)
				scan_relro(scan, info, relro_from, relro_to);
			from = relro_to > from ? relro_to : from;
		}
		scan_written(scan, (from + 7) & ~7ul, to);
	}
	if (scan->count && scan->found)
		fail(scan, info, EAGAIN, 0);
	return 0;
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *arg)
{
	if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds))
		*(unsigned long long *)arg = info->dlpi_adds;
	return 1; /* the same in every object */
}

static void widen(struct bounds *bounds, uintptr_t value)
{
	if (value < bounds->low)
		bounds->low = value;
	if (value > bounds->high)
		bounds->high = value;
}

static void scan_all(struct scan *scan)
{
	unsigned long long loaded = 0;
	unsigned i;

	dl_iterate_phdr(count_loaded, &loaded);
	scan->anew = scan->back || !loaded || loaded != scanned;
	for (i = 0; i < 2; i++)
		scan->bounds[i] = (struct bounds){.low = UINTPTR_MAX}; /* contains nothing */
	for (i = 0; i < count; i++)
		if (is_drivers(replacements[i].name) || !scan->count)
			widen(&scan->bounds[is_drivers(replacements[i].name)],
				looked_for(scan, &replacements[i]));
	scan->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	dl_iterate_phdr(scan_object, scan);
	if (scan->pagemap >= 0)
		close(scan->pagemap);
}

/* Waits for a thread that loads a library. */
static void prepare(void)
{
	const struct lien_interposed *row;
	void *first, *given, *real;
	unsigned n = 0;

	if (count)
		return;
	for (row = __start_lien_interposed; row < __stop_lien_interposed && n < REPLACEMENTS;
		row++) {
		real = row->kind <= LIEN_IN_EVERY_PROCESS ? lien_interposed_real(row) : NULL;
		if (!real)
			continue; /* the driver has no such function */
		first = lien_genuine_dlsym(RTLD_DEFAULT, *row->name);
		given = lien_interposed_given(row);
		replacements[n++] = (struct replacement){.name = *row->name,
			.real = (uintptr_t)real,
			.ours = (uintptr_t)given,
			/* dlsym() finds ours where nobody but the function's caller sees the
			 * driver. */
			.binds = !first || first == real || first == given};
	}
	count = n; /* set last: a child that was forked earlier starts over */
}

int lien_cached_replace(char *why, size_t size)
{
	unsigned long long loaded = 0;
	struct scan scan;
	unsigned tries = 0;

	prepare();
	dl_iterate_phdr(count_loaded, &loaded);
	if (loaded && loaded == scanned)
		return 0;
	do {
		if (tries)
			usleep(LOADING_US);
		memset(&scan, 0, sizeof(scan));
		scan_all(&scan);
	} while (scan.loading && ++tries < LOADING_TRIES);
	if (!scan.error)
		scanned = scan.loaded;
	if (scan.loading)
		snprintf(why, size, "%s is being loaded: try again", scan.object);
	else if (scan.error)
		snprintf(why, size, "cannot replace pointers in %s: %s", scan.object,
			strerror(scan.error));
	return -scan.error;
}

int lien_cached_none_new(char *why, size_t size)
{
	struct scan scan = {.count = 1};

	scan_all(&scan);
	if (!scan.error)
		return 0;
	snprintf(why, size, "%s has just looked up driver functions: try again", scan.object);
	scanned = 0;
	return -scan.error;
}

void lien_cached_restore(void)
{
	struct scan scan = {.back = 1};

	if (placed)
		scan_all(&scan);
	scanned = 0; /* a later replace must scan everything */
}
