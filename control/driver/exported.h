/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The functions that this library exports under the driver's names. Another preloaded library may
 * export the same name behind this one: a quota (HAMi-core, nvshare), a tracer. Its function is the
 * one that the program would call without this library, and gets ours in place of the driver's
 * (interpose.h). So an exported function jumps to such a one if there is any, otherwise to ours.
 */
#ifndef LIEN_CONTROL_EXPORTED_H
#define LIEN_CONTROL_EXPORTED_H

#define LIEN_EXPORTED(name) lien_exported_##name
#define LIEN_EXPORTED_DECLARE(name)                                                                \
	extern char LIEN_EXPORTED(name)[] __attribute__((visibility("hidden")));

/* The target of an exported function's jump; its assembly defines this. */
struct lien_exported {
	void *target; /* NULL: not looked for yet */
	void *ours;
	const char *name;
};

/* Exports the function as `name`; within this library that is LIEN_EXPORTED(name). Nothing in this
 * library may use `name` itself: the linker may find another library's first. */
/* clang-format off */
#define LIEN_EXPORT_AS(name, function)                                                             \
	__asm__("	.pushsection .text\n"                                                      \
		"	.p2align 4\n"                                                              \
		"	.globl " #name ", lien_exported_" #name "\n"                               \
		"	.hidden lien_exported_" #name "\n"                                         \
		"	.type " #name ", @function\n"                                              \
		#name ":\n"                                                                        \
		"lien_exported_" #name ":\n"                                                       \
		"	.cfi_startproc\n"                                                          \
		"	endbr64\n"                                                                 \
		"	mov 2f(%rip), %rax\n"                                                      \
		"	test %rax, %rax\n"                                                         \
		"	jz 1f\n"                                                                   \
		"	jmp *%rax\n"                                                               \
		"1:	lea 2f(%rip), %rax\n"                                                      \
		"	jmp lien_exported_first_call\n"                                            \
		"	.cfi_endproc\n"                                                            \
		"	.size " #name ", . - " #name "\n"                                          \
		"	.popsection\n"                                                             \
		"	.pushsection .data.rel.local, \"aw\"\n"                                    \
		"	.p2align 3\n"                                                              \
		"2:	.quad 0, " #function ", 3f\n"                                              \
		"3:	.asciz \"" #name "\"\n"                                                    \
		"	.popsection\n")
/* clang-format on */

#endif
