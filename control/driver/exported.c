// SPDX-License-Identifier: BSD-2-Clause
#include "control/driver/exported.h"

#include "control/driver/genuine.h"

/* Called by the assembly below, maybe by several threads. */
__attribute__((used, visibility("hidden"))) void *lien_exported_target(
	struct lien_exported *exported)
{
	void *behind = lien_genuine_behind(exported->name),
	     *target = behind ? behind : exported->ours;

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
