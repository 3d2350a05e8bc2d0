/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The journal: every event that the agent has applied, in a file that outlives the agent. It is a
 * recording without compression (agent/journal/recording.h), written through a shared mapping whose
 * room is allocated in advance. An agent that is killed leaves all records but the one it was
 * writing, and a full file system is an error when room is requested, not a SIGBUS later.
 *
 * Its size is bounded: a journal that outgrows its limit is replaced by a snapshot of the graph.
 * Each journal has its own number, which a snapshot inherits. Not thread-safe.
 */
#ifndef LIEN_JOURNAL_H
#define LIEN_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "agent/graph/graph.h"

#ifndef __must_check
#define __must_check __attribute__((__warn_unused_result__))
#endif

struct lien_journal;

/*
 * Creates or replaces the file (mode 0600), with room for a first few thousand records. -errno of
 * open(2), fallocate(2) (-ENOSPC; -EOPNOTSUPP where the file system cannot) or mmap(2).
 */
int lien_journal_create(struct lien_journal **out, const char *path, uint64_t number) __must_check;

/*
 * Opens the journal of an earlier agent, passes its records to fn in order, and continues after the
 * last whole one. -ENOENT: there is none; -EBADMSG: damaged, or not a journal;
 * -EPROTONOSUPPORT: of a newer version of lien; -EPERM, -ELOOP:
 * another user's file, or a link; what fn returns if that is negative; or an error of
 * lien_journal_create().
 */
int lien_journal_open(struct lien_journal **out, const char *path,
	int (*fn)(void *context, const struct lien_event *), void *context) __must_check;

/* Truncates the file to its records, and leaves it. */
void lien_journal_close(struct lien_journal *journal);

/* Adds a record. After an error (-ENOSPC, ...) the journal is as before, without the record. */
int lien_journal_append(struct lien_journal *journal, const struct lien_event *event) __must_check;

/* Returns true if one of its records equals this one byte for byte. Reads all of them. */
bool lien_journal_has(const struct lien_journal *journal, const struct lien_event *event);

/*
 * Replaces a journal of more than `limit` bytes, and of more than twice its last snapshot's size,
 * by a snapshot of the graph, which must equal the state after the records. After an error the
 * journal goes on as before, and the next try comes only after it has doubled.
 */
int lien_journal_bound(struct lien_journal *journal, struct lien_graph *graph, uint64_t limit);

uint64_t lien_journal_number(const struct lien_journal *journal);
/* Size of its records and header; the file has room for more. */
uint64_t lien_journal_bytes(const struct lien_journal *journal);

#endif
