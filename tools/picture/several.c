// SPDX-License-Identifier: BSD-2-Clause
#include "tools/picture/several.h"

#include <string.h>

#include "tools/text/output.h"

#define PID_BITS 32

static void unite_pid(json_t *object, unsigned node)
{
	const uint64_t pid = lien_get_number(object, "pid");

	if (pid)
		json_object_set_new(object, "pid",
			json_integer((json_int_t)((uint64_t)(node + 1) << PID_BITS |
						  (pid & UINT32_MAX))));
}

/* NULL: it is no device. */
static json_t *united_device(const json_t *device, unsigned node)
{
	const json_int_t number = json_is_integer(device) ? json_integer_value(device) : -1;

	if (number < 0 || number >> LIEN_SEVERAL_DEVICE_BITS)
		return NULL;
	return json_integer((json_int_t)(node + 1) << LIEN_SEVERAL_DEVICE_BITS | number);
}

static void unite_device(json_t *object, unsigned node)
{
	json_t *device = united_device(json_object_get(object, "device"), node);

	if (device)
		json_object_set_new(object, "device", device);
}

static void unite_process(json_t *process, unsigned node)
{
	json_t *devices = json_object_get(process, "devices"), *device;
	size_t i;

	unite_pid(process, node);
	json_array_foreach (devices, i, device) {
		device = united_device(device, node);
		if (device)
			json_array_set_new(devices, i, device);
	}
}

static void unite_allocation(json_t *allocation, unsigned node)
{
	json_t *holder, *access;
	size_t i, j;

	unite_pid(allocation, node);
	unite_device(allocation, node);
	json_array_foreach (json_object_get(allocation, "handles"), i, holder)
		unite_pid(holder, node);
	json_array_foreach (json_object_get(allocation, "mappings"), i, holder) {
		unite_pid(holder, node);
		json_array_foreach (json_object_get(holder, "access"), j, access)
			unite_device(access, node);
	}
}

static void unite_list(json_t *reply, const char *list, void (*unite)(json_t *, unsigned))
{
	const json_t *nodes = json_object_get(reply, "nodes"), *name;
	json_t *entry;
	size_t i, n;

	json_array_foreach (json_object_get(reply, list), i, entry)
		json_array_foreach (nodes, n, name)
			if (json_equal(name, json_object_get(entry, "node"))) {
				unite(entry, n);
				break;
			}
}

json_t *lien_several_unite(const json_t *reply)
{
	json_t *copy;

	if (!json_is_array(json_object_get(reply, "nodes")))
		return json_incref((json_t *)reply);
	copy = json_deep_copy(reply);
	unite_list(copy, "processes", unite_process);
	unite_list(copy, "allocations", unite_allocation);
	unite_list(copy, "communicators", unite_pid);
	return copy;
}

static const char *name_of(const json_t *nodes, uint64_t number)
{
	const char *name = number ? json_string_value(json_array_get(nodes, number - 1)) : NULL;

	return name ? name : "";
}

const char *lien_several_node_of_pid(const json_t *nodes, uint64_t pid)
{
	return name_of(nodes, pid >> PID_BITS);
}

uint64_t lien_several_pid(const json_t *nodes, uint64_t pid)
{
	return nodes ? pid & UINT32_MAX : pid;
}

const char *lien_several_node_of_device(const json_t *nodes, int64_t device)
{
	return device < 0 ? "" : name_of(nodes, (uint64_t)device >> LIEN_SEVERAL_DEVICE_BITS);
}

int64_t lien_several_device(const json_t *nodes, int64_t device)
{
	return nodes ? device & ((1 << LIEN_SEVERAL_DEVICE_BITS) - 1) : device;
}
