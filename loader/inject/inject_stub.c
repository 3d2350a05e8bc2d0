// SPDX-License-Identifier: BSD-2-Clause
/*
 * The code that runs in the process. It never runs here: it is copied, so it must not contain
 * absolute addresses.
 *
 * The borrowed thread begins at lien_stub_code. It is stopped at its last system call, and its
 * registers are restored from outside. If nobody is left to stop it, it returns as from a signal
 * handler, through the frame in its own stack.
 *
 * The new thread begins at lien_stub_start. It waits for words from outside, about 2 s for each. On
 * exit it unmaps its memory by a jump to munmap(), which returns to the place where the thread was
 * started. It does not unmap unless it was told that the borrowed thread has left that memory.
 */
#include <stddef.h>

#include "loader/inject/inject_internal.h"

#define NAPS 8000

#define OFFSET(field) [field] "i"(offsetof(struct lien_stub, field))

__attribute__((used, noinline)) static void stub(void)
{
	__asm__ volatile(
		".globl lien_stub_code, lien_stub_start, lien_stub_created, lien_stub_end\n"
		"lien_stub_code:\n"
		"	call *%c[errno_location](%%r12)\n"
		"	mov %%rax, %%r13\n"
		"	mov (%%rax), %%r14d\n"
		"	lea %c[thread](%%r12), %%rdi\n"
		"	xor %%esi, %%esi\n"
		"	mov %c[start](%%r12), %%rdx\n"
		"	mov %%r12, %%rcx\n"
		"	call *%c[pthread_create](%%r12)\n"
		"	mov %%r14d, (%%r13)\n"
		"	mov %%eax, %c[created](%%r12)\n"
		"	mov $39, %%eax\n" /* getpid */
		"	syscall\n"
		"lien_stub_created:\n"
		"	mov %c[frame](%%r12), %%rsp\n"
		"	jmp *%c[restore_rt](%%r12)\n"

		"lien_stub_start:\n"
		"	push %%rbx\n"
		"	push %%rbp\n"
		"	sub $24, %%rsp\n"
		"	mov %%rdi, %%rbx\n"
		"	mov $186, %%eax\n" /* gettid */
		"	syscall\n"
		"	mov %%eax, %c[tid](%%rbx)\n"
		"	mov %%fs:0x10, %%rdi\n"
		"	call *%c[pthread_detach](%%rbx)\n"
		"	lea %c[name](%%rbx), %%rdi\n"
		"	mov $1, %%esi\n"   /* MFD_CLOEXEC */
		"	mov $319, %%eax\n" /* memfd_create */
		"	syscall\n"
		"	mov %%eax, %c[fd](%%rbx)\n"
		"	movl $1, %c[step](%%rbx)\n"
		"	test %%eax, %%eax\n"
		"	js 3f\n"
		"	lea %c[word](%%rbx), %%rbp\n"
		"	call 8f\n"
		"	cmpl $1, %c[word](%%rbx)\n"
		"	jne 2f\n"
		"	lea %c[path](%%rbx), %%rdi\n"
		"	mov %c[mode](%%rbx), %%esi\n"
		"	call *%c[dlopen](%%rbx)\n"
		"	mov %%rax, %c[handle](%%rbx)\n"
		"	test %%rax, %%rax\n"
		"	jnz 2f\n"
		"	cmpq $0, %c[dlerror](%%rbx)\n"
		"	je 2f\n"
		"	call *%c[dlerror](%%rbx)\n"
		"	mov %%rax, %c[error](%%rbx)\n"
		"2:	mov %c[fd](%%rbx), %%edi\n"
		"	mov $3, %%eax\n" /* close */
		"	syscall\n"
		"3:	movl $2, %c[step](%%rbx)\n"
		"	lea %c[last](%%rbx), %%rbp\n"
		"	call 8f\n"
		"	cmpl $2, %c[last](%%rbx)\n"
		"	jne 4f\n"
		"	mov %c[handle](%%rbx), %%rdi\n"
		"	test %%rdi, %%rdi\n"
		"	jz 4f\n"
		"	call *%c[dlclose](%%rbx)\n"
		"4:	mov %c[left](%%rbx), %%ecx\n"
		"	mov %c[region](%%rbx), %%rdi\n"
		"	mov %c[region_size](%%rbx), %%rsi\n"
		"	mov %c[munmap](%%rbx), %%rdx\n"
		"	xor %%eax, %%eax\n"
		"	add $24, %%rsp\n"
		"	pop %%rbp\n"
		"	pop %%rbx\n"
		"	test %%ecx, %%ecx\n"
		"	jz 5f\n"
		"	jmp *%%rdx\n"
		"5:	ret\n"

		/* Waits until the word at rbp is not 0. */
		"8:	push %%r12\n"
		"	mov %[naps], %%r12d\n"
		"9:	cmpl $0, (%%rbp)\n"
		"	jne 10f\n"
		"	lea %c[nap](%%rbx), %%rdi\n"
		"	xor %%esi, %%esi\n"
		"	mov $35, %%eax\n" /* nanosleep */
		"	syscall\n"
		"	dec %%r12d\n"
		"	jnz 9b\n"
		"10:	pop %%r12\n"
		"	ret\n"
		"lien_stub_end:\n"
		:
		: OFFSET(errno_location), OFFSET(thread), OFFSET(start), OFFSET(pthread_create),
		OFFSET(created), OFFSET(frame), OFFSET(restore_rt), OFFSET(tid),
		OFFSET(pthread_detach), OFFSET(name), OFFSET(fd), OFFSET(step), OFFSET(word),
		OFFSET(path), OFFSET(mode), OFFSET(dlopen), OFFSET(handle), OFFSET(dlerror),
		OFFSET(error), OFFSET(last), OFFSET(dlclose), OFFSET(left), OFFSET(region),
		OFFSET(region_size), OFFSET(munmap), OFFSET(nap), [naps] "i"(NAPS));
}
