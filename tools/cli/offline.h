/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Answers without an agent: the graph is built in this process from a snapshot or a recording, and
 * viewed by the agent's own code. What only a running agent knows is not made up: the control
 * library's presence is "unknown", and what an offload would free is null.
 */
#ifndef LIEN_TOOLS_OFFLINE_H
#define LIEN_TOOLS_OFFLINE_H

#include <stdbool.h>

#include <jansson.h>

/*
 * The result of a request, as the agent would give it at the end of the recording. A recording that
 * was cut short is answered from as far as it goes, after a warning. NULL after a message, which
 * begins with the command's name.
 */
json_t *lien_offline_query(const char *command, const char *path, const json_t *request);

struct lien_recording;

/* Opens a recording; NULL after a message that says what is wrong with the file. */
struct lien_recording *lien_offline_open(const char *command, const char *path);
/* For the error of lien_recording_read() that ended it. True when it was only cut short: a warning;
 * false after a message. */
bool lien_offline_ended(const char *command, const char *path, int err);

#endif
