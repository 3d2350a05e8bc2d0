// SPDX-License-Identifier: BSD-2-Clause
/* What a client may send to the agent: a byte that says in which pieces, and the bytes. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/graph/event_check.h"
#include "tests/fuzz/fake_agent.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fake_agent fake;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc, (void)argv;
	fake_agent_start(&fake);
	fake_agent_fill(&fake, false);
	return 0;
}

struct answers {
	char *bytes;
	size_t length;
};

static void receive(int fd, struct answers *answers)
{
	char piece[65536];
	ssize_t n;

	while ((n = recv(fd, piece, sizeof(piece), MSG_DONTWAIT)) > 0) {
		answers->bytes = realloc(answers->bytes, answers->length + n);
		memcpy(answers->bytes + answers->length, piece, n);
		answers->length += n;
	}
}

/* After the answer to `record` there are events, up to the end or one that says so. */
static void check_events(const char **at, size_t *left)
{
	struct lien_event event;

	for (event.type = 0; *left && event.type != LIEN_EVENT_END;) {
		memset(&event, 0, sizeof(event));
		memcpy(&event, *at, *left < sizeof(event) ? *left : sizeof(event));
		if (event.size < LIEN_EVENT_HEADER || event.size > *left ||
			!lien_event_valid(&event))
			abort();
		*at += event.size;
		*left -= event.size;
	}
}

/* Whole lines, each a JSON object that says how it went; one for each request, unless what a client
 * sends after it asked to record, which nobody reads. */
static void check(const struct answers *answers, unsigned requests)
{
	const char *at = answers->bytes, *end;
	size_t left = answers->length;
	json_t *answer, *ok;
	bool recording = false;

	while (left) {
		end = memchr(at, '\n', left);
		if (!end)
			abort();
		answer = json_loadb(at, end - at, JSON_REJECT_DUPLICATES, NULL);
		ok = json_object_get(answer, "ok");
		if (!json_is_boolean(ok) ||
			(json_is_false(ok) && !json_is_string(json_object_get(answer, "error"))))
			abort();
		requests--;
		recording = json_object_get(json_object_get(answer, "result"), "format");
		json_decref(answer);
		left -= end + 1 - at;
		at = end + 1;
		if (recording)
			check_events(&at, &left);
	}
	if (requests && !recording)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct answers answers = {NULL, 0};
	size_t piece, sent;
	unsigned requests = 0, i;
	int fd;

	if (!size)
		return 0;
	piece = data[0] ? 16 * data[0] : size;
	fd = fake_agent_connect(&fake);
	for (sent = 1; sent < size; sent += piece) {
		if (piece > size - sent)
			piece = size - sent;
		if (send(fd, data + sent, piece, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			break; /* it was let go */
		fake_agent_run(&fake);
		receive(fd, &answers);
	}
	shutdown(fd, SHUT_WR);
	for (sent = 1; sent < size; sent++)
		requests += data[sent] == '\n';
	for (i = 0; i <= requests; i++) { /* each may wait as long as a client can say */
		fake_agent_run(&fake);
		receive(fd, &answers);
		fake_now += 3600000000000ull;
	}
	check(&answers, requests);
	free(answers.bytes);
	close(fd);
	fake_agent_run(&fake);
	return 0;
}
