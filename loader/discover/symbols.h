/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which functions lie at given places of an ELF file (x86-64 shared objects and programs). The
 * tables of symbols are read piece by piece and not kept: a library with 100s of MiB of them costs
 * time, but no memory. The file may be anything: a damaged or hostile one gives an error or wrong
 * names. It is read, never mapped. Safe to be called by any thread.
 */
#ifndef LIEN_SYMBOLS_H
#define LIEN_SYMBOLS_H

#include <stdint.h>

struct lien_symbol_lookup {
	uint64_t offset; /* of a byte in the file */
	char *name; /* out: the caller frees; of C++ without arguments; NULL: no function known */
	uint64_t into; /* out: bytes between the function's beginning and that byte */
};

/*
 * Fills in all lookups in one pass over .dynsym and .symtab. Where functions overlap the one that
 * begins last is meant; of several that begin at one place an exported name wins over a global one
 * over a local one. 0, -ENOEXEC not an x86-64 ELF file, -EBADMSG damaged, -ENOMEM, or what reading
 * gave: the names are all NULL then.
 */
int lien_symbols_find(int fd, struct lien_symbol_lookup *lookups, unsigned count);

/* What a C++ compiler calls `name` in the source, without arguments; else a copy. The caller frees;
 * NULL: out of memory. */
char *lien_symbols_demangle(const char *name);

#endif
