// SPDX-License-Identifier: BSD-2-Clause
/* Functions by their names, in the three ways in which programs come by them. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "same.h"

#define NAMES_MAX  256
#define VERSION	   12080 /* as a program that was built with CUDA 12.8 asks */
#define PER_THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
#define LEGACY	   CU_GET_PROC_ADDRESS_LEGACY_STREAM

/* Names that another version asks for. 0: none does. */
static const struct {
	const char *name;
	int version;
} versions[] = {
	{"cuCtxCreate_v2", 3020},
	{"cuCtxCreate_v3", 11040},
	{"cuCtxCreate_v4", 12050},
	{"cuCtxSynchronize_v2", 13000},
	{"cuCtxGetDevice_v2", 13000},
	{"cuDevicePrimaryCtxRelease", 7000},
	{"cuDevicePrimaryCtxReset", 7000},
	{"cuIpcOpenMemHandle", 4010},
	{"cuCtxDestroy", 0},
	{"cuCtxPushCurrent", 0},
	{"cuCtxPopCurrent", 0},
	{"cuStreamDestroy", 0},
	{"cuEventDestroy", 0},
	{"cuMemHostRegister", 4000},
	{"cuMemAllocHost", 0},
};

enum way { BY_HANDLE, BY_DEFAULT, BY_PROC, BY_PROC_V2, WAYS };

static struct name {
	char name[64];
	void *function;
} table[NAMES_MAX];
static unsigned table_count;

static void *library;
static uint64_t salt;

void names_open(uint64_t seed)
{
	salt = seed;
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (library)
		return;
	fprintf(stderr, "prog_same: %s\n", dlerror());
	exit(2);
}

static enum way way_of(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325 ^ salt * 0x9e3779b97f4a7c15;

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 0x100000001b3;
	return (hash >> 33) % WAYS;
}

static int version_of(const char *name)
{
	for (unsigned i = 0; i < COUNT(versions); i++)
		if (!strcmp(versions[i].name, name))
			return versions[i].version;
	return VERSION;
}

/* Cuts off how it ends. */
static bool without(char *base, const char *end)
{
	size_t bytes = strlen(base), less = strlen(end);

	if (bytes <= less || strcmp(base + bytes - less, end))
		return false;
	base[bytes - less] = 0;
	return true;
}

static void *by_proc(const char *name, enum way way)
{
	int version = version_of(name);
	void *function = NULL;
	uint64_t flags;
	char base[64];

	if (!version)
		return NULL;
	snprintf(base, sizeof(base), "%s", name);
	flags = without(base, "_ptsz") || without(base, "_ptds") ? PER_THREAD : LEGACY;
	if (!without(base, "_v2") && !without(base, "_v3"))
		without(base, "_v4");
	if (way == BY_PROC) {
		__typeof__(&cuGetProcAddress) get = dlsym(library, "cuGetProcAddress");

		return get && !get(base, &function, version, flags) ? function : NULL;
	}
	__typeof__(&cuGetProcAddress_v2) get = dlsym(library, "cuGetProcAddress_v2");
	CUdriverProcAddressQueryResult status;

	return get && !get(base, &function, version, flags, &status) ? function : NULL;
}

static void *look_up(const char *name)
{
	enum way way = way_of(name);
	void *function = NULL;

	if (way == BY_PROC || way == BY_PROC_V2)
		function = by_proc(name, way);
	if (!function)
		function = way == BY_DEFAULT ? dlsym(RTLD_DEFAULT, name) : dlsym(library, name);
	return function;
}

void *names_find(const char *name)
{
	for (unsigned i = 0; i < table_count; i++)
		if (!strcmp(table[i].name, name))
			return table[i].function;
	if (table_count == NAMES_MAX)
		abort();
	snprintf(table[table_count].name, sizeof(table[0].name), "%s", name);
	table[table_count].function = look_up(name);
	return table[table_count++].function;
}

void *names_any(const char *const *names)
{
	unsigned count = 0;
	const char *name;
	void *function;

	while (names[count])
		count++;
	name = names[below(count)];
	function = names_find(name);
	say("%s%s", name, function ? "" : " is not there");
	return function;
}
