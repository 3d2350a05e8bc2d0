/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Answers without an agent: builds the graph in this process from a snapshot or a recording, and
 * uses the agent's own views. Facts that only a running agent knows are not made up: the control
 * library's presence is "unknown", and the bytes that an offload would free are null.
 */
#ifndef LIEN_TOOLS_OFFLINE_H
#define LIEN_TOOLS_OFFLINE_H

#include <stdbool.h>

#include <jansson.h>

struct lien_from;

/*
 * Returns the result of a request, as the agent would give it at the moment that is asked for; by
 * default, at the end of the recording or, where all processes have ended by then, at its peak:
 * when most GPU memory was in use. Uses a truncated recording as far as it goes, after a warning.
 * NULL after a message, which begins with the command's name, and *code is then LIEN_EXIT_USAGE if
 * the request was wrong; code may be NULL.
 */
json_t *lien_offline_query(
	const char *command, const struct lien_from *from, const json_t *request, int *code);

/* The same for several requests, an array: returns the array of their results. Reads the file
 * once. */
json_t *lien_offline_queries(
	const char *command, const struct lien_from *from, const json_t *requests, int *code);

struct lien_recording;

/* Opens a recording. Returns NULL after a message that says what is wrong with the file. */
struct lien_recording *lien_offline_open(const char *command, const char *path);
/* Reports the error of lien_recording_read() that ended a recording. Returns true if it was only
 * truncated: a warning; false after a message. */
bool lien_offline_ended(const char *command, const char *path, int err);

#endif
