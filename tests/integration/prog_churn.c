// SPDX-License-Identifier: BSD-2-Clause
/*
 * Threads that acquire and release driver memory as fast as they can, so that names (addresses,
 * descriptors, reference counts) are given out again while the last release of them still returns:
 *
 *   prog_churn THREADS CALLS [hints] [imports] [simple]
 *
 * All threads work on the same slots. What the driver calls are done to is locked, so that the
 * program itself knows its state; addresses pass between threads through the driver alone. With
 * `hints` every reservation asks for one of a few addresses, which the others have just given back.
 * With `imports` memory is also exported and imported again in this process. With `simple` no
 * handle without a mapping has more than one reference.
 *
 * Makes about CALLS calls, prints its state as one line of JSON, and waits: a line on standard
 * input is another round, its end is the end.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/cuda_abi.h>

#define MIB	    (1ull << 20)
#define SLOTS	    24
#define NAMES	    3 /* handles of an allocation: its own, imports */
#define PLACES	    4 /* mappings of it */
#define ALLOCS	    16
#define THREADS_MAX 64
#define HINTS	    8
#define HINT_BASE   0x600000000000ull

struct name {
	CUmemGenericAllocationHandle handle;
	unsigned references; /* that we hold */
	unsigned mapped;     /* mappings made from it keep the name valid without any */
	bool imported;
};

struct place {
	CUdeviceptr va;
	unsigned name;	/* mapped from this one */
	unsigned flags; /* access of device 0, CUmemAccess_flags */
	unsigned peer;	/* of device 1 */
};

struct slot {
	pthread_mutex_t lock;
	uint64_t bytes; /* 0: nothing here */
	unsigned exports;
	struct name names[NAMES];
	struct place places[PLACES];
	CUdeviceptr reserved; /* and not mapped: whatever is in the slot */
	uint64_t reserved_bytes;
};

struct plain {
	pthread_mutex_t lock;
	CUdeviceptr va;
	uint64_t bytes;
};

static struct slot slots[SLOTS];
static struct plain plains[ALLOCS];
static bool hints, imports, simple;
static long calls_left, calls_made;
static CUcontext context;

static void check(CUresult result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "prog_churn: %s: %d\n", what, result);
	exit(1);
}

#define DO(call, ...)                                                                              \
	do {                                                                                       \
		check(call(__VA_ARGS__), #call);                                                   \
		__atomic_add_fetch(&calls_made, 1, __ATOMIC_RELAXED);                              \
	} while (0)

static uint64_t next(uint64_t *random)
{
	*random ^= *random << 13;
	*random ^= *random >> 7;
	*random ^= *random << 17;
	return *random >> 11;
}

static CUdeviceptr reserve(uint64_t bytes, uint64_t *random)
{
	uint64_t hint = hints ? HINT_BASE + next(random) % HINTS * 16 * MIB : 0;
	CUdeviceptr va;

	DO(cuMemAddressReserve, &va, bytes, 0, hint, 0);
	return va;
}

static void slot_create(struct slot *slot, uint64_t *random)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, next(random) % 2}};

	slot->bytes = 2 * MIB * (1 + next(random) % 8 / 7);
	slot->exports = 0;
	memset(slot->names, 0, sizeof(slot->names));
	DO(cuMemCreate, &slot->names[0].handle, slot->bytes, &prop, 0);
	slot->names[0].references = 1;
}

static void slot_settle(struct slot *slot)
{
	unsigned i;

	for (i = 0; i < NAMES; i++) {
		if (slot->names[i].references || slot->names[i].mapped)
			break;
		slot->names[i].handle = 0;
	}
	if (i == NAMES)
		slot->bytes = 0;
}

static void slot_map(struct slot *slot, uint64_t *random)
{
	CUmemAccessDesc access[2] = {
		{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
		{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READ}};
	unsigned i, name = next(random) % NAMES, count = next(random) % 3;
	struct place *place;

	for (i = 0; i < PLACES && slot->places[i].va; i++)
		;
	if (i == PLACES || !slot->names[name].references)
		return;
	place = &slot->places[i];
	place->va = reserve(slot->bytes, random);
	place->name = name;
	place->flags = place->peer = 0;
	DO(cuMemMap, place->va, slot->bytes, 0, slot->names[name].handle, 0);
	slot->names[name].mapped++;
	if (!count)
		return;
	DO(cuMemSetAccess, place->va, slot->bytes, access, count);
	place->flags = access[0].flags;
	place->peer = count > 1 ? access[1].flags : 0;
}

static void slot_unmap(struct slot *slot, uint64_t *random)
{
	struct place *place = &slot->places[next(random) % PLACES];

	if (!place->va)
		return;
	if (simple && slot->names[place->name].mapped == 1 &&
		slot->names[place->name].references > 1)
		return;
	DO(cuMemUnmap, place->va, slot->bytes);
	DO(cuMemAddressFree, place->va, slot->bytes);
	place->va = 0;
	slot->names[place->name].mapped--;
	slot_settle(slot);
}

static void slot_retain(struct slot *slot, uint64_t *random)
{
	struct place *place = &slot->places[next(random) % PLACES];
	CUmemGenericAllocationHandle handle;

	if (!place->va)
		return;
	DO(cuMemRetainAllocationHandle, &handle, (void *)(place->va + next(random) % slot->bytes));
	check(handle != slot->names[place->name].handle, "retained handle");
	slot->names[place->name].references++;
}

static void slot_release(struct slot *slot, uint64_t *random)
{
	struct name *name = &slot->names[next(random) % NAMES];

	if (!name->references)
		return;
	DO(cuMemRelease, name->handle);
	name->references--;
	slot_settle(slot);
}

static void slot_import(struct slot *slot, uint64_t *random)
{
	struct name *from = &slot->names[next(random) % NAMES], *to;
	int fd;

	to = &slot->names[1 + next(random) % (NAMES - 1)];
	if (!imports || !from->references || from->imported || to->references || to->mapped)
		return;
	DO(cuMemExportToShareableHandle, &fd, from->handle,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	slot->exports++;
	DO(cuMemImportFromShareableHandle, &to->handle, (void *)(intptr_t)fd,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	close(fd);
	to->references = 1;
	to->imported = true;
}

/* Reservations that nothing is mapped in. */
static void slot_reserve(struct slot *slot, uint64_t *random)
{
	if (slot->reserved) {
		DO(cuMemAddressFree, slot->reserved, slot->reserved_bytes);
		slot->reserved = 0;
	} else {
		slot->reserved_bytes = 2 * MIB * (1 + next(random) % 4);
		slot->reserved = reserve(slot->reserved_bytes, random);
	}
}

static void plain_turn(struct plain *plain, uint64_t *random)
{
	if (plain->va) {
		DO(cuMemFree_v2, plain->va);
		plain->va = 0;
	} else {
		plain->bytes = 1 + next(random) % (3 * MIB);
		DO(cuMemAlloc_v2, &plain->va, plain->bytes);
	}
}

/* Calls that the driver refuses. */
static void fail(struct slot *slot, uint64_t *random)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va = slot->places[next(random) % PLACES].va;
	bool refused;

	refused = cuMemRelease(0x1234) && cuMemUnmap(0x1000, 2 * MIB) &&
		  cuMemRetainAllocationHandle(&handle, (void *)0x2000) && cuMemFree_v2(0x3000);
	if (va) /* it is still mapped */
		refused = refused && cuMemAddressFree(va, slot->bytes) && cuMemFree_v2(va);
	check(!refused, "a wrong call was not refused");
	__atomic_add_fetch(&calls_made, 4, __ATOMIC_RELAXED);
}

static const struct {
	unsigned share; /* of 100 */
	void (*run)(struct slot *slot, uint64_t *random);
} turns[] = {
	{26, slot_map},
	{26, slot_unmap},
	{14, slot_retain},
	{16, slot_release},
	{4, slot_import},
	{12, slot_reserve},
	{2, fail},
};

static void slot_turn(struct slot *slot, uint64_t *random)
{
	unsigned pick = next(random) % 100, i;

	if (!slot->bytes && next(random) % 2) {
		slot_create(slot, random);
		return;
	}
	for (i = 0; pick >= turns[i].share; i++)
		pick -= turns[i].share;
	turns[i].run(slot, random);
}

static void *churn(void *arg)
{
	uint64_t random = 0x9e3779b97f4a7c15ull * ((uintptr_t)arg + 1) + getpid();
	struct plain *plain;
	struct slot *slot;

	check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
	while (__atomic_load_n(&calls_made, __ATOMIC_RELAXED) < calls_left) {
		slot = &slots[next(&random) % SLOTS];
		if (!pthread_mutex_trylock(&slot->lock)) {
			slot_turn(slot, &random);
			pthread_mutex_unlock(&slot->lock);
		}
		plain = &plains[next(&random) % ALLOCS];
		if (next(&random) % 16 == 0 && !pthread_mutex_trylock(&plain->lock)) {
			plain_turn(plain, &random);
			pthread_mutex_unlock(&plain->lock);
		}
	}
	return NULL;
}

static void print_slot(const struct slot *slot, const char **separator)
{
	const char *comma = "";
	unsigned i;

	printf("%s{\"bytes\": %lu, \"exports\": %u, \"handles\": [", *separator, slot->bytes,
		slot->exports);
	*separator = ", ";
	for (i = 0; i < NAMES; i++)
		if (slot->names[i].references) {
			printf("%s[%llu, %u, %s]", comma, slot->names[i].handle,
				slot->names[i].references,
				slot->names[i].imported ? "true" : "false");
			comma = ", ";
		}
	printf("], \"mappings\": [");
	for (i = 0, comma = ""; i < PLACES; i++)
		if (slot->places[i].va) {
			printf("%s[%llu, %lu, %u, %u]", comma, slot->places[i].va, slot->bytes,
				slot->places[i].flags, slot->places[i].peer);
			comma = ", ";
		}
	printf("]}");
}

static void print_state(void)
{
	const char *separator = "";
	unsigned i, j;

	printf("{\"calls\": %ld, \"allocations\": [", calls_made);
	for (i = 0; i < SLOTS; i++)
		if (slots[i].bytes)
			print_slot(&slots[i], &separator);
	printf("], \"plain\": [");
	for (i = 0, separator = ""; i < ALLOCS; i++)
		if (plains[i].va) {
			printf("%s[%llu, %lu]", separator, plains[i].va, plains[i].bytes);
			separator = ", ";
		}
	printf("], \"reservations\": [");
	for (i = 0, separator = ""; i < SLOTS; i++) {
		if (slots[i].reserved) {
			printf("%s[%llu, %lu]", separator, slots[i].reserved,
				slots[i].reserved_bytes);
			separator = ", ";
		}
		for (j = 0; j < PLACES; j++)
			if (slots[i].places[j].va) {
				printf("%s[%llu, %lu]", separator, slots[i].places[j].va,
					slots[i].bytes);
				separator = ", ";
			}
	}
	printf("]}\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned count = argc > 1 ? atoi(argv[1]) : 4, i;
	long calls = argc > 2 ? atol(argv[2]) : 10000;
	pthread_t threads[THREADS_MAX];
	char line[64];
	CUdevice device;

	for (i = 3; i < (unsigned)argc; i++) {
		hints |= !strcmp(argv[i], "hints");
		imports |= !strcmp(argv[i], "imports");
		simple |= !strcmp(argv[i], "simple");
	}
	if (!count || count > THREADS_MAX)
		return 2;
	check(cuInit(0), "cuInit");
	check(cuDeviceGet(&device, 0), "cuDeviceGet");
	check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	for (i = 0; i < SLOTS; i++)
		pthread_mutex_init(&slots[i].lock, NULL);
	for (i = 0; i < ALLOCS; i++)
		pthread_mutex_init(&plains[i].lock, NULL);
	do {
		calls_left = calls_made + calls;
		for (i = 0; i < count; i++)
			if (pthread_create(&threads[i], NULL, churn, (void *)(uintptr_t)i))
				return 1;
		for (i = 0; i < count; i++)
			pthread_join(threads[i], NULL);
		print_state();
	} while (fgets(line, sizeof(line), stdin));
	return 0;
}
