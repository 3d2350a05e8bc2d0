// SPDX-License-Identifier: BSD-2-Clause
#include "agent/graph/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void lien_uuid_print(const struct lien_uuid *uuid, char text[LIEN_UUID_TEXT])
{
	char *at = text;
	unsigned i;

	at += sprintf(at, "%s-", uuid->mig ? "MIG" : "GPU");
	for (i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			uuid->bytes[i]);
}

static int digit(char c)
{
	static const char digits[] = "0123456789abcdef0123456789ABCDEF";
	const char *found = c ? strchr(digits, c) : NULL;

	return found ? (found - digits) % 16 : -1;
}

int lien_uuid_parse(const char *text, size_t length, struct lien_uuid *uuid)
{
	int high, low, count = 0;
	size_t i = 4;

	if (length < 4 || (strncmp(text, "GPU-", 4) && strncmp(text, "MIG-", 4)))
		return -1;
	memset(uuid, 0, sizeof(*uuid));
	uuid->mig = *text == 'M';
	while (i < length && count < 16) {
		if (text[i] == '-' && (count == 4 || count == 6 || count == 8 || count == 10) &&
			text[i - 1] != '-')
			i++;
		if (i + 2 > length)
			break;
		high = digit(text[i]);
		low = digit(text[i + 1]);
		if (high < 0 || low < 0)
			return -1;
		uuid->bytes[count++] = high << 4 | low;
		i += 2;
	}
	return i == length ? count : -1;
}

const struct lien_node_device *lien_node_find(
	const struct lien_node *node, const struct lien_uuid *uuid)
{
	unsigned i;

	for (i = 0; node && i < node->count; i++)
		if (lien_uuid_equal(&node->devices[i].uuid, uuid))
			return &node->devices[i];
	return NULL;
}

void lien_node_clear(struct lien_node *node)
{
	unsigned i;

	for (i = 0; i < node->count; i++)
		free(node->devices[i].processes);
	free(node->devices);
	*node = (struct lien_node){.nvml = false};
}

/* Finds the device that one entry of the list names. Returns false if it is not known. */
static bool entry_device(const char *entry, size_t length, bool by_bus,
	const struct lien_uuid *gpus, unsigned count, struct lien_uuid *uuid)
{
	int bytes = lien_uuid_parse(entry, length, uuid);
	const struct lien_uuid *found = NULL;
	unsigned long number;
	unsigned i;
	char *end;

	if (bytes == 16)
		return true;
	if (bytes > 0 && !uuid->mig) {
		for (i = 0; i < count; i++) {
			if (memcmp(gpus[i].bytes, uuid->bytes, bytes))
				continue;
			if (found)
				return false;
			found = &gpus[i];
		}
	} else if (bytes < 0 && length && strspn(entry, "0123456789") == length) {
		number = strtoul(entry, &end, 10);
		if (number < count && (by_bus || count == 1))
			found = &gpus[number];
	}
	if (found)
		*uuid = *found;
	return found != NULL;
}

bool lien_visible_devices(const char *visible, bool by_bus, const struct lien_uuid *gpus,
	unsigned count, struct lien_ordinals *ordinals)
{
	struct lien_uuid *uuid;
	size_t length;
	unsigned i;

	ordinals->count = 0;
	ordinals->by_driver = false;
	if (!visible) {
		if (!count || count > LIEN_ORDINALS_MAX || (!by_bus && count != 1))
			return false;
		memcpy(ordinals->uuid, gpus, count * sizeof(*gpus));
		ordinals->count = count;
		return true;
	}
	/* An entry that is not understood, or that occurs twice, makes the rest a guess. */
	for (; *visible; visible += length + (visible[length] == ',')) {
		length = strcspn(visible, ",");
		if (ordinals->count == LIEN_ORDINALS_MAX)
			return false;
		uuid = &ordinals->uuid[ordinals->count];
		if (!entry_device(visible, length, by_bus, gpus, count, uuid))
			return false;
		for (i = 0; i < ordinals->count; i++)
			if (lien_uuid_equal(&ordinals->uuid[i], uuid))
				return false;
		ordinals->count++;
	}
	return ordinals->count > 0;
}
