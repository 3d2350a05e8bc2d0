// SPDX-License-Identifier: BSD-2-Clause
/* Turns of prog_random: multicast objects, and what is bound to them. */
#include "random_slots.h"

/* Either it is shared, or memory is bound to it: the software driver keeps the bindings of each
 * process apart. */
void multicast_create(struct slot *slot)
{
	CUmulticastObjectProp prop = {.numDevices = 1 + below(2), .size = TEAM_PIECES * PIECE};
	int first = below(2);

	slot_begin(slot, prop.size, below(2) ? FD : 0);
	slot->multicast = true;
	prop.handleTypes = slot->types;
	DO(cuMulticastCreate, &slot->name[0].handle, &prop);
	for (unsigned int i = 0; i < prop.numDevices; i++) {
		DO(cuMulticastAddDevice, slot->name[0].handle, (first + i) % 2);
		slot->team |= 1u << (first + i) % 2;
	}
}

static bool free_there(const struct slot *slot, int device, uint64_t offset, uint64_t bytes)
{
	const struct binding *binding;

	for (unsigned int i = 0; i < BINDINGS; i++) {
		binding = &slot->binding[i];
		if (binding->bytes && binding->device == device &&
			binding->offset < offset + bytes &&
			offset < binding->offset + binding->bytes)
			return false;
	}
	return true;
}

static void bind_memory(struct slot *slot, const struct name *object, struct slot *memory)
{
	struct binding *binding = &slot->binding[below(BINDINGS)];
	uint64_t offset = below(2) * PIECE; /* few, so that devices meet there */
	struct name *name = slot_usable(memory);
	struct place *place = &memory->place[below(PLACES)];
	CUdeviceptr va = place->va + below(place->part[0].bytes / PIECE + 1) * PIECE;

	if (binding->bytes || !memory->bytes || memory->multicast || memory->device < 0 ||
		!(slot->team >> memory->device & 1) ||
		!free_there(slot, memory->device, offset, PIECE))
		return;
	if (place->part[0].bytes && va < place->va + place->part[0].bytes)
		DO(cuMulticastBindAddr, object->handle, offset, va, PIECE, 0);
	else if (name)
		DO(cuMulticastBindMem, object->handle, offset, name->handle,
			below(memory->bytes / PIECE) * PIECE, PIECE, 0);
	else
		return;
	*binding = (struct binding){PIECE, offset, memory->device};
}

void multicast_turn(struct slot *slot)
{
	struct binding *binding = &slot->binding[below(BINDINGS)];
	struct name *object = slot_usable(slot);
	struct slot *memory;

	if (!slot->multicast || slot->types || !object)
		return;
	if (binding->bytes && !below(3)) {
		DO(cuMulticastUnbind, object->handle, binding->device, binding->offset,
			binding->bytes);
		binding->bytes = 0;
		return;
	}
	for (unsigned int i = 0; i < 8; i++) {
		memory = slot_lock_some(); /* not this one: it is locked */
		if (!memory)
			continue;
		bind_memory(slot, object, memory);
		pthread_mutex_unlock(&memory->lock);
	}
}
