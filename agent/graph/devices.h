/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Devices. A process numbers the devices that it may use from 0 (its ordinals); the node identifies
 * them by UUID. Plain data: the agent fills it in, the views read it.
 */
#ifndef LIEN_DEVICES_H
#define LIEN_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct lien_uuid {
	uint8_t bytes[16];
	bool mig; /* part of a GPU, according to its owner or NVML; not part of the identity */
};

#define LIEN_ORDINALS_MAX 64

/* The UUIDs of the devices of a process, by ordinal. */
struct lien_ordinals {
	bool by_driver; /* from the process's driver; else from its environment */
	unsigned count;
	struct lien_uuid uuid[LIEN_ORDINALS_MAX];
};

/* Returns the device that has this number; NULL: it is not known. `ordinals` may be NULL. */
static inline const struct lien_uuid *lien_ordinals_uuid(
	const struct lien_ordinals *ordinals, int64_t ordinal)
{
	return ordinals && ordinal >= 0 && ordinal < ordinals->count ? &ordinals->uuid[ordinal]
								     : NULL;
}

#define LIEN_BYTES_UNKNOWN UINT64_MAX

/* A process as NVML reports it. */
struct lien_node_process {
	uint32_t pid;
	uint64_t bytes; /* or LIEN_BYTES_UNKNOWN */
};

struct lien_node_device {
	struct lien_uuid uuid;
	unsigned index;
	uint64_t total, used, free; /* or LIEN_BYTES_UNKNOWN */
	struct lien_node_process *processes;
	unsigned processes_count;
};

struct lien_node {
	bool nvml;     /* NVML is there; otherwise this is all empty */
	double age_ms; /* since NVML reported it; set when it is shown */
	struct lien_node_device *devices;
	unsigned count;
};

static inline bool lien_uuid_equal(const struct lien_uuid *a, const struct lien_uuid *b)
{
	return !memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

#define LIEN_UUID_TEXT 41 /* "GPU-" or "MIG-", 36 characters, NUL */

void lien_uuid_print(const struct lien_uuid *uuid, char text[LIEN_UUID_TEXT]);
/*
 * Parses "GPU-5f0a21c4-..." or "MIG-...". Returns the number of bytes parsed, 16 for a whole UUID,
 * fewer for a prefix; -1: not a UUID.
 */
int lien_uuid_parse(const char *text, size_t length, struct lien_uuid *uuid);

const struct lien_node_device *lien_node_find(
	const struct lien_node *node, const struct lien_uuid *uuid);
/* Frees the devices; the caller owns the structure. */
void lien_node_clear(struct lien_node *node);

/*
 * Selects the devices that CUDA_VISIBLE_DEVICES (NULL: not set) leaves visible, of `count` devices
 * in the order of their PCI addresses. Numbers mean something only if CUDA uses that order too
 * (by_bus) or there is only one device. Returns false if the devices cannot be determined.
 */
bool lien_visible_devices(const char *visible, bool by_bus, const struct lien_uuid *gpus,
	unsigned count, struct lien_ordinals *ordinals);

#endif
