// SPDX-License-Identifier: BSD-2-Clause
/* Turns of prog_random: memory with handles in all shapes, as handles, mappings, exports and
 * imports. */
#include <string.h>
#include <unistd.h>

#include "random_slots.h"

#define SLOTS	  20
#define HINTS	  6
#define HINT_BASE 0x600000000000ull
#define HINT_STEP (16ull << 20)

static struct slot slots[SLOTS];

void handles_init(void)
{
	for (unsigned int i = 0; i < SLOTS; i++)
		pthread_mutex_init(&slots[i].lock, NULL);
}

struct slot *slot_lock_some(void)
{
	struct slot *slot = &slots[below(SLOTS)];

	return pthread_mutex_trylock(&slot->lock) ? NULL : slot;
}

struct name *slot_usable(struct slot *slot)
{
	struct name *name = &slot->name[below(NAMES)];

	return name->references ? name : NULL;
}

static void place_free(struct slot *slot, struct place *place)
{
	DO(cuMemAddressFree, place->va, 2 * slot->bytes);
	place->va = 0;
}

/* When neither a reference nor a mapping is left, the slot is free. */
static void settle(struct slot *slot)
{
	for (unsigned int i = 0; i < NAMES; i++)
		if (slot->name[i].references || slot->name[i].mapped)
			return;
	for (unsigned int i = 0; i < PLACES; i++)
		if (slot->place[i].va)
			place_free(slot, &slot->place[i]);
	slot->bytes = 0;
}

void slot_begin(struct slot *slot, uint64_t bytes, unsigned int types)
{
	slot->bytes = bytes;
	slot->types = types;
	slot->multicast = false;
	slot->team = 0;
	slot->device = 0;
	memset(slot->name, 0, sizeof(slot->name));
	memset(slot->place, 0, sizeof(slot->place));
	memset(slot->binding, 0, sizeof(slot->binding));
	slot->name[0].references = 1;
}

static void create(struct slot *slot)
{
	static const unsigned int types[] = {0, FD, FD, FD | FABRIC};
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

	slot_begin(slot, PIECE * (1 + below(8) / 6 + below(8) / 7), types[below(4)]);
	slot->device = below(16) ? (int)below(2) : -1;
	prop.requestedHandleTypes = slot->types;
	prop.location.type =
		slot->device < 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = slot->device < 0 ? 0 : slot->device;
	DO(cuMemCreate, &slot->name[0].handle, slot->bytes, &prop, 0);
}

static void set_access(const struct slot *slot, CUdeviceptr va, uint64_t bytes)
{
	CUmemAccessDesc access[3];
	unsigned int count = 1 + below(2), first = below(2);

	for (unsigned int i = 0; i < count; i++) {
		access[i].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
		access[i].location.id = (first + i) % 2;
		access[i].flags = below(3) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
					   : CU_MEM_ACCESS_FLAGS_PROT_READ;
		if (!below(8))
			access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	}
	if (slot->device < 0 && below(2)) {
		access[count].location.type = CU_MEM_LOCATION_TYPE_HOST;
		access[count].location.id = 0;
		access[count++].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	}
	DO(cuMemSetAccess, va, bytes, access, count);
}

static void map(struct slot *slot)
{
	struct name *name = slot_usable(slot);
	struct place *place = &slot->place[below(PLACES)];
	unsigned int at = below(2);
	struct part *part = &place->part[at];
	CUdeviceptr va;

	if (!name || part->bytes)
		return;
	if (!place->va)
		DO(cuMemAddressReserve, &place->va, 2 * slot->bytes, 0,
			below(3) ? HINT_BASE + below(HINTS) * HINT_STEP : 0, 0);
	va = place->va + at * slot->bytes;
	part->bytes = below(4) || only_whole ? slot->bytes : PIECE;
	part->name = name - slot->name;
	DO(cuMemMap, va, part->bytes, 0, name->handle, 0);
	name->mapped++;
	if (below(3))
		set_access(slot, va, part->bytes);
}

/* Two mappings side by side are one range. */
static bool joined(const struct slot *slot, const struct place *place)
{
	return place->part[0].bytes == slot->bytes && place->part[1].bytes;
}

static void change_access(struct slot *slot)
{
	struct place *place = &slot->place[below(PLACES)];
	unsigned int at = below(2);

	if (joined(slot, place))
		set_access(slot, place->va, slot->bytes + place->part[1].bytes);
	else if (place->part[at].bytes)
		set_access(slot, place->va + at * slot->bytes, place->part[at].bytes);
}

static void forget_part(struct slot *slot, struct part *part)
{
	slot->name[part->name].mapped--;
	part->bytes = 0;
}

static void unmap(struct slot *slot)
{
	struct place *place = &slot->place[below(PLACES)];
	unsigned int at = below(2);

	if (!place->va)
		return;
	if (joined(slot, place) && below(2)) {
		DO(cuMemUnmap, place->va, slot->bytes + place->part[1].bytes);
		forget_part(slot, &place->part[0]);
		forget_part(slot, &place->part[1]);
	} else if (place->part[at].bytes) {
		DO(cuMemUnmap, place->va + at * slot->bytes, place->part[at].bytes);
		forget_part(slot, &place->part[at]);
	}
	if (!place->part[0].bytes && !place->part[1].bytes && below(4))
		place_free(slot, place);
	settle(slot);
}

static void retain(struct slot *slot)
{
	struct place *place = &slot->place[below(PLACES)];
	unsigned int at = below(2);
	struct part *part = &place->part[at];
	struct name *name = &slot->name[part->name];
	CUmemGenericAllocationHandle handle;
	CUdeviceptr va = place->va + at * slot->bytes;

	if (!part->bytes)
		return;
	DO(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)(va + below(part->bytes)));
	/* Of memory that is mapped and has no reference, the value may be another after a restore.
	 */
	must(name->references && handle != name->handle, "retained handle");
	name->handle = handle;
	name->references++;
}

static void release(struct slot *slot)
{
	struct name *name = slot_usable(slot);

	if (!name)
		return;
	DO(cuMemRelease, name->handle);
	name->references--;
	settle(slot);
}

/* Once more into this process, under another name. */
static void import(struct slot *slot)
{
	struct name *from = slot_usable(slot), *to = &slot->name[1 + below(NAMES - 1)];
	int fd;

	if (!from || from->imported || to->references || to->mapped || !(slot->types & FD))
		return;
	DO(cuMemExportToShareableHandle, &fd, from->handle, FD, 0);
	DO(cuMemImportFromShareableHandle, &to->handle, (void *)(intptr_t)fd, FD);
	close(fd);
	to->references = 1;
	to->imported = !slot->multicast;
}

static void send_out(struct slot *slot)
{
	struct parcel parcel = {.bytes = slot->bytes,
		.types = slot->types,
		.multicast = slot->multicast,
		.device = slot->device};
	struct name *name = slot_usable(slot);
	int fd = -1;

	if (!name || name->imported || !slot->types)
		return;
	parcel.kind = slot->types & FABRIC && below(2) ? PARCEL_FABRIC : PARCEL_FD;
	if (parcel.kind == PARCEL_FD)
		DO(cuMemExportToShareableHandle, &fd, name->handle, FD, 0);
	else
		DO(cuMemExportToShareableHandle, parcel.key, name->handle, FABRIC, 0);
	parcel_send(&parcel, fd, true);
}

void handles_receive(const struct parcel *parcel, int fd)
{
	struct slot *slot = NULL;
	CUmemGenericAllocationHandle handle;
	CUresult result;

	for (unsigned int i = 0; i < 8 && !slot; i++) {
		slot = slot_lock_some();
		if (slot && slot->bytes) {
			pthread_mutex_unlock(&slot->lock);
			slot = NULL;
		}
	}
	if (!slot)
		return;
	if (parcel->kind == PARCEL_FD)
		result = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FD);
	else /* refused when its owner has no more of it */
		result = cuMemImportFromShareableHandle(&handle, (void *)parcel->key, FABRIC);
	if (parcel->kind == PARCEL_FD)
		must(result, "import");
	if (!result) {
		slot_begin(slot, parcel->bytes, parcel->types);
		slot->name[0].handle = handle;
		slot->name[0].imported = !parcel->multicast;
		slot->multicast = parcel->multicast;
		slot->device = parcel->device;
	}
	pthread_mutex_unlock(&slot->lock);
}

/* Calls that the driver refuses change nothing. */
static void fail(struct slot *slot)
{
	CUmemGenericAllocationHandle handle;
	const struct place *place = &slot->place[below(PLACES)];
	bool refused = cuMemRelease(0x1234) && cuMemUnmap(0x1000, PIECE) &&
		       cuMemRetainAllocationHandle(&handle, (void *)0x2000);

	if (place->part[0].bytes) /* it is mapped */
		refused = refused && cuMemAddressFree(place->va, 2 * slot->bytes) &&
			  cuMemFree_v2(place->va) &&
			  cuMemUnmap(place->va, place->part[0].bytes + 4096);
	must(!refused, "a wrong call was not refused");
}

static const struct {
	unsigned int share; /* of 100 */
	void (*take)(struct slot *slot);
} kinds[] = {
	{28, map},
	{22, unmap},
	{10, retain},
	{18, release},
	{5, import},
	{5, change_access},
	{6, send_out},
	{5, multicast_turn},
	{1, fail},
};

void handles_turn(void)
{
	struct slot *slot = slot_lock_some();
	unsigned int pick = below(100), i;

	if (!slot)
		return;
	for (i = 0; pick >= kinds[i].share; i++)
		pick -= kinds[i].share;
	if (slot->multicast && slot->bytes && !slot->types && below(3))
		multicast_turn(slot);
	else if (slot->bytes)
		kinds[i].take(slot);
	else if (below(6) || no_multicast)
		create(slot);
	else
		multicast_create(slot);
	pthread_mutex_unlock(&slot->lock);
}
