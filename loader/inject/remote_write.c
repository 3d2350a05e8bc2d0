// SPDX-License-Identifier: BSD-2-Clause
/*
 * Writes through a stopped thread: among others a frame like the kernel's for a signal handler into
 * its stack. Returning through that restores the thread's registers, vectors and blocked signals.
 */
#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <ucontext.h>

#include "loader/inject/inject_internal.h"

#define RED_ZONE     128
#define XSTATE_ALIGN 64

/* The kernel's struct rt_sigframe, without its unused end. */
struct frame {
	uint64_t restore_rt;
	uint64_t uc_flags;
	uint64_t uc_link;
	stack_t uc_stack;
	mcontext_t uc_mcontext;
	uint64_t uc_sigmask;
};

/* Tells the kernel where the frame has the extended registers. */
struct xstate_note {
	uint32_t magic1, extended_size;
	uint64_t features;
	uint32_t size;
};

#define XSTATE_NOTE	464
#define XSTATE_FEATURES 512
#define XSTATE_HEADER	64
#define XSTATE_MAGIC1	0x46505853U
#define XSTATE_MAGIC2	0x46505845U
#define UC_FP_XSTATE	1
#define UC_SS		6 /* UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS */

static int write_word(struct lien_remote *remote, uint64_t address, uint64_t word)
{
	return ptrace(PTRACE_POKEDATA, remote->tid, (void *)address, (void *)word) < 0 ? -errno : 0;
}

int lien_remote_write(struct lien_remote *remote, uint64_t address, const void *from, size_t size)
{
	const size_t whole = sizeof(uint64_t);
	size_t into, part;
	uint64_t word;
	int err = 0;

	while (size && !err) {
		into = address % whole;
		part = whole - into < size ? whole - into : size;
		if (part < whole &&
			lien_inject_read(remote->inject, address - into, &word, sizeof(word)))
			return -EFAULT;
		memcpy((char *)&word + into, from, part);
		err = write_word(remote, address - into, word);
		address += part;
		from = (const char *)from + part;
		size -= part;
	}
	return err;
}

/* Returns the bytes in use. The kernel reserves room for registers that the thread may not have. */
static size_t used_xstate(const unsigned char *xstate)
{
	size_t size = XSTATE_FEATURES + XSTATE_HEADER;
	unsigned length, offset, unused, more;
	uint64_t features;

	memcpy(&features, xstate + XSTATE_FEATURES, sizeof(features));
	for (unsigned i = 2; i < 63; i++) {
		if (!(features >> i & 1))
			continue;
		__cpuid_count(0xd, i, length, offset, unused, more);
		(void)unused;
		(void)more;
		if (offset + length > size)
			size = offset + length;
	}
	return size;
}

int lien_remote_write_frame(struct lien_remote *remote)
{
	const struct user_regs_struct *before = &remote->before;
	size_t size = used_xstate(remote->xstate);
	const uint32_t magic2 = XSTATE_MAGIC2;
	struct xstate_note note = {.magic1 = XSTATE_MAGIC1, .size = size};
	uint64_t xstate = before->rsp - RED_ZONE - size - sizeof(magic2);
	struct frame frame = {.restore_rt = remote->inject->restore_rt};
	greg_t *regs = frame.uc_mcontext.gregs;
	unsigned char area[sizeof(remote->xstate)];
	int err;

	if (size > remote->xstate_size)
		return -E2BIG;
	xstate = xstate / XSTATE_ALIGN * XSTATE_ALIGN;
	remote->frame = (xstate - sizeof(frame)) / 16 * 16;
	note.extended_size = size + sizeof(magic2);
	memcpy(area, remote->xstate, size);
	memcpy(&note.features, area + XSTATE_FEATURES, sizeof(note.features));
	memcpy(area + XSTATE_NOTE, &note, sizeof(note));
	frame.uc_flags = UC_SS | UC_FP_XSTATE;
	frame.uc_sigmask = remote->signals;
	frame.uc_mcontext.fpregs = (void *)xstate;
	regs[REG_R8] = before->r8;
	regs[REG_R9] = before->r9;
	regs[REG_R10] = before->r10;
	regs[REG_R11] = before->r11;
	regs[REG_R12] = before->r12;
	regs[REG_R13] = before->r13;
	regs[REG_R14] = before->r14;
	regs[REG_R15] = before->r15;
	regs[REG_RDI] = before->rdi;
	regs[REG_RSI] = before->rsi;
	regs[REG_RBP] = before->rbp;
	regs[REG_RBX] = before->rbx;
	regs[REG_RDX] = before->rdx;
	regs[REG_RAX] = before->orig_rax;
	regs[REG_RCX] = before->rcx;
	regs[REG_RSP] = before->rsp;
	regs[REG_RIP] = before->rip - 2;
	regs[REG_EFL] = before->eflags;
	regs[REG_CSGSFS] = before->cs | before->ss << 48;
	err = lien_remote_write(remote, xstate, area, size);
	if (!err)
		err = lien_remote_write(remote, xstate + size, &magic2, sizeof(magic2));
	return err ? err : lien_remote_write(remote, remote->frame, &frame, sizeof(frame));
}
