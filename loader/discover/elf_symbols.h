/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Symbols of ELF files, as uprobes need them. Supports only x86-64 shared objects and programs. The
 * file is untrusted: a damaged or hostile one gives an error. It is read, never mapped, so a file
 * that shrinks meanwhile does no harm.
 *
 * Errors: -ENOEXEC not an x86-64 ELF file, -EBADMSG damaged, -ENOENT no such symbol, -ENOMEM.
 */
#ifndef LIEN_ELF_SYMBOLS_H
#define LIEN_ELF_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_elf_export {
	const char *name; /* without a version; "cuMemAlloc_v2" is a name. Valid during the call */
	bool function;	  /* otherwise data */
	bool old; /* a version for old programs, "name@VERSION": others may have the name, too */
	uint64_t address;
	/* Of a function's first instruction; UINT64_MAX: it is resolved at load time (ifunc), or it
	 * is data. */
	uint64_t file_offset;
};

typedef int lien_elf_export_fn(void *context, const struct lien_elf_export *export);

/* Calls fn for each exported function and object, but for those with names of 256 bytes and more.
 * Stops when fn returns non-zero, and returns that value; or an error. */
int lien_elf_exports(int fd, lien_elf_export_fn *fn, void *context);

/* Finds an exported object's address, relative to the address at which the file's first segment is
 * mapped. */
int lien_elf_object(int fd, const char *name, uint64_t *value);

/* Finds the first executable segment: its address and its place in the file. */
int lien_elf_text(int fd, uint64_t *address, uint64_t *file_offset);

/* Reads the GNU build id in hexadecimal; -ENOENT: it has none, -ENOSPC: hex is too short. */
int lien_elf_build_id(int fd, char *hex, size_t size);

struct lien_symbol_lookup {
	uint64_t offset; /* place of a byte in the file */
	char *name; /* out: the caller frees it; C++ without arguments; NULL: no function known */
	uint64_t into; /* out: distance of that byte from the function's beginning */
};

/*
 * Finds the functions at given places of a file, in one pass over .dynsym and .symtab. Does not
 * keep those: a library with 100s of MiB of them costs time, but no memory. Where functions
 * overlap, the one that begins last wins; among those that begin at one place an exported name wins
 * over a global one over a local one. Returns 0, an error as above, or a read error; on error all
 * names are NULL. Thread-safe.
 */
int lien_symbols_find(int fd, struct lien_symbol_lookup *lookups, unsigned count);

#endif
