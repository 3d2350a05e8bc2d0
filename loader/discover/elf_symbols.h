/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The symbols of an ELF file, as uprobes need them. Only x86-64 shared objects and programs. The
 * file may be anything: a damaged or hostile one gives an error. It is read, never mapped, so a
 * file that shrinks meanwhile does no harm.
 *
 * Errors: -ENOEXEC not an x86-64 ELF file, -EBADMSG damaged, -ENOENT no such symbol, -ENOMEM.
 */
#ifndef LIEN_ELF_SYMBOLS_H
#define LIEN_ELF_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

struct lien_elf;

struct lien_elf_lookup {
	const char *name;
	uint64_t file_offset; /* out */
	int result;	      /* out: 0 or -ENOENT */
};

/* Leaves fd to the caller, who may close it at once. */
int lien_elf_open(int fd, struct lien_elf **out);
void lien_elf_close(struct lien_elf *elf);

/*
 * The place in the file of a function's first instruction. Exported symbols win over those of
 * .symtab, global ones over local ones, the first over the second. A version ("name@@NCCL_2") is
 * not part of a name; "cuMemAlloc_v2" is one. Functions that are chosen at load time (ifunc) are
 * not found.
 */
int lien_elf_function(struct lien_elf *elf, const char *name, uint64_t *file_offset);

/* The same for many names, in one pass. Returns how many were found, or an error. */
int lien_elf_functions(struct lien_elf *elf, struct lien_elf_lookup *lookups, unsigned count);

/*
 * Each exported function: its name without a version, and where its first instruction is in the
 * file; UINT64_MAX of one that is chosen at load time (ifunc). Until fn returns something else than
 * 0, which is returned; or an error.
 */
int lien_elf_exports(struct lien_elf *elf,
	int (*fn)(void *context, const char *name, uint64_t file_offset), void *context);

/* A data symbol's address, counted from the address at which the file's first segment is mapped. */
int lien_elf_object(struct lien_elf *elf, const char *name, uint64_t *value);

/* The first executable segment: the address and the place in the file at which it is mapped. */
int lien_elf_text(struct lien_elf *elf, uint64_t *address, uint64_t *file_offset);

/* The GNU build id in hexadecimal; -ENOENT: it has none, -ENOSPC: hex is too short. */
int lien_elf_build_id(struct lien_elf *elf, char *hex, size_t size);

#endif
