/* SPDX-License-Identifier: BSD-2-Clause */
/* The commands of prog_shapes: a table of each kind, and what their functions share. */
#ifndef SHAPES_H
#define SHAPES_H

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
extern const struct command memory_commands[], pool_commands[];

/* The arguments of the command that runs: as they were written, and as numbers (or 0). */
extern char **words;
extern uint64_t arg[];

/* Each prints the answer. */
void say(CUresult result, uint64_t value);
void say_two(CUresult result, uint64_t first, uint64_t second);
void say_errno(bool good, uint64_t value);
void say_bytes(CUresult result, const void *bytes, size_t size);

/* Missing digits are zeros in front, as in any number. */
void parse_bytes(const char *text, unsigned char bytes[CU_IPC_HANDLE_SIZE]);

#define C(name, function, args)                                                                    \
	{                                                                                          \
		name, do_##function, args                                                          \
	}

/* Commands that are one call: without a result, and with one of this type that it puts in `made`.
 */
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
