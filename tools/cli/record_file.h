/* SPDX-License-Identifier: BSD-2-Clause */
/* The file that `record` and `snapshot` write. Messages are printed here, in one line; functions
 * return an exit code, 0 or LIEN_EXIT_FAILURE. */
#ifndef LIEN_TOOLS_RECORD_FILE_H
#define LIEN_TOOLS_RECORD_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include <lien/event.h>

struct lien_recording;

struct lien_record_file {
	const char *command, *path; /* the caller's */
	struct lien_recording *recording;
	uint64_t events, processes; /* written so far */
};

/* Refuses a file that exists, unless force. */
int lien_record_file_create(struct lien_record_file *file, bool force);
int lien_record_file_write(struct lien_record_file *file, const struct lien_event *event);
/* code: what happened before, and the result unless closing fails. After a failure a file with
 * records stays, and an empty one is removed. */
int lien_record_file_close(struct lien_record_file *file, int code);
/* How much it is, as a line or as JSON. */
void lien_record_file_print(const struct lien_record_file *file, bool json);

#endif
