// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/commands.h"
#include "tools/cli/event_stream.h"
#include "tools/cli/options.h"
#include "tools/cli/query.h"
#include "tools/cli/record_file.h"

static const char *const examples[] = {"lien snapshot now.lien", "the state of all GPU processes",
	"lien mem --from now.lien",
	"who owned how much then; so can ps, comms, holders, graph, check and events", NULL};

static const struct lien_usage usage = {
	.command = "lien snapshot",
	.arguments = "FILE",
	.summary = "Writes what every GPU process of the node holds now to a file that the views "
		   "read "
		   "with --from FILE, on any machine and without an agent. It is a recording that "
		   "ends "
		   "where `lien record` begins to follow, and is read by the same commands.",
	.min = 1,
	.max = 1,
	.examples = examples,
};

/* Writes records up to the one that ends the present state. */
static int take_state(struct lien_event_stream *stream, struct lien_record_file *file)
{
	struct lien_event event;
	int got, code;

	for (;;) {
		got = lien_event_stream_next(stream, &event);
		if (got < 0 || (!got && !lien_event_stream_receive(stream)))
			return LIEN_EXIT_FAILURE;
		if (!got)
			continue;
		if (event.type == LIEN_EVENT_END)
			return LIEN_EXIT_OK;
		code = lien_record_file_write(file, &event);
		if (code)
			return code;
	}
}

int lien_cmd_snapshot(int argc, char **argv)
{
	struct lien_event_stream stream = {.command = usage.command};
	struct lien_record_file file = {.command = usage.command};
	bool json = false, force = false;
	const struct lien_option options[] = {
		{"force", LIEN_OPTION_FLAG, &force, NULL, "overwrite a file that exists", 0},
		{"json", LIEN_OPTION_JSON, &json, NULL, "print the summary as JSON", 0},
		LIEN_SOCKET_OPTION(&stream.socket), {}};
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	file.path = argv[0];
	if (!lien_event_stream_open(&stream, LIEN_FOLLOW_NOT))
		return LIEN_EXIT_FAILURE;
	code = lien_record_file_reserve(&file, force);
	if (!code)
		code = lien_record_file_create(&file);
	if (!code)
		code = lien_record_file_close(&file, take_state(&stream, &file));
	if (!code)
		lien_record_file_print(&file, json);
	lien_event_stream_close(&stream);
	return code;
}
