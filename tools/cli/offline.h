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

/*
 * Returns the result of a request, as the agent would give it at the end of the recording. Uses a
 * truncated recording as far as it goes, after a warning. NULL after a message, which begins with
 * the command's name.
 */
json_t *lien_offline_query(const char *command, const char *path, const json_t *request);

struct lien_recording;

/* Opens a recording. Returns NULL after a message that says what is wrong with the file. */
struct lien_recording *lien_offline_open(const char *command, const char *path);
/* Reports the error of lien_recording_read() that ended a recording. Returns true if it was only
 * truncated: a warning; false after a message. */
bool lien_offline_ended(const char *command, const char *path, int err);

#endif
