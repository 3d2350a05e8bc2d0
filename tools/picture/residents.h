/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The graph reply from a user's point of view: for each GPU, which processes have memory there (its
 * residents) and for which libraries; and how much each resident holds of another's memory. Unknown
 * members and values of the reply are ignored.
 */
#ifndef LIEN_TOOLS_GRAPH_RESIDENTS_H
#define LIEN_TOOLS_GRAPH_RESIDENTS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

/* These sort after all real devices, of several nodes too (tools/picture/several.h). Their
 * difference to -1 is an int. */
#define LIEN_DEVICE_NONE    (INT_MAX - 2) /* for processes without memory on any */
#define LIEN_DEVICE_UNKNOWN (INT_MAX - 1) /* for memory */

enum lien_part_kind { LIEN_PART_LOCAL, LIEN_PART_EXPORTED, LIEN_PART_OFFLOADED, LIEN_PART_OTHER };

/* A resident's memory that one library requested, with one tag, and that is in the same state. */
struct lien_part {
	const char *library; /* in the reply */
	const char *tag;     /* in the reply; "": none, or not known */
	enum lien_part_kind kind;
	const char *state; /* in the reply: the label of LIEN_PART_OTHER */
	uint64_t allocations, bytes;
};

struct lien_resident {
	uint64_t pid; /* 0: unknown owner */
	bool dead;    /* the process has exited, and others hold its memory */
	int device;
	const json_t *process; /* in the reply, or NULL */

	struct lien_part *parts; /* by library, largest first, then by kind and tag */
	unsigned part_count;
	uint64_t bytes;	   /* on the device */
	uint64_t all;	   /* of all parts */
	uint64_t imported; /* bytes of others' memory on a device that it holds */
	uint64_t away;	   /* bytes of others' offloaded memory that it holds */
	unsigned owners;   /* number of residents that own that memory */
};

/* The memory of another resident that one resident holds. */
struct lien_bundle {
	unsigned owner, importer; /* indices of residents */
	uint64_t allocations, bytes;
	uint64_t liens;	     /* the importer's handles and mappings of these allocations */
	uint64_t offloaded;  /* bytes of these that are in host memory now */
	const char *library; /* the library that requested them, or "" if there are several */
	uint64_t last;	     /* number of the last allocation counted */
};

struct lien_library {
	const char *name; /* in the reply */
	uint64_t bytes;	  /* all that it requested, wherever it is now */
};

struct lien_residents {
	struct lien_resident *residents; /* sorted by pid, dead, device */
	unsigned count;
	unsigned *order; /* indices of residents in display order: by device, rank and pid */
	struct lien_bundle *bundles; /* sorted by owner and importer */
	unsigned bundle_count;
	struct lien_library *libraries; /* largest first */
	unsigned library_count;
};

/* Returns 0 or -ENOMEM. The reply must outlive the residents. */
int lien_residents_make(const json_t *reply, struct lien_residents *out);
void lien_residents_free(struct lien_residents *residents);

/* Returns true if the same process is also a resident of other devices. */
bool lien_residents_has_several(
	const struct lien_residents *residents, const struct lien_resident *one);

#endif
