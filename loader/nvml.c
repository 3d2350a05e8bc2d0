// SPDX-License-Identifier: BSD-2-Clause
/* Declared from NVML's public API reference. */
#include "loader/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NVML_SUCCESS		     0
#define NVML_ERROR_INSUFFICIENT_SIZE 7
#define UUID_BUFFER		     96
#define PROCESSES_MAX		     65536

typedef struct nvml_device *nvml_device;

struct nvml_memory {
	unsigned long long total, free, used;
};

/* nvmlMemory_v2_t: "used" excludes memory reserved by the driver, as in nvidia-smi. */
struct nvml_memory_v2 {
	unsigned version;
	unsigned long long total, reserved, free, used;
};

#define NVML_MEMORY_V2 (sizeof(struct nvml_memory_v2) | 2u << 24)

/* nvmlProcessInfo_t of functions in versions 2 and 3. */
struct nvml_process {
	unsigned pid;
	unsigned long long bytes; /* all ones: unknown */
	unsigned gpu_instance, compute_instance;
};

struct nvml {
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned *count);
	int (*by_index)(unsigned index, nvml_device *device);
	int (*uuid)(nvml_device device, char *text, unsigned size);
	int (*memory)(nvml_device device, struct nvml_memory *memory);
	int (*memory_v2)(nvml_device device, struct nvml_memory_v2 *memory); /* NULL: old */
	int (*processes)(nvml_device device, unsigned *count, struct nvml_process *list);
};

static const struct {
	const char *names[2]; /* newest first */
	size_t place;
	bool optional;
} functions[] = {
	{{"nvmlInit_v2"}, offsetof(struct nvml, init), false},
	{{"nvmlShutdown"}, offsetof(struct nvml, shutdown), false},
	{{"nvmlDeviceGetCount_v2"}, offsetof(struct nvml, count), false},
	{{"nvmlDeviceGetHandleByIndex_v2"}, offsetof(struct nvml, by_index), false},
	{{"nvmlDeviceGetUUID"}, offsetof(struct nvml, uuid), false},
	{{"nvmlDeviceGetMemoryInfo"}, offsetof(struct nvml, memory), false},
	{{"nvmlDeviceGetMemoryInfo_v2"}, offsetof(struct nvml, memory_v2), true},
	{{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
		offsetof(struct nvml, processes), false},
};

static bool nvml_load(struct nvml *nvml)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *symbol;
	unsigned i;

	if (!library)
		return false;
	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		symbol = dlsym(library, functions[i].names[0]);
		if (!symbol && functions[i].names[1])
			symbol = dlsym(library, functions[i].names[1]);
		if (!symbol && !functions[i].optional)
			break;
		memcpy((char *)nvml + functions[i].place, &symbol, sizeof(symbol));
	}
	if (i == sizeof(functions) / sizeof(functions[0]))
		return true;
	dlclose(library);
	return false;
}

static int read_processes(
	const struct nvml *nvml, nvml_device handle, struct lien_node_device *device)
{
	unsigned count = 16, room, i;
	struct nvml_process *list = NULL, *grown;
	int result;

	do {
		room = count;
		grown = realloc(list, room * sizeof(*list));
		if (!grown) {
			free(list);
			return -ENOMEM;
		}
		list = grown;
		result = nvml->processes(handle, &count, list);
		if (count <= room) /* NVML may leave the count unset */
			count = result == NVML_ERROR_INSUFFICIENT_SIZE ? 2 * room : count;
	} while (result == NVML_ERROR_INSUFFICIENT_SIZE && count <= PROCESSES_MAX);
	if (result != NVML_SUCCESS || count > room)
		count = 0;
	device->processes = calloc(count ? count : 1, sizeof(*device->processes));
	for (i = 0; i < count && device->processes; i++)
		device->processes[i] = (struct lien_node_process){
			list[i].pid, list[i].bytes == ~0ull ? LIEN_BYTES_UNKNOWN : list[i].bytes};
	device->processes_count = device->processes ? count : 0;
	free(list);
	return device->processes ? 0 : -ENOMEM;
}

static void read_memory(
	const struct nvml *nvml, nvml_device handle, struct lien_node_device *device)
{
	struct nvml_memory_v2 memory_v2 = {.version = NVML_MEMORY_V2};
	struct nvml_memory memory;

	device->total = device->used = device->free = LIEN_BYTES_UNKNOWN;
	if (nvml->memory_v2 && nvml->memory_v2(handle, &memory_v2) == NVML_SUCCESS) {
		device->total = memory_v2.total;
		device->used = memory_v2.used;
		device->free = memory_v2.free;
	} else if (nvml->memory(handle, &memory) == NVML_SUCCESS) {
		device->total = memory.total;
		device->used = memory.used;
		device->free = memory.free;
	}
}

/* Returns 1 if the device does not answer. */
static int read_device(const struct nvml *nvml, unsigned index, struct lien_node_device *device)
{
	char uuid[UUID_BUFFER] = "";
	nvml_device handle;

	if (nvml->by_index(index, &handle) != NVML_SUCCESS ||
		nvml->uuid(handle, uuid, sizeof(uuid)) != NVML_SUCCESS ||
		lien_uuid_parse(uuid, strnlen(uuid, sizeof(uuid)), &device->uuid) != 16)
		return 1;
	device->index = index;
	read_memory(nvml, handle, device);
	return read_processes(nvml, handle, device);
}

static int read_devices(const struct nvml *nvml, struct lien_node *node)
{
	unsigned count = 0, i;
	int err = 0;

	if (nvml->count(&count) != NVML_SUCCESS)
		return 0;
	node->devices = calloc(count ? count : 1, sizeof(*node->devices));
	if (!node->devices)
		return -ENOMEM;
	node->nvml = true;
	for (i = 0; i < count && err >= 0; i++) {
		err = read_device(nvml, i, &node->devices[node->count]);
		node->count += !err;
	}
	if (err < 0) {
		node->count++; /* include the one that was partly read */
		lien_node_clear(node);
		return err;
	}
	return 0;
}

int lien_nvml_read(struct lien_node *node)
{
	static struct nvml nvml;
	static bool loaded;
	int err;

	*node = (struct lien_node){.nvml = false};
	if (!loaded)
		loaded = nvml_load(&nvml);
	if (!loaded || nvml.init() != NVML_SUCCESS)
		return 0;
	err = read_devices(&nvml, node);
	/* An open NVML keeps devices from being reset and from sleeping. */
	nvml.shutdown();
	return err;
}
