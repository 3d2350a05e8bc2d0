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
	const char *command, *path; /* owned by the caller */
	struct lien_recording *recording;
	uint64_t events, processes; /* written so far */
	int reserved;		    /* fd */
	bool made;		    /* there was no such file */
};

/*
 * Makes sure that the file can be written, and makes it if there is none. One that exists is
 * refused, or with `force` left as it is until lien_record_file_create(), which must follow, or
 * lien_record_file_give_up().
 */
int lien_record_file_reserve(struct lien_record_file *file, bool force);
/* Begins the file anew. */
int lien_record_file_create(struct lien_record_file *file);
/* Nothing will be written. */
void lien_record_file_give_up(struct lien_record_file *file);
int lien_record_file_write(struct lien_record_file *file, const struct lien_event *event);
/* code: the command's result so far; returned unless closing fails. After a failure, a file with
 * records stays and an empty one is removed. */
int lien_record_file_close(struct lien_record_file *file, int code);
/* Prints the size of the recording, as a line or as JSON. */
void lien_record_file_print(const struct lien_record_file *file, bool json);

#endif
