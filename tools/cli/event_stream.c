// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/event_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/graph/event_check.h"
#include "agent/journal/recording.h"
#include "tools/cli/idle.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

#define ROOM ((size_t)1 << 20)

static json_t *request_of(enum lien_follow follow)
{
	if (follow == LIEN_FOLLOW_UNMARKED)
		return json_pack("{s:s}", "op", "record");
	return json_pack("{s:s, s:b}", "op", "record", "follow", follow == LIEN_FOLLOW_MARKED);
}

/* Keeps the bytes that came with the reply. */
static bool take_over(struct lien_event_stream *stream, struct lien_client *client)
{
	void *bytes = NULL;

	if (lien_client_take_stream(client, &stream->fd, &bytes, &stream->used)) {
		lien_complain(stream->command, "%s", lien_client_error(client));
		return false;
	}
	stream->capacity = stream->used + ROOM;
	stream->bytes = realloc(bytes, stream->capacity);
	if (stream->bytes)
		return true;
	free(bytes);
	close(stream->fd);
	lien_complain(stream->command, "out of memory");
	return false;
}

bool lien_event_stream_open(struct lien_event_stream *stream, enum lien_follow follow)
{
	struct lien_client *client = lien_client_new(stream->socket);
	json_t *request = request_of(follow), *reply = NULL;
	bool ok = false;

	if (!client || !request) {
		lien_complain(stream->command, "out of memory");
		goto out;
	}
	lien_client_timeout(client, LIEN_QUERY_MS);
	if (lien_client_call(client, request, &reply))
		lien_complain(stream->command, "%s", lien_client_error(client));
	else if (lien_get_number(reply, "format") != LIEN_RECORDING_VERSION)
		lien_complain(stream->command,
			"the agent on %s sends records in another format: it is of another version",
			lien_client_path(client));
	else
		ok = take_over(stream, client);
	if (ok)
		lien_warn_hidden(stream->command, reply);
out:
	json_decref(reply);
	json_decref(request);
	lien_client_free(client);
	return ok;
}

void lien_event_stream_close(struct lien_event_stream *stream)
{
	free(stream->bytes);
	close(stream->fd);
}

/* An agent that still listens has dropped us; otherwise it is gone. */
static void complain_of_end(const struct lien_event_stream *stream)
{
	struct lien_client *client = lien_client_new(stream->socket);

	if (client && !lien_client_connect(client))
		lien_complain(stream->command,
			"the agent ended the connection: events came faster than they were taken");
	else
		lien_complain(
			stream->command, "the agent ended the connection: it is gone, see its log");
	lien_client_free(client);
}

bool lien_event_stream_receive(struct lien_event_stream *stream)
{
	ssize_t n;

	stream->used -= stream->at;
	memmove(stream->bytes, stream->bytes + stream->at, stream->used);
	stream->at = 0;
	n = read(stream->fd, stream->bytes + stream->used, stream->capacity - stream->used);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return true;
	if (n <= 0) {
		complain_of_end(stream);
		return false;
	}
	stream->used += n;
	return true;
}

int lien_event_stream_next(struct lien_event_stream *stream, struct lien_event *event)
{
	size_t left = stream->used - stream->at;
	uint32_t size;

	if (left < LIEN_EVENT_HEADER)
		return 0;
	memcpy(&size, stream->bytes + stream->at, sizeof(size));
	if (size < LIEN_EVENT_HEADER || size > sizeof(*event)) {
		lien_complain(stream->command,
			"the agent sent a record of %u bytes, which none has", size);
		return -1;
	}
	if (left < size)
		return 0;
	memset(event, 0, sizeof(*event));
	memcpy(event, stream->bytes + stream->at, size);
	stream->at += size;
	if (lien_event_valid(event))
		return 1;
	lien_complain(stream->command,
		"the agent sent a record of type %u that this version does not know", event->type);
	return -1;
}
