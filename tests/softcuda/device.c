/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cuInit and what can be asked about devices. A device is a tmpfs (mount.c); its number among all
 * processes is that of the tmpfs, its ordinal in this process follows CUDA_VISIBLE_DEVICES.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "softcuda.h"

struct soft_state soft = {
	/* glibc's default lets readers starve a writer: copies would hold up cuMemMap for ever. */
	.lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
	.objects = PTHREAD_MUTEX_INITIALIZER,
};

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct {
	int attribute;
	int value;
} attributes[] = {
	{1, 1024},						  /* threads per block */
	{10, 32},						  /* warp size */
	{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132}, {19, 1}, /* can map host memory */
	{31, 1},						  /* concurrent kernels */
	{39, 2048},						  /* threads per multiprocessor */
	{40, 3},						  /* async engines */
	{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
	{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
	{91, 1}, /* host pointer for registered memory */
	{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1}, {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0},
	{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
	{110, 1}, /* GPUDirect RDMA flag of cuMemCreate */
	{113, 1}, /* read-only registration of host memory */
	{CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
	{CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
	{CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1}, {141, 1}, /* HOST_NUMA in cuMemCreate */
	{142, 1},						/* and in pools */
	{144, 1},						/* HOST in pools */
	{145, 1},						/* and in cuMemCreate */
};

#define ATTRIBUTE_MAX 256 /* beyond any number that cuda.h names */

static size_t size_of(const char *name, size_t otherwise)
{
	const char *text = getenv(name);
	char *end;
	unsigned long long value;
	int shift = 0;

	if (!text || !*text)
		return otherwise;
	value = strtoull(text, &end, 10);
	switch (*end) {
	case 'G':
	case 'g':
		shift = 30;
		break;
	case 'M':
	case 'm':
		shift = 20;
		break;
	case 'K':
	case 'k':
		shift = 10;
		break;
	}
	if (end == text || !value || (shift && end[1]) || (!shift && *end)) {
		fprintf(stderr, "softcuda: %s=%s is not a size; using %zu\n", name, text,
			otherwise);
		return otherwise;
	}
	return (size_t)value << shift;
}

/* The environment may change under a running process: read once, kept. */
static int read_config(struct soft_config *config)
{
	const char *devices = getenv("LIEN_SOFTCUDA_DEVICES");
	const char *dir = getenv("LIEN_SOFTCUDA_DIR");
	const char *busy = getenv("LIEN_SOFTCUDA_BUSY_FILE");
	const char *strict = getenv("LIEN_SOFTCUDA_STRICT");
	const char *node = getenv("LIEN_SOFTCUDA_NUMA_NODE");

	config->devices = devices && *devices ? atoi(devices) : 2;
	if (config->devices < 0 || config->devices > SOFT_MAX_DEVICES) {
		fprintf(stderr, "softcuda: LIEN_SOFTCUDA_DEVICES=%s is not in 0..%d\n", devices,
			SOFT_MAX_DEVICES);
		return -EINVAL;
	}
	config->memory = size_of("LIEN_SOFTCUDA_MEMORY", 4ul << 30);
	config->granularity = size_of("LIEN_SOFTCUDA_GRANULARITY", 2ul << 20);
	if (config->granularity < 4096 || config->granularity & (config->granularity - 1)) {
		fprintf(stderr,
			"softcuda: LIEN_SOFTCUDA_GRANULARITY must be a power of 2 from 4096 on\n");
		return -EINVAL;
	}
	config->quiet = getenv("LIEN_SOFTCUDA_QUIET") != NULL;
	config->strict = strict && *strict && strcmp(strict, "0");
	config->numa_node = node && *node ? atoi(node) : -1;
	config->dir = strdup(dir && *dir ? dir : "/run/lien-softcuda");
	config->busy_file = busy && *busy ? strdup(busy) : NULL;
	return config->dir ? 0 : -ENOMEM;
}

static void device_uuid(int physical, CUuuid *uuid)
{
	memcpy(uuid->bytes, "lien softcuda", 14);
	uuid->bytes[14] = 0;
	uuid->bytes[15] = physical;
}

/* Does the device's UUID, as "GPU-" and hexadecimal digits, begin like this? */
static bool uuid_begins(int physical, const char *text, size_t len)
{
	char full[64];
	size_t at = 0;
	CUuuid uuid;

	device_uuid(physical, &uuid);
	at += snprintf(full, sizeof(full), "GPU-");
	for (int i = 0; i < 16; i++)
		at += snprintf(full + at, sizeof(full) - at,
			i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
			(unsigned char)uuid.bytes[i]);
	return len <= at && !strncasecmp(full, text, len);
}

/* An entry of the list: a number, or as much of a UUID as tells one device from the others. -1: no
 * device. */
static int parse_device(const char *text, size_t len, int physical)
{
	char *end;
	long ordinal;
	int found = -1;

	if (len > 4 && !strncmp(text, "GPU-", 4)) {
		for (int i = 0; i < physical; i++) {
			if (!uuid_begins(i, text, len))
				continue;
			if (found >= 0)
				return -1;
			found = i;
		}
		return found;
	}
	ordinal = strtol(text, &end, 10);
	return end == text || end != text + len || ordinal < 0 || ordinal >= physical ? -1
										      : ordinal;
}

/* As the driver does: the list ends at its first entry that is no device or comes twice. */
static int visible_devices(int physical, int *visible)
{
	const char *text = getenv("CUDA_VISIBLE_DEVICES");
	unsigned int seen = 0;
	int count = 0;

	if (!text) {
		for (; count < physical; count++)
			visible[count] = count;
		return count;
	}
	while (*text) {
		size_t len = strcspn(text, ",");
		int device = parse_device(text, len, physical);

		if (device < 0 || seen & (1u << device))
			break;
		seen |= 1u << device;
		visible[count++] = device;
		text += text[len] ? len + 1 : len;
	}
	return count;
}

static void fork_prepare(void)
{
	pthread_rwlock_wrlock(&soft.lock);
	pthread_mutex_lock(&soft.objects);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&soft.objects);
	pthread_rwlock_unlock(&soft.lock);
}

/* The driver cannot be used in a child of a process that has initialised it, nor can this one. */
static void fork_child(void)
{
	atomic_store(&soft.forked, true);
	atomic_store(&soft.ready, false);
	soft_handles_forked();
	soft_pools_forked();
	for (int i = 0; i < soft.count; i++)
		close(soft.device[i].dir);
	fork_parent();
}

static CUresult init_devices(void)
{
	int dirs[SOFT_MAX_DEVICES], visible[SOFT_MAX_DEVICES];
	char where[512] = "";
	struct stat st;
	int err;

	if (soft.config.dir)
		free((void *)soft.config.dir);
	free((void *)soft.config.busy_file);
	soft.config.busy_file = NULL;
	err = read_config(&soft.config);
	if (err)
		return CUDA_ERROR_NO_DEVICE;
	err = soft_mount_devices(&soft.config, dirs, where, sizeof(where));
	if (err) {
		if (!soft.config.quiet)
			fprintf(stderr,
				"softcuda: no device: no tmpfs at %s (%s): run one program as root "
				"first, or set LIEN_SOFTCUDA_DIR to where the devices are\n",
				where, strerror(-err));
		return CUDA_ERROR_NO_DEVICE;
	}
	for (int i = 0; i < soft.config.devices; i++)
		soft.physical[i] = fstat(dirs[i], &st) ? 0 : st.st_dev;
	soft.count = visible_devices(soft.config.devices, visible);
	for (int i = 0; i < soft.count; i++) {
		soft.device[i].physical = visible[i];
		soft.device[i].dir = dirs[visible[i]];
		dirs[visible[i]] = -1;
	}
	for (int i = 0; i < soft.config.devices; i++) {
		if (dirs[i] >= 0)
			close(dirs[i]);
	}
	return soft.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

SOFT_EXPORT CUresult cuInit(unsigned int flags)
{
	CUresult result = CUDA_SUCCESS;

	SOFT_FAULT();
	if (atomic_load(&soft.forked))
		return CUDA_ERROR_NOT_INITIALIZED;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&init_lock);
	if (!soft_ready()) {
		result = init_devices();
		if (!result) {
			soft_fd_limit_raise();
			soft_faults_open();
			pthread_atfork(fork_prepare, fork_parent, fork_child);
			atomic_store(&soft.ready, true);
		}
	}
	pthread_mutex_unlock(&init_lock);
	return result;
}

SOFT_EXPORT CUresult cuDriverGetVersion(int *version)
{
	SOFT_FAULT();
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SOFT_DRIVER_VERSION;
	return CUDA_SUCCESS;
}

static CUresult check_device(const void *out, CUdevice device)
{
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	return soft_device_ok(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SOFT_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult result = check_device(device, ordinal);

	SOFT_FAULT();
	if (!result)
		*device = ordinal;
	return result;
}

SOFT_EXPORT CUresult cuDeviceGetCount(int *count)
{
	SOFT_FAULT();
	if (!soft_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = soft.count;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
	CUresult result = check_device(name, device);

	SOFT_FAULT();
	if (!result && len <= 0)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		snprintf(name, len, "lien software device");
	return result;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice device)
{
	CUresult result = check_device(uuid, device);

	if (!result)
		device_uuid(soft.device[device].physical, uuid);
	return result;
}

SOFT_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	SOFT_FAULT();
	return get_uuid(uuid, device);
}

SOFT_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	SOFT_FAULT();
	return get_uuid(uuid, device);
}

SOFT_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult result = check_device(bytes, device);
	struct statfs fs;

	SOFT_FAULT();
	if (result)
		return result;
	if (fstatfs(soft.device[device].dir, &fs))
		return CUDA_ERROR_OPERATING_SYSTEM;
	*bytes = (size_t)fs.f_blocks * fs.f_bsize;
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CUresult result = check_device(value, device);

	SOFT_FAULT();
	if (result)
		return result;
	if ((int)attribute < 1 || (int)attribute > ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 0;
	if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
		*value = soft.device[device].physical + 1;
	if (attribute == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)
		*value = soft.config.numa_node;
	for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++) {
		if (attributes[i].attribute == (int)attribute)
			*value = attributes[i].value;
	}
	return CUDA_SUCCESS;
}

SOFT_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult result = check_device(can, device);

	SOFT_FAULT();
	if (!result)
		result = check_device(can, peer);
	if (!result)
		*can = device != peer;
	return result;
}
