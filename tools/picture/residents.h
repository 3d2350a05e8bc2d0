/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph reply as a person asks for it: per GPU, which processes have memory there (its
 * residents), for which libraries; and which resident holds how much of another's. Members and
 * values of the reply that are not known here are ignored.
 */
#ifndef LIEN_TOOLS_GRAPH_RESIDENTS_H
#define LIEN_TOOLS_GRAPH_RESIDENTS_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/* Behind all real devices. */
#define LIEN_DEVICE_NONE    (1 << 20)	    /* of processes without memory on any */
#define LIEN_DEVICE_UNKNOWN ((1 << 20) + 1) /* of memory */

enum lien_part_kind { LIEN_PART_LOCAL, LIEN_PART_EXPORTED, LIEN_PART_OFFLOADED, LIEN_PART_OTHER };

/* The memory of a resident that one library asked for and that is in the same state. */
struct lien_part {
	const char *library; /* of the reply */
	enum lien_part_kind kind;
	const char *state; /* of the reply: what to call LIEN_PART_OTHER */
	uint64_t allocations, bytes;
};

struct lien_resident {
	uint64_t pid; /* 0: of an unknown owner */
	bool dead;    /* the process has exited, its memory is held by others */
	int device;
	const json_t *process; /* of the reply, or NULL */

	struct lien_part *parts; /* by library, those with most first, then by kind */
	unsigned part_count;
	uint64_t bytes;	   /* on the device */
	uint64_t all;	   /* of all parts */
	uint64_t imported; /* bytes of others' memory on a device held by this resident */
	uint64_t away;	   /* bytes of others' offloaded memory held by it */
	unsigned owners;   /* residents whose memory that is */
};

/* What one resident holds of another's memory. */
struct lien_bundle {
	unsigned owner, importer; /* residents */
	uint64_t allocations, bytes;
	uint64_t liens;	     /* handles and mappings of these allocations that the importer has */
	uint64_t offloaded;  /* bytes of these that are in host memory now */
	const char *library; /* that asked for them, or "" if these are several */
	uint64_t last;	     /* number of the allocation counted last */
};

struct lien_library {
	const char *name; /* of the reply */
	uint64_t bytes;	  /* all that it asked for, wherever it is now */
};

struct lien_residents {
	struct lien_resident *residents; /* by pid, dead, device */
	unsigned count;
	unsigned *order; /* numbers of residents, for the eye: by device, rank and pid */
	struct lien_bundle *bundles; /* by owner and importer */
	unsigned bundle_count;
	struct lien_library *libraries; /* those with most first */
	unsigned library_count;
};

/* 0 or -ENOMEM. The reply must live as long. */
int lien_residents_make(const json_t *reply, struct lien_residents *out);
void lien_residents_free(struct lien_residents *residents);

/* The number of the resident that is this process on this device; if there is none, of the process
 * on the first of its devices, or -1. */
int lien_residents_find(
	const struct lien_residents *residents, uint64_t pid, bool dead, int device);

/* Whether the same process is a resident of other devices, too. */
bool lien_residents_has_several(
	const struct lien_residents *residents, const struct lien_resident *one);

/* Fills bundles and what residents import; graph_bundles.c. */
int lien_residents_bundle(struct lien_residents *residents, const json_t *reply);

/* Of an allocation of the reply: its device, its library or "unknown", what part it belongs to,
 * whether its owner has exited. */
int lien_allocation_device(const json_t *allocation);
const char *lien_reply_library(const json_t *allocation);
enum lien_part_kind lien_allocation_kind(const json_t *allocation);
bool lien_allocation_dead(const json_t *allocation);

#endif
