/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds functions, such as glibc's dlsym(), without a lookup by name, which would find ours. On the
 * way of an application's dlsym() nothing of libc is called: sanitizers intercept it, and look
 * functions up before they are ready. */
#ifndef LIEN_CONTROL_GENUINE_H
#define LIEN_CONTROL_GENUINE_H

#include <link.h>
#include <stddef.h>
#include <stdint.h>

/* How the names of the driver's library begin. */
#define LIEN_GENUINE_DRIVER "libcuda.so"

enum lien_genuine {
	LIEN_GENUINE_DLSYM,
	LIEN_GENUINE_DLVSYM,
	LIEN_GENUINE_COUNT,
};

/* strcmp() == 0 */
static inline int lien_same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* Returns what is behind the path's last slash. */
static inline const char *lien_file_of(const char *path)
{
	const char *file = path;

	for (; *path; path++)
		if (*path == '/')
			file = path + 1;
	return file;
}

/* Returns the segment of the object that the address lies in; NULL: none. */
static inline const ElfW(Phdr) * lien_segment_of(const struct dl_phdr_info *info, uintptr_t address)
{
	const ElfW(Phdr) * segment;
	unsigned i;

	for (i = 0; i < info->dlpi_phnum; i++) {
		segment = &info->dlpi_phdr[i];
		if (segment->p_type == PT_LOAD &&
			address - info->dlpi_addr - segment->p_vaddr < segment->p_memsz)
			return segment;
	}
	return NULL;
}

/* An object's dynamic section. What it does not have is NULL, or 0. */
struct lien_symbols {
	const uint32_t *hash; /* DT_GNU_HASH */
	const ElfW(Sym) * symbol;
	const char *names;
	const char *library;	  /* DT_SONAME */
	const uint16_t *versions; /* DT_VERSYM */
	const ElfW(Rela) * calls; /* that are bound on first use */
	size_t calls_count;
};

struct lien_symbols lien_symbols_of(uintptr_t base, const ElfW(Dyn) * entry);

/* Returns NULL if not found. */
void *lien_genuine(enum lien_genuine which);
/* Calls glibc's own function, from this library. NULL: not found, or no glibc. */
void *lien_genuine_dlsym(void *handle, const char *name);
struct lien_genuine_range {
	uintptr_t base, bytes;
};

/* Finds a function of a loaded library other than this one, whose name, or file's name, begins with
 * this ("": any). Returns whether it was found. Does not wait for threads that load libraries; so
 * it may find one that is being loaded. */
int lien_genuine_range_of(const char *library, const char *name, struct lien_genuine_range *range);

/* Same; NULL: not found. */
static inline void *lien_genuine_of(const char *library, const char *name)
{
	struct lien_genuine_range range;

	return lien_genuine_range_of(library, name, &range) ? (void *)range.base : NULL;
}

/* Returns a function that the process's NCCL exports; NULL: there is none. NCCL is linked into
 * other libraries at times. */
static inline void *lien_nccl_genuine(const char *name)
{
	void *found = lien_genuine_of("libnccl.so", name);

	return found ? found : lien_genuine_of("", name);
}

/* Returns true if this library is preloaded. Takes no lock, and calls nothing of libc. */
int lien_genuine_is_preloaded(void);
/* Returns what the program's calls of `name` would reach if this library were not preloaded, or
 * were behind it: the function of another library. NULL: none before the driver or libc has it.
 * Takes no lock, and calls nothing of libc. */
void *lien_genuine_behind(const char *name);
/* Returns the first function of this name in the libraries behind the one that has this code; NULL:
 * not found. */
void *lien_genuine_after(const void *code, const char *name);

#endif
