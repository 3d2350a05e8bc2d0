/* SPDX-License-Identifier: BSD-2-Clause */
/* --gpu, --user and --sort: parts of a reply, in an order. */
#ifndef LIEN_TOOLS_FILTER_H
#define LIEN_TOOLS_FILTER_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "tools/cli/options.h"

struct lien_filter {
	const char *gpu;  /* nvidia-smi's index, or the beginning of a UUID; NULL: all */
	const char *user; /* a name or a uid; NULL: all */
	uint32_t uid;	  /* of that user */
};

/* clang-format off */
#define LIEN_FILTER_OPTIONS(filter) \
	{"gpu", LIEN_OPTION_STRING, &(filter)->gpu, "GPU", \
		"only processes with memory on it: nvidia-smi's index, or a UUID", 0}, \
	{"user", LIEN_OPTION_STRING, &(filter)->user, "USER", \
		"only processes of this user, a name or a number", 0}
/* clang-format on */

/* Looks the user up. Returns false after a message: there is none. */
bool lien_filter_read(const struct lien_usage *usage, struct lien_filter *filter);
/*
 * Removes from a reply to `ps` what is not selected: processes, GPUs, the dead. Returns false after
 * a message, which lists the GPUs that there are: there is no such GPU.
 */
bool lien_filter_ps(
	const struct lien_usage *usage, const struct lien_filter *filter, json_t *result);
/* Is the process one of the reply's `processes`? */
bool lien_filter_has(const json_t *result, uint64_t pid);
/* Does any GPU of the list have this number? Without NVML none has "index" or "total_bytes". */
bool lien_filter_gpus_have(const json_t *gpus, const char *number);

/* A way to sort: --sort `name` compares the member `key`. */
struct lien_sort {
	const char *name, *key;
	bool ascending; /* otherwise the largest first */
};

/* Sorts the rows by the way of that name; NULL: leaves them as they are. The ways end with a name
 * that is NULL. */
void lien_sort(json_t *rows, const struct lien_sort *ways, const char *name);

/* Returns the user's name, or number (always, if asked for); the caller frees. */
char *lien_user_name(uint32_t uid, bool number);

#endif
