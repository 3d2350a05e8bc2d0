/* SPDX-License-Identifier: BSD-2-Clause */
/* The file next to the socket that says what is attached: see keep.c. */
#ifndef LIEN_KEEP_STATE_H
#define LIEN_KEEP_STATE_H

#include "loader/probes/probes_internal.h"

/* What was written by an agent before this one. */
struct lien_keep_state {
	char build[96], boot[40];
	uint64_t layout, journal, pidns;
	unsigned next_attachment;
	struct lien_attached_list attached;
};

/* 0, -ENOENT, or -EBADMSG. The list is the caller's. */
int lien_keep_state_read(const char *path, struct lien_keep_state *state);
/* Replaces it at once or not at all. 0 or -errno. */
int lien_keep_state_write(const char *path, const struct lien_probes *probes);

/* Of this boot of the machine. */
void lien_keep_boot(char boot[40]);
uint64_t lien_keep_pidns(void);

#endif
