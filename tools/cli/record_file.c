// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/journal/recording.h"
#include "tools/text/output.h"
#include "tools/cli/query.h"

static int cannot_write(const struct lien_record_file *file, int err)
{
	return lien_complain(file->command, "cannot write %s: %s", file->path, strerror(-err));
}

int lien_record_file_reserve(struct lien_record_file *file, bool force)
{
	file->reserved = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	file->made = file->reserved >= 0;
	if (!file->made && errno == EEXIST && !force)
		return lien_complain(file->command, "%s exists: --force overwrites it", file->path);
	if (!file->made && errno == EEXIST)
		file->reserved = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	return file->reserved < 0 ? cannot_write(file, -errno) : 0;
}

int lien_record_file_create(struct lien_record_file *file)
{
	int err = lien_recording_create(file->path, &file->recording);

	close(file->reserved);
	return err ? cannot_write(file, err) : 0;
}

void lien_record_file_give_up(struct lien_record_file *file)
{
	close(file->reserved);
	if (file->made)
		unlink(file->path);
}

int lien_record_file_write(struct lien_record_file *file, const struct lien_event *event)
{
	int err = lien_recording_write(file->recording, event);

	if (err)
		return cannot_write(file, err);
	file->events++;
	file->processes += event->type == LIEN_EVENT_PROCESS ||
			   (event->type == LIEN_STATE_process && event->state.process.cuda);
	return 0;
}

static bool has_records(const char *path)
{
	struct lien_recording *recording;
	struct lien_event event;
	bool some;

	if (lien_recording_open(path, &recording))
		return false;
	some = lien_recording_read(recording, &event) == 1;
	return !lien_recording_close(recording) && some;
}

int lien_record_file_close(struct lien_record_file *file, int code)
{
	int err = lien_recording_close(file->recording);
	struct stat st;

	if (err && !code)
		code = cannot_write(file, err);
	if (!code || stat(file->path, &st) || !S_ISREG(st.st_mode))
		return code;
	if (file->events && has_records(file->path))
		lien_warn(file->command, "%s has what was recorded before that", file->path);
	else
		unlink(file->path);
	return code;
}

void lien_record_file_print(const struct lien_record_file *file, bool json)
{
	uint64_t size = 0;
	struct stat st;
	json_t *all;

	if (!stat(file->path, &st))
		size = st.st_size;
	if (!json) {
		printf("%s: %" PRIu64 " %s of ", file->path,
			LIEN_PLURAL(file->events, "event", "events"));
		printf("%" PRIu64 " %s, %s\n", LIEN_PLURAL(file->processes, "process", "processes"),
			lien_bytes(size).text);
		return;
	}
	all = json_pack("{s:I, s:I, s:I}", "events", (json_int_t)file->events, "processes",
		(json_int_t)file->processes, "bytes", (json_int_t)size);
	lien_print_json(stdout, all);
	json_decref(all);
}
