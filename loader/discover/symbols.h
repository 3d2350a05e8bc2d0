/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds the functions at given places of an ELF file (x86-64 shared objects and programs). Reads
 * the symbol tables piecewise and does not keep them: a library with 100s of MiB of them costs
 * time, but no memory. The file is untrusted: a damaged or hostile one gives an error or wrong
 * names. It is read, never mapped. Thread-safe.
 */
#ifndef LIEN_SYMBOLS_H
#define LIEN_SYMBOLS_H

#include <stdint.h>

struct lien_symbol_lookup {
	uint64_t offset; /* place of a byte in the file */
	char *name; /* out: the caller frees it; C++ without arguments; NULL: no function known */
	uint64_t into; /* out: distance of that byte from the function's beginning */
};

/*
 * Fills in all lookups in one pass over .dynsym and .symtab. Where functions overlap, the one that
 * begins last wins; among those that begin at one place an exported name wins over a global one
 * over a local one. Returns 0, -ENOEXEC not an x86-64 ELF file, -EBADMSG damaged, -ENOMEM, or a
 * read error; on error all names are NULL.
 */
int lien_symbols_find(int fd, struct lien_symbol_lookup *lookups, unsigned count);

/* Returns the demangled C++ name without arguments; a copy of any other name. The caller frees;
 * NULL: out of memory. */
char *lien_symbols_demangle(const char *name);

#endif
