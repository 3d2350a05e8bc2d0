/* SPDX-License-Identifier: BSD-2-Clause */
/* The file next to the socket that lists the attachments: see keep.c. */
#ifndef LIEN_KEEP_STATE_H
#define LIEN_KEEP_STATE_H

#include "loader/probes/probes_internal.h"

/* The contents, written by an earlier agent. */
struct lien_keep_state {
	char build[96], boot[40];
	uint64_t layout, journal, pidns;
	unsigned next_attachment;
	struct lien_attached_list attached;
};

/* Returns 0, -ENOENT, or -EBADMSG. The caller owns the list. */
int lien_keep_state_read(const char *path, struct lien_keep_state *state);
/* Replaces the file atomically. Returns 0 or -errno. */
int lien_keep_state_write(const char *path, const struct lien_probes *probes);

/* Reads the id of the machine's current boot. */
void lien_keep_boot(char boot[40]);
uint64_t lien_keep_pidns(void);

#endif
