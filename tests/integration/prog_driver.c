// SPDX-License-Identifier: BSD-2-Clause
/*
 * A process that makes the driver calls it is told to, and gets, shares and keeps memory in every
 * way that the driver knows: a command a line on standard input, an answer a line on standard
 * output, "ok VALUE..." or "error NUMBER WHAT". Numbers are decimal or 0x...; the 64 bytes of an
 * IPC handle, a fabric handle or a pool pointer are 0x and up to 128 hexadecimal digits. `devices`,
 * `types` and `flags` are CUDA's numbers. Linked with libcuda.so.1, so that the driver is mapped
 * from the beginning on.
 *
 * After `nccl FILE` memory calls are made through lien_softnccl_call() of that library, as NCCL
 * would.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define ARGS_MAX 8

char **words;
uint64_t arg[ARGS_MAX];

void say(CUresult result, uint64_t value)
{
	const char *name = "";

	if (result && cuGetErrorName(result, &name))
		name = "?";
	if (result)
		printf("error %d %s\n", result, name);
	else
		printf("ok %#" PRIx64 "\n", value);
}

void say_two(CUresult result, uint64_t first, uint64_t second)
{
	if (result)
		say(result, 0);
	else
		printf("ok %#" PRIx64 " %#" PRIx64 "\n", first, second);
}

void say_errno(bool good, uint64_t value)
{
	if (good)
		say(0, value);
	else
		printf("error %d %s\n", errno, strerror(errno));
}

void say_bytes(CUresult result, const void *bytes, size_t size)
{
	if (result) {
		say(result, 0);
		return;
	}
	printf("ok 0x");
	for (size_t i = 0; i < size; i++)
		printf("%02x", ((const unsigned char *)bytes)[i]);
	printf("\n");
}

void parse_bytes(const char *text, unsigned char bytes[CU_IPC_HANDLE_SIZE])
{
	size_t digits, skip = !strncmp(text, "0x", 2) ? 2 : 0;
	unsigned int value;

	memset(bytes, 0, CU_IPC_HANDLE_SIZE);
	digits = strlen(text + skip);
	for (size_t i = 0; i < digits && i < 2 * CU_IPC_HANDLE_SIZE; i++) {
		char digit[2] = {text[skip + digits - 1 - i], 0};

		value = strtoul(digit, NULL, 16);
		bytes[CU_IPC_HANDLE_SIZE - 1 - i / 2] |= value << (i % 2 * 4);
	}
}

static const struct command *find(const char *name, int args)
{
	const struct command *const tables[] = {
		context_commands, memory_commands, pool_commands, process_commands, verbs_commands};

	for (unsigned int i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		for (const struct command *command = tables[i]; command->name; command++) {
			if (!strcmp(command->name, name) && command->args == args)
				return command;
		}
	}
	return NULL;
}

static void obey(char *line)
{
	char *split[ARGS_MAX + 1], *save = NULL, *word = strtok_r(line, " \n", &save);
	const struct command *command;
	int n = 0;

	for (; word && n <= ARGS_MAX; word = strtok_r(NULL, " \n", &save))
		split[n++] = word;
	words = split + 1;
	memset(arg, 0, sizeof(arg));
	for (int i = 1; i < n; i++)
		arg[i - 1] = strtoull(split[i], NULL, 0);
	command = n ? find(split[0], n - 1) : NULL;
	errno = 0;
	if (command)
		command->run();
	else
		printf("error -1 no such command\n");
}

void read_commands(void)
{
	char line[512];

	while (fgets(line, sizeof(line), stdin))
		obey(line);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	read_commands();
	return 0;
}
