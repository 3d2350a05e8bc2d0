// SPDX-License-Identifier: BSD-2-Clause
/* What is in the memory with handles of prog_random: where a mapping begins and ends, and in the
 * middle, through a device that has access to it. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../tests/softcuda/dump.h"
#include "random.h"

#define PAGE	 4096
#define PLACES	 3
#define MAPPINGS 512

static struct softcuda_object mappings[MAPPINGS];
static unsigned int count;

static int collect(const struct softcuda_object *object, void *unused)
{
	(void)unused;
	if (object->kind != SOFTCUDA_MAPPING)
		return 0;
	must(count == MAPPINGS, "too many mappings");
	mappings[count++] = *object;
	return 0;
}

static void collect_all(void)
{
	int (*dump)(softcuda_dump_fn, void *) = dlsym(RTLD_DEFAULT, "softcuda_dump");

	count = 0;
	must(!dump || dump(collect, NULL), "softcuda_dump");
}

/* Makes a context current that may do so. */
static bool can(const struct softcuda_object *mapping, unsigned int way)
{
	for (int i = 0; i < 2; i++)
		if ((mapping->access[i] & way) == way) {
			DO(cuCtxSetCurrent, primary[i]);
			return true;
		}
	return false;
}

static CUdeviceptr place_of(const struct softcuda_object *mapping, unsigned int i)
{
	return mapping->va + (mapping->bytes - PAGE) / (PLACES - 1) / PAGE * PAGE * i;
}

void contents_open(void)
{
	CUmemAccessDesc access[2];

	for (int i = 0; i < 2; i++)
		access[i] = (CUmemAccessDesc){
			{CU_MEM_LOCATION_TYPE_DEVICE, i}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	collect_all();
	for (unsigned int i = 0; i < count; i++)
		DO(cuMemSetAccess, mappings[i].va, mappings[i].bytes, access, 2);
}

void contents_paint(uint64_t seed)
{
	uint64_t page[PAGE / sizeof(uint64_t)];

	collect_all();
	for (unsigned int i = 0; i < count; i++) {
		if (!can(&mappings[i], CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
			continue;
		for (unsigned int j = 0; j < PLACES; j++) {
			for (unsigned int k = 0; k < PAGE / sizeof(page[0]); k++)
				page[k] = (seed + mappings[i].va + j * PAGE + k + 1) *
					  0x9e3779b97f4a7c15ull;
			DO(cuMemcpyHtoD_v2, place_of(&mappings[i], j), page, PAGE);
		}
	}
}

static uint64_t sum_of(const struct softcuda_object *mapping)
{
	uint64_t page[PAGE / sizeof(uint64_t)], sum = 0xcbf29ce484222325ull;

	for (unsigned int j = 0; j < PLACES; j++) {
		DO(cuMemcpyDtoH_v2, page, place_of(mapping, j), PAGE);
		for (unsigned int k = 0; k < PAGE / sizeof(page[0]); k++)
			sum = (sum ^ page[k]) * 0x100000001b3ull;
	}
	return sum;
}

void contents_print(void)
{
	const char *comma = "";

	collect_all();
	printf("{");
	for (unsigned int i = 0; i < count; i++) {
		if (!can(&mappings[i], CU_MEM_ACCESS_FLAGS_PROT_READ))
			continue;
		printf("%s\"%" PRIu64 "\":%" PRIu64, comma, mappings[i].va, sum_of(&mappings[i]));
		comma = ",";
	}
	printf("}\n");
}
