/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program without the driver, which loads libraries that need it (late.c) and asks the linker for
 * functions. It reads a command a line on standard input and answers each with a line on standard
 * output: "ok VALUES..." or "error CODE TEXT". Libraries are numbered in the order of loading.
 */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/late.h"

#define LIBRARIES 16
#define WORDS	  8

#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static struct {
	void *handle;
	const struct late *calls;
} libraries[LIBRARIES];

static char *words[WORDS];
static uint64_t values[WORDS]; /* what the words are as numbers */
static unsigned used;

static void say(CUresult result, uint64_t value)
{
	if (result)
		printf("error %d -\n", result);
	else
		printf("ok %#" PRIx64 "\n", value);
}

static const struct late *calls(void)
{
	return libraries[values[1] % LIBRARIES].calls;
}

static void do_load(void)
{
	void *handle = dlopen(words[1], RTLD_LAZY | RTLD_LOCAL);
	late_fn *late = handle ? (late_fn *)dlsym(handle, "late") : NULL;

	if (!handle) {
		printf("error 0 %s\n", dlerror());
		return;
	}
	libraries[used].handle = handle;
	libraries[used].calls = late ? late() : NULL;
	printf("ok %u\n", used++);
}

static void do_unload(void)
{
	say(dlclose(libraries[values[1] % LIBRARIES].handle), 0);
}

static void do_init(void)
{
	say(calls()->init(values[2]), 0);
}

static void do_create(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = calls()->create(&handle, values[2], values[3]);

	say(result, handle);
}

static void do_show(void)
{
	CUdeviceptr va = 0;
	CUresult result = calls()->show(&va, values[2], values[3], values[4]);

	say(result, va);
}

static void do_retain(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = calls()->retain(&handle, values[2]);

	say(result, handle);
}

static void do_release(void)
{
	say(calls()->release(values[2]), 0);
}

static void do_unmap(void)
{
	say(calls()->unmap(values[2], values[3]), 0);
}

static void do_fill(void)
{
	say(calls()->fill(values[2], values[3], values[4]), 0);
}

/* How many bytes are not as they should be. */
static void do_check(void)
{
	unsigned char *bytes = malloc(values[3]);
	uint64_t wrong = 0, i;
	CUresult result =
		bytes ? calls()->read(bytes, values[2], values[3]) : CUDA_ERROR_OUT_OF_MEMORY;

	for (i = 0; !result && i < values[3]; i++)
		wrong += bytes[i] != (unsigned char)values[4];
	free(bytes);
	say(result, wrong);
}

static void do_multicast(void)
{
	CUmemGenericAllocationHandle handle = 0;
	CUresult result = calls()->multicast(&handle, values[2], values[3]);

	say(result, handle);
}

static void do_bind(void)
{
	say(calls()->bind(values[2], values[3], values[4]), 0);
}

/* Where a function is, by the file that has it. The place to look: a library's number, "default",
 * "next", or "main". */
static void do_lookup(void)
{
	void *place = !strcmp(words[1], "default") ? RTLD_DEFAULT
		      : !strcmp(words[1], "next")  ? RTLD_NEXT
		      : !strcmp(words[1], "main")  ? dlopen(NULL, RTLD_NOW)
						   : libraries[values[1] % LIBRARIES].handle;
	void *found;
	const char *error;
	Dl_info info;

	dlerror();
	found = values[3] ? dlvsym(place, words[2], words[3]) : dlsym(place, words[2]);
	error = dlerror();
	if (!found != !!error)
		printf("error 0 %p and %s\n", found, error ? error : "no error");
	else if (!found)
		printf("error 2 %s\n", error);
	else if (!dladdr(found, &info))
		printf("error 1 nowhere\n");
	else
		printf("ok %p %d\n", found, !!strstr(info.dli_fname, "liblien-control"));
}

static int seal(struct dl_phdr_info *info, size_t size, void *arg)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), from, to;
	const struct link_map *map = arg;
	unsigned i;

	(void)size;
	if (strcmp(info->dlpi_name, map->l_name))
		return 0;
	for (i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type != PT_GNU_RELRO)
			continue;
		from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
		to = (from + info->dlpi_phdr[i].p_memsz) & ~(page - 1);
		from &= ~(page - 1);
		return syscall(SYS_mseal, from, to - from, 0) ? errno : -1;
	}
	return ENOENT;
}

/* Nobody can make writable again what the linker made read-only. */
static void do_seal(void)
{
	int err = dl_iterate_phdr(seal, libraries[values[1] % LIBRARIES].handle);

	say(err < 0 ? 0 : err ? err : ENOENT, 0);
}

/* The child goes on with the next command; its parent waits for its end. */
static void do_fork(void)
{
	pid_t child = fork();

	if (!child) {
		printf("ok %d\n", getpid());
		return;
	}
	if (child < 0)
		printf("error %d fork\n", errno);
	waitpid(child, NULL, 0);
	_exit(0);
}

static void do_exec(void)
{
	char *argv[] = {words[1], NULL};

	execv(argv[0], argv);
	printf("error %d exec\n", errno);
}

static const struct {
	const char *name;
	void (*run)(void);
	int words;
} commands[] = {
	{"load", do_load, 1},		/* FILE: its number */
	{"unload", do_unload, 1},	/* LIBRARY */
	{"init", do_init, 2},		/* LIBRARY DEVICE */
	{"create", do_create, 3},	/* LIBRARY BYTES DEVICE */
	{"show", do_show, 4},		/* LIBRARY BYTES HANDLE DEVICE: reserve, map, access */
	{"retain", do_retain, 2},	/* LIBRARY ADDRESS */
	{"release", do_release, 2},	/* LIBRARY HANDLE */
	{"unmap", do_unmap, 3},		/* LIBRARY ADDRESS BYTES */
	{"fill", do_fill, 4},		/* LIBRARY ADDRESS BYTES VALUE */
	{"check", do_check, 4},		/* LIBRARY ADDRESS BYTES VALUE */
	{"multicast", do_multicast, 3}, /* LIBRARY BYTES DEVICE */
	{"bind", do_bind, 4},		/* LIBRARY MULTICAST HANDLE BYTES */
	{"lookup", do_lookup, -1},	/* PLACE NAME [VERSION]: address, whether it is lien's */
	{"seal", do_seal, 1},		/* LIBRARY */
	{"fork", do_fork, 0},		/* the child's pid */
	{"exec", do_exec, 1},		/* FILE */
};

static void obey(char *line)
{
	char *save = NULL, *word = strtok_r(line, " \n", &save);
	unsigned i;
	int n = 0;

	memset(values, 0, sizeof(values));
	for (; word && n < WORDS; word = strtok_r(NULL, " \n", &save)) {
		words[n] = word;
		values[n++] = strtoull(word, NULL, 0);
	}
	for (i = 0; n && i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, words[0]) ||
			(commands[i].words >= 0 && commands[i].words != n - 1))
			continue;
		if (n > 3 && commands[i].run == do_lookup)
			values[3] = 1;
		commands[i].run();
		return;
	}
	printf("error -1 no such command\n");
}

int main(void)
{
	char line[512];

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	while (fgets(line, sizeof(line), stdin))
		obey(line);
	return 0;
}
