// SPDX-License-Identifier: BSD-2-Clause
/* Compiled with frame pointers and without tail calls: the probes find the application's return
 * address through the frame of the function that calls the driver for it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/gate.h"
#include "control/names.h"
#include "control/translate.h"

/* A section of their own, so that their calls can be told from the control library's. */
#define TRANSLATE __attribute__((section("lien_translate"), noinline, used))

static const struct lien_driver *driver;

/* --- threads that pass a handle ----------------------------------------------------------------
 */

static unsigned inside; /* with a handle that was looked up, on their way to the driver and back */
static int hold_all;
static int settled; /* nobody is let in any more */

void lien_translate_hold_all(int all)
{
	__atomic_store_n(&hold_all, all, __ATOMIC_SEQ_CST);
	__atomic_store_n(&settled, 0, __ATOMIC_SEQ_CST);
}

int lien_translate_settle(void)
{
	__atomic_store_n(&settled, 1, __ATOMIC_SEQ_CST);
	return lien_translate_idle();
}

int lien_translate_idle(void)
{
	return !__atomic_load_n(&inside, __ATOMIC_SEQ_CST);
}

/* A child of fork() has one thread, which is in fork(). */
static void forked(void)
{
	__atomic_store_n(&inside, 0, __ATOMIC_SEQ_CST);
}

/*
 * Here, not in the driver, waits who passes a handle: after a restore another one means the same
 * memory. Handle 0 is nobody's: it is where the agent holds the thread (bpf/gate.h), if it holds
 * such calls, and so hears of it. `frees`: what is asked for is the end of the memory.
 */
TRANSLATE static void ask_agent(int frees)
{
	int fd;

	if (frees)
		driver->cuMemRelease(0);
	else if (!driver->cuMemExportToShareableHandle(
			 &fd, 0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		close(fd);
}

/* Until the gate opens. No handler of the application's may come in between, and never return. */
static void wait_quietly(void)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	lien_gate_wait();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int must_wait(uint64_t name, uint64_t real)
{
	return lien_gate_is_shut() &&
	       (__atomic_load_n(&hold_all, __ATOMIC_SEQ_CST) || (name && !real));
}

/* What to give the driver for the handle, which means the same until leave(). */
static uint64_t enter(uint64_t name, int frees)
{
	uint64_t real;
	int asked = 0;

	for (;;) {
		__atomic_fetch_add(&inside, 1, __ATOMIC_SEQ_CST);
		real = frees ? lien_names_real_to_release(name) : lien_names_real(name);
		/* One that comes back while the gate is shut was let in: others wait for it. */
		if (!must_wait(name, real) ||
			(asked && real && !__atomic_load_n(&settled, __ATOMIC_SEQ_CST)))
			return real;
		__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
		if (asked)
			wait_quietly();
		else
			ask_agent(frees);
		asked = !asked;
	}
}

static CUresult leave(CUresult result)
{
	__atomic_fetch_sub(&inside, 1, __ATOMIC_SEQ_CST);
	return result;
}

/* --- what is called instead of the driver ------------------------------------------------------
 */

TRANSLATE static CUresult translate_create(CUmemGenericAllocationHandle *handle, size_t size,
	const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult result = driver->cuMemCreate(handle, size, prop, flags);

	if (!result)
		*handle = lien_names_made(*handle);
	return result;
}

TRANSLATE static CUresult translate_import(
	CUmemGenericAllocationHandle *handle, void *os_handle, CUmemAllocationHandleType type)
{
	CUresult result = driver->cuMemImportFromShareableHandle(handle, os_handle, type);

	if (!result)
		*handle = lien_names_made(*handle);
	return result;
}

TRANSLATE static CUresult translate_retain(CUmemGenericAllocationHandle *handle, void *addr)
{
	CUresult result = driver->cuMemRetainAllocationHandle(handle, addr);

	if (!result)
		*handle = lien_names_retained(*handle);
	return result;
}

TRANSLATE static CUresult translate_release(CUmemGenericAllocationHandle handle)
{
	CUresult result = driver->cuMemRelease(enter(handle, 1));

	if (!result)
		lien_names_released(handle);
	return leave(result);
}

TRANSLATE static CUresult translate_map(CUdeviceptr ptr, size_t size, size_t offset,
	CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	return leave(driver->cuMemMap(ptr, size, offset, enter(handle, 0), flags));
}

TRANSLATE static CUresult translate_export(void *shareable, CUmemGenericAllocationHandle handle,
	CUmemAllocationHandleType type, unsigned long long flags)
{
	return leave(
		driver->cuMemExportToShareableHandle(shareable, enter(handle, 0), type, flags));
}

TRANSLATE static CUresult translate_properties(
	CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	return leave(driver->cuMemGetAllocationPropertiesFromHandle(prop, enter(handle, 0)));
}

TRANSLATE static CUresult translate_bind(CUmemGenericAllocationHandle multicast, size_t offset,
	CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size,
	unsigned long long flags)
{
	return leave(driver->cuMulticastBindMem(
		multicast, offset, enter(memory, 0), memory_offset, size, flags));
}

/* --- finding what has been cached ---------------------------------------------------------------
 */

struct replacement {
	const char *name;
	uintptr_t real, ours;
	int binds; /* the name is the driver's, no other library's before it */
};

#define REPLACEMENTS 8

static struct replacement replacements[REPLACEMENTS];

struct scan {
	uintptr_t low, high; /* of those that are looked for: most words are outside */
	int back;	     /* ours are looked for, to be replaced by the real ones */
	int pagemap;
	int anew;  /* objects have been loaded since the last time: look also where nobody writes */
	int again; /* something was left out */
	unsigned long long loaded; /* how many objects there have been */
};

static int placed;		   /* ours was put somewhere, once */
static unsigned long long scanned; /* lien_translate_install(): how many objects there were */

/* Unless somebody has written there meanwhile: that one means something else. */
static void replace_word(uintptr_t *word, uintptr_t was, uintptr_t becomes)
{
	placed = 1; /* before: somebody may copy it at once */
	__atomic_compare_exchange_n(word, &was, becomes, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static uintptr_t looked_for(const struct scan *scan, unsigned i)
{
	return scan->back ? replacements[i].ours : replacements[i].real;
}

/* How many words are to be replaced; with `replace`, they are. */
static unsigned scan_words(const struct scan *scan, uintptr_t from, uintptr_t to, int replace)
{
	uintptr_t *word, value;
	unsigned i, found = 0;

	for (word = (uintptr_t *)from; word + 1 <= (uintptr_t *)to; word++) {
		value = *word;
		if (value < scan->low || value > scan->high)
			continue;
		for (i = 0; i < REPLACEMENTS; i++) {
			if (value != looked_for(scan, i))
				continue;
			found++;
			if (replace)
				replace_word(word, value,
					scan->back ? replacements[i].real : replacements[i].ours);
		}
	}
	return found;
}

#define PAGEMAP_PRESENT (3ull << 62) /* in memory, or swapped out */
#define PAGEMAP_FILE	(1ull << 61) /* as it is in the file: nobody has written here */
#define PAGEMAP_PAGES	512

/* Looks at the pages that were written to since the program started; reading the others would only
 * bring them in, and some libraries have hundreds of MiB of them. */
static void scan_written(struct scan *scan, uintptr_t from, uintptr_t to)
{
	uint64_t entries[PAGEMAP_PAGES];
	uintptr_t page = sysconf(_SC_PAGESIZE), at = from & ~(page - 1), end;
	ssize_t n, i;

	while (at < to) {
		n = pread(scan->pagemap, entries, sizeof(entries), at / page * sizeof(entries[0]));
		n /= (ssize_t)sizeof(entries[0]);
		if (n <= 0) { /* no pagemap here */
			scan_words(scan, at < from ? from : at, to, 1);
			return;
		}
		for (i = 0; i < n && at < to; i++, at += page) {
			if (!(entries[i] & PAGEMAP_PRESENT) || entries[i] & PAGEMAP_FILE)
				continue;
			end = at + page < to ? at + page : to;
			scan_words(scan, at < from ? from : at, end, 1);
		}
	}
}

static int nvidia(const char *path)
{
	const char *name = strrchr(path, '/');

	name = name ? name + 1 : path;
	return !strncmp(name, "libcuda", 7) || !strncmp(name, "libnvidia", 9);
}

/* Not while the linker still writes there: another thread loads that object. */
static int is_read_only(uintptr_t from, uintptr_t to)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char rights[5] = "";
	int found = 0;

	while (maps && !found && fscanf(maps, "%lx-%lx %4s%*[^\n]", &start, &end, rights) == 3)
		found = start <= from && to <= end;
	if (maps)
		fclose(maps);
	return found && !strncmp(rights, "r--", 3);
}

/* What the linker made read-only again after relocation. */
static void scan_relro(struct scan *scan, uintptr_t from, uintptr_t to)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);

	from &= ~(page - 1);
	to &= ~(page - 1);
	if (from >= to || !scan_words(scan, from, to, 0)) /* no page is made writable for nothing */
		return;
	if (!is_read_only(from, to)) {
		scan->again = 1;
		return;
	}
	if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE))
		return;
	scan_words(scan, from, to, 1);
	mprotect((void *)from, to - from, PROT_READ);
}

/* --- calls that are bound when they are first made ---------------------------------------------
 */

struct dynamic {
	uintptr_t symbols, names, calls;
	size_t calls_size;
	int with_addend;
};

static struct dynamic read_dynamic(const struct dl_phdr_info *info, const ElfW(Phdr) * segment)
{
	const ElfW(Dyn) *entry = (const void *)(info->dlpi_addr + segment->p_vaddr);
	struct dynamic dynamic = {0};

	for (; entry->d_tag != DT_NULL; entry++) {
		/* glibc keeps addresses there, others what the file says. */
		uintptr_t value = entry->d_un.d_ptr, at = value;

		if (at < info->dlpi_addr)
			at += info->dlpi_addr;
		switch (entry->d_tag) {
		case DT_SYMTAB:
			dynamic.symbols = at;
			break;
		case DT_STRTAB:
			dynamic.names = at;
			break;
		case DT_JMPREL:
			dynamic.calls = at;
			break;
		case DT_PLTRELSZ:
			dynamic.calls_size = value;
			break;
		case DT_PLTREL:
			dynamic.with_addend = value == DT_RELA;
			break;
		}
	}
	return dynamic;
}

/* Before its first call a slot leads back into the object that it is in, to the linker's lookup. */
static int is_unbound(const struct dl_phdr_info *info, uintptr_t value)
{
	unsigned i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && segment->p_flags & PF_X && value >= from &&
			value < from + segment->p_memsz)
			return 1;
	}
	return 0;
}

/* What has been called before is found among the words that were written. */
static void bind_calls(const struct dl_phdr_info *info, const ElfW(Phdr) * segment)
{
	struct dynamic dynamic = read_dynamic(info, segment);
	const ElfW(Rela) *call = (const void *)dynamic.calls, *end;
	const ElfW(Sym) *symbols = (const void *)dynamic.symbols, *symbol;
	uintptr_t *slot, value;
	const char *name;
	unsigned i;

	if (!call || !symbols || !dynamic.names || !dynamic.with_addend)
		return;
	end = call + dynamic.calls_size / sizeof(*call);
	for (; call < end; call++) {
		if (ELF64_R_TYPE(call->r_info) != R_X86_64_JUMP_SLOT)
			continue;
		symbol = &symbols[ELF64_R_SYM(call->r_info)];
		name = (const char *)dynamic.names + symbol->st_name;
		if (symbol->st_shndx != SHN_UNDEF || name[0] != 'c' || name[1] != 'u')
			continue;
		slot = (uintptr_t *)(info->dlpi_addr + call->r_offset);
		value = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
		for (i = 0; i < REPLACEMENTS; i++)
			if (replacements[i].binds && !strcmp(name, replacements[i].name) &&
				is_unbound(info, value))
				replace_word(slot, value, replacements[i].ours);
	}
}

static int scan_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	uintptr_t from, to, relro_from = 0, relro_to = 0, self = (uintptr_t)&driver;
	uintptr_t page = sysconf(_SC_PAGESIZE);
	struct scan *scan = arg;
	unsigned i;

	if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds))
		scan->loaded = info->dlpi_adds;
	if (nvidia(info->dlpi_name))
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
			relro_from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
			relro_to = (relro_from + info->dlpi_phdr[i].p_memsz) & ~(page - 1);
		}
	for (i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];

		if (segment->p_type == PT_DYNAMIC && scan->anew && !scan->back)
			bind_calls(info, segment);
		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W))
			continue;
		from = info->dlpi_addr + segment->p_vaddr;
		to = from + segment->p_memsz;
		if (self >= from && self < to)
			return 0; /* this library's own */
		if (relro_from >= from && relro_from < to) {
			if (scan->anew)
				scan_relro(scan, relro_from, relro_to);
			from = relro_to > from ? relro_to : from;
		}
		scan_written(scan, (from + 7) & ~7ul, to);
	}
	return 0;
}

static int count_loaded(struct dl_phdr_info *info, size_t size, void *arg)
{
	if (size >= offsetof(struct dl_phdr_info, dlpi_adds) + sizeof(info->dlpi_adds))
		*(unsigned long long *)arg = info->dlpi_adds;
	return 1; /* the same in every object */
}

void lien_translate_prepare(const struct lien_driver *found)
{
	const struct replacement list[REPLACEMENTS] = {
#define REPLACE(name, function) {#name, (uintptr_t)found->name, (uintptr_t)(function), 0}
		REPLACE(cuMemCreate, translate_create),
		REPLACE(cuMemImportFromShareableHandle, translate_import),
		REPLACE(cuMemRetainAllocationHandle, translate_retain),
		REPLACE(cuMemRelease, translate_release),
		REPLACE(cuMemMap, translate_map),
		REPLACE(cuMemExportToShareableHandle, translate_export),
		REPLACE(cuMemGetAllocationPropertiesFromHandle, translate_properties),
		REPLACE(cuMulticastBindMem, translate_bind),
#undef REPLACE
	};
	uintptr_t first;
	unsigned i;

	if (driver)
		return;
	driver = found;
	pthread_atfork(NULL, NULL, forked);
	memcpy(replacements, list, sizeof(list));
	for (i = 0; i < REPLACEMENTS; i++) {
		first = (uintptr_t)dlsym(RTLD_DEFAULT, list[i].name);
		replacements[i].binds = !first || first == list[i].real;
		if (!list[i].real)
			replacements[i].real = UINTPTR_MAX; /* the driver has no such function */
	}
}

static void scan_all(struct scan *scan)
{
	unsigned i;

	scan->low = UINTPTR_MAX;
	for (i = 0; i < REPLACEMENTS; i++) {
		uintptr_t value = looked_for(scan, i);

		if (replacements[i].real == UINTPTR_MAX)
			continue;
		scan->low = value < scan->low ? value : scan->low;
		scan->high = value > scan->high ? value : scan->high;
	}
	scan->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	dl_iterate_phdr(scan_object, scan);
	if (scan->pagemap >= 0)
		close(scan->pagemap);
}

void lien_translate_install(int always)
{
	struct scan scan = {0};
	unsigned long long loaded = 0;

	dl_iterate_phdr(count_loaded, &loaded);
	scan.anew = !loaded || loaded != scanned;
	if (!scan.anew && !always)
		return;
	scan_all(&scan);
	if (!scan.again)
		scanned = scan.loaded;
}

int lien_translate_remove(void)
{
	struct scan scan = {.back = 1, .anew = 1};

	lien_translate_hold_all(0);
	if (placed)
		scan_all(&scan);
	scanned = 0; /* all is to be looked at, should it be installed again */
	return !placed;
}
