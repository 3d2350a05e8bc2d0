/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands of prog_driver: a table of each kind, and what their functions share. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lien/cuda_abi.h>

#define FD     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define FABRIC CU_MEM_HANDLE_TYPE_FABRIC

struct command {
	const char *name;
	void (*run)(void);
	int args;
};

/* Each ends with a name of NULL. */
extern const struct command context_commands[], memory_commands[], pool_commands[],
	process_commands[], verbs_commands[];

/* The arguments of the command that runs: as they were written, and as numbers (or 0). */
extern char **words;
extern uint64_t arg[];

/* Obeys until the input ends. */
void read_commands(void);

/* Each prints the answer. */
void say(CUresult result, uint64_t value);
void say_two(CUresult result, uint64_t first, uint64_t second);
void say_errno(bool good, uint64_t value);
void say_bytes(CUresult result, const void *bytes, size_t size);

/* Missing digits are zeros in front, as in any number. */
void parse_bytes(const char *text, unsigned char bytes[CU_IPC_HANDLE_SIZE]);

/* Makes a device's primary context current. */
CUresult use_device(int ordinal);

/*
 * A call of the driver: from here, bound by the linker when it is first made; or, after `nccl`,
 * from that library.
 */
#define CALL(fn, ...)                                                                              \
	(through_nccl ? call_through_nccl(#fn, (const long[6]){LONGS(__VA_ARGS__)})                \
		      : fn(__VA_ARGS__))

extern bool through_nccl;
CUresult call_through_nccl(const char *function, const long args[6]);

#define LONGS(...)			  PICK(__VA_ARGS__, LONG6, LONG5, LONG4, LONG3, LONG2, LONG1)(__VA_ARGS__)
#define PICK(a, b, c, d, e, f, name, ...) name
#define LONG1(a)			  (long)(a)
#define LONG2(a, ...)			  (long)(a), LONG1(__VA_ARGS__)
#define LONG3(a, ...)			  (long)(a), LONG2(__VA_ARGS__)
#define LONG4(a, ...)			  (long)(a), LONG3(__VA_ARGS__)
#define LONG5(a, ...)			  (long)(a), LONG4(__VA_ARGS__)
#define LONG6(a, ...)			  (long)(a), LONG5(__VA_ARGS__)

#define C(name, function, args)                                                                    \
	{                                                                                          \
		name, do_##function, args                                                          \
	}

/* Commands that are one call: without a result, or with one of this type that it puts in `made`. */
#define SAYS(name, call)                                                                           \
	static void do_##name(void)                                                                \
	{                                                                                          \
		say(call, 0);                                                                      \
	}
#define MAKES(name, type, call)                                                                    \
	static void do_##name(void)                                                                \
	{                                                                                          \
		type made = 0;                                                                     \
		CUresult result = call;                                                            \
                                                                                                   \
		say(result, (uint64_t)made);                                                       \
	}

#endif
