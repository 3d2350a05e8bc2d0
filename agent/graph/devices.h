/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Devices: a process counts those that it may use from 0 (its ordinals), the node has them by UUID.
 * Plain data, filled by the agent, read by the views.
 */
#ifndef LIEN_DEVICES_H
#define LIEN_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lien_uuid {
	uint8_t bytes[16];
	bool mig; /* of a part of a GPU, as its owner or NVML says; not part of its identity */
};

#define LIEN_ORDINALS_MAX 64

/* The UUIDs of the devices of a process, by ordinal. */
struct lien_ordinals {
	bool by_driver; /* the process's driver said so; else its environment does */
	unsigned count;
	struct lien_uuid uuid[LIEN_ORDINALS_MAX];
};

#define LIEN_BYTES_UNKNOWN UINT64_MAX

/* What NVML says. */
struct lien_node_process {
	uint32_t pid;
	uint64_t bytes; /* or LIEN_BYTES_UNKNOWN */
};

struct lien_node_device {
	struct lien_uuid uuid;
	unsigned index;
	uint64_t total, used; /* or LIEN_BYTES_UNKNOWN */
	struct lien_node_process *processes;
	unsigned processes_count;
};

struct lien_node {
	bool nvml;     /* it is there; else all of this is empty */
	double age_ms; /* since it said this; set when it is shown */
	struct lien_node_device *devices;
	unsigned count;
};

bool lien_uuid_equal(const struct lien_uuid *a, const struct lien_uuid *b);

#define LIEN_UUID_TEXT 41 /* "GPU-" or "MIG-", 36 characters, NUL */

void lien_uuid_print(const struct lien_uuid *uuid, char text[LIEN_UUID_TEXT]);
/*
 * Reads "GPU-5f0a21c4-..." or "MIG-...". Returns how many of the 16 bytes there are, 16 for all of
 * it, less for a beginning; -1: no UUID.
 */
int lien_uuid_parse(const char *text, size_t length, struct lien_uuid *uuid);

const struct lien_node_device *lien_node_find(
	const struct lien_node *node, const struct lien_uuid *uuid);
/* Frees the devices; the structure is the caller's. */
void lien_node_clear(struct lien_node *node);

/*
 * The devices that CUDA_VISIBLE_DEVICES leaves (NULL: not set) of `count` ones, which are in the
 * order of their PCI addresses. Numbers mean something only when CUDA counts in that order too
 * (by_bus) or there is but one device. False: it cannot be told.
 */
bool lien_visible_devices(const char *visible, bool by_bus, const struct lien_uuid *gpus,
	unsigned count, struct lien_ordinals *ordinals);

#endif
