// SPDX-License-Identifier: BSD-2-Clause
/*
 * A libnccl.so.2 that does nothing. What a probe costs depends on the instruction that it sits on:
 * the kernel emulates some, others are run in a copy, with one more trap. So each of these begins
 * with another one. All take (from, to, count, type, operation or root, comm, stream).
 */
#define FUNCTION(name, first)                                                                      \
	__attribute__((naked, visibility("default"))) int name(void)                               \
	{                                                                                          \
		__asm__(first "\n\txor %eax, %eax\n\tret");                                        \
	}

FUNCTION(ncclAllReduce, "push %rbp\n\tpop %rbp")
FUNCTION(ncclBroadcast, "endbr64\n\tpush %rbp\n\tpop %rbp")
FUNCTION(ncclReduceScatter, "sub $8, %rsp\n\tadd $8, %rsp")
