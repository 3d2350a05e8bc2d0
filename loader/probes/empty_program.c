// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/empty_program.h"

#include <linux/bpf.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int lien_empty_program(unsigned flags, unsigned attach_type)
{
	/* r0 = 0; exit */
	static const struct bpf_insn code[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = BPF_PROG_TYPE_KPROBE;
	attr.prog_flags = flags;
	attr.expected_attach_type = attach_type;
	attr.insns = (uintptr_t)code;
	attr.insn_cnt = sizeof(code) / sizeof(code[0]);
	attr.license = (uintptr_t) "Dual BSD/GPL";
	return syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof(attr));
}
