// SPDX-License-Identifier: BSD-2-Clause
/* The attachments, and the file next to the socket that lists them for the next agent (keep.c). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/text.h"
#include "loader/probes/make_link.h"
#include "loader/probes/probes_internal.h"
#include "loader/probes/uprobe.h"

struct lien_attached *lien_attached_new(const char *name)
{
	struct lien_attached *attached = calloc(1, sizeof(*attached));

	if (!attached)
		return NULL;
	attached->file.user = LIEN_PROBES_UNKNOWN;
	attached->file.path = lien_library_text(name);
	if (attached->file.path)
		return attached;
	free(attached);
	return NULL;
}

int lien_attached_room(struct lien_attached *attached, unsigned count)
{
	attached->links = malloc(count * sizeof(*attached->links));
	if (!attached->links)
		return -ENOMEM;
	attached->links_count = count;
	memset(attached->links, 0xff, count * sizeof(*attached->links));
	return 0;
}

void lien_attached_close(struct lien_attached *attached)
{
	lien_making_abandon(&attached->making);
	while (attached->links_count)
		if (attached->links[--attached->links_count] >= 0)
			lien_uprobe_close(attached->links[attached->links_count]);
}

void lien_attached_free(struct lien_attached *attached)
{
	lien_attached_close(attached);
	free(attached->links);
	free(attached->file.path);
	free(attached->aliases);
	free(attached);
}

void lien_attached_clear(struct lien_attached_list *list)
{
	struct lien_attached *attached;

	while ((attached = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, attached, next);
		lien_attached_free(attached);
	}
}

static bool is_shown_by(const struct lien_attached *attached, dev_t device)
{
	unsigned i;

	for (i = 0; i < attached->aliases_count; i++)
		if (attached->aliases[i] == device)
			return true;
	return attached->file.device == device;
}

struct lien_attached *lien_attached_find(
	const struct lien_probes *probes, dev_t device, ino_t inode)
{
	struct lien_attached *attached;

	TAILQ_FOREACH (attached, &probes->files, next)
		if (attached->file.inode == inode && is_shown_by(attached, device))
			return attached;
	return NULL;
}

/* --- the file --------------------------------------------------------------------------------- */

/* The id of the machine's current boot; empty: it cannot be read. */
static void read_boot(char boot[40])
{
	lien_text_read("/proc/sys/kernel/random/boot_id", boot, 40);
}

static uint64_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

/* Keeps all 64 bits, which a JSON number may not. */
static json_t *hex(uint64_t value)
{
	char text[20];

	snprintf(text, sizeof(text), "%016" PRIx64, value);
	return json_string(text);
}

static bool read_hex(const json_t *object, const char *name, uint64_t *value)
{
	const char *text = json_string_value(json_object_get(object, name));
	char *end;

	if (!text || strlen(text) != 16)
		return false;
	*value = strtoull(text, &end, 16);
	return !*end;
}

static bool read_text(const json_t *object, const char *name, char *to, size_t size)
{
	const char *text = json_string_value(json_object_get(object, name));

	if (!text || strlen(text) >= size)
		return false;
	strcpy(to, text);
	return true;
}

static json_t *of_attached(const struct lien_attached *attached, bool old)
{
	const struct lien_probed_file *file = &attached->file;
	json_t *missing = json_array();
	unsigned i;

	for (i = 0; file->missing[i]; i++)
		json_array_append_new(missing, json_string(file->missing[i]));
	return json_pack(
		"{s:i, s:b, s:i, s:o, s:i, s:s, s:o, s:o, s:b, s:I, s:I, s:s, s:I, s:i, s:I, s:o}",
		"number", attached->number, "old", old, "links", attached->pins, "probes",
		hex(attached->probes), "library", file->library, "path", file->path, "device",
		hex(file->device), "inode", hex(file->inode), "overlay", file->overlay, "size",
		(json_int_t)file->size, "t_changed", (json_int_t)file->t_changed, "build_id",
		file->build_id, "t_attached", (json_int_t)file->t_attached, "calls", file->calls,
		"user", (json_int_t)file->user, "missing", missing);
}

static int read_attached(const json_t *object, struct lien_attached_list *list)
{
	const char *path = json_string_value(json_object_get(object, "path"));
	struct lien_attached *attached;
	uint64_t device, inode;
	const json_t *value;
	unsigned missing = 0;
	size_t i;

	attached = path ? lien_attached_new(path) : NULL;
	if (!attached)
		return -EBADMSG;
	attached->number = json_integer_value(json_object_get(object, "number"));
	attached->pins = json_integer_value(json_object_get(object, "links"));
	attached->old = json_is_true(json_object_get(object, "old"));
	attached->file.library = json_integer_value(json_object_get(object, "library"));
	attached->file.calls = json_integer_value(json_object_get(object, "calls"));
	if (json_is_integer(json_object_get(object, "user")))
		attached->file.user = json_integer_value(json_object_get(object, "user"));
	attached->file.t_attached = json_integer_value(json_object_get(object, "t_attached"));
	if (!attached->number || attached->file.library >= LIEN_LIB_COUNT ||
		!read_hex(object, "probes", &attached->probes) ||
		!read_hex(object, "device", &device) || !read_hex(object, "inode", &inode) ||
		!read_text(object, "build_id", attached->file.build_id,
			sizeof(attached->file.build_id))) {
		lien_attached_free(attached);
		return -EBADMSG;
	}
	TAILQ_INSERT_TAIL(list, attached, next);
	attached->file.device = device;
	attached->file.inode = inode;
	attached->file.overlay = json_is_true(json_object_get(object, "overlay"));
	attached->file.size = json_integer_value(json_object_get(object, "size"));
	attached->file.t_changed = json_integer_value(json_object_get(object, "t_changed"));
	json_array_foreach (json_object_get(object, "missing"), i, value) {
		const struct lien_probed_call *call =
			lien_function_call(json_string_value(value) ?: "");

		if (call && missing < LIEN_CALL_MAX - 1)
			attached->file.missing[missing++] = call->symbol;
	}
	return 0;
}

int lien_attached_read(const char *path, struct lien_attached_state *state)
{
	json_t *root, *list, *value;
	char boot[40], now[40];
	int err = -EBADMSG;
	uint64_t pidns;
	struct stat st;
	size_t i;

	memset(state, 0, sizeof(*state));
	TAILQ_INIT(&state->list);
	if (lstat(path, &st))
		return -ENOENT;
	if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
		return -EBADMSG; /* owned by another user */
	root = json_load_file(path, 0, NULL);
	list = json_object_get(root, "attached");
	if (read_text(root, "build", state->build, sizeof(state->build)) &&
		read_text(root, "boot", boot, sizeof(boot)) &&
		read_hex(root, "layout", &state->layout) &&
		read_hex(root, "journal", &state->journal) &&
		read_hex(root, "pid_namespace", &pidns) && json_is_array(list))
		err = 0;
	state->next_attachment = json_integer_value(json_object_get(root, "next"));
	if (!err) {
		read_boot(now);
		state->other_boot = !now[0] || strcmp(boot, now);
		state->other_pidns = pidns != pid_namespace();
		json_array_foreach (list, i, value)
			if (!err)
				err = read_attached(value, &state->list);
	}
	json_decref(root);
	if (err)
		lien_attached_clear(&state->list);
	return err;
}

static json_t *of_probes(const struct lien_probes *probes)
{
	const struct lien_attached_list *lists[] = {&probes->files, &probes->old};
	const struct lien_attached *attached;
	json_t *array = json_array();
	char boot[40];
	unsigned i;

	read_boot(boot);
	if (probes->system && probes->system->pins)
		json_array_append_new(array, of_attached(probes->system, false));
	for (i = 0; i < 2; i++)
		TAILQ_FOREACH (attached, lists[i], next)
			if (attached->pins)
				json_array_append_new(array, of_attached(attached, i == 1));
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:i, s:o}", "build", probes->build, "boot",
		boot, "layout", hex(probes->layout), "journal", hex(probes->journal),
		"pid_namespace", hex(pid_namespace()), "next", probes->next_attachment, "attached",
		array);
}

int lien_attached_write(const char *path, const struct lien_probes *probes)
{
	json_t *root = of_probes(probes);
	/* jansson writes to a file word by word. */
	char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	const size_t length = text ? strlen(text) : 0;
	char temporary[PATH_MAX];
	int fd, err = 0;

	json_decref(root);
	if (!text)
		return -ENOMEM;
	snprintf(temporary, sizeof(temporary), "%s.new", path);
	unlink(temporary); /* left by an agent that was killed */
	fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		err = -errno;
	else if (write(fd, text, length) != (ssize_t)length)
		err = -ENOSPC;
	if (fd >= 0)
		close(fd);
	if (!err && rename(temporary, path))
		err = -errno;
	if (err)
		unlink(temporary);
	free(text);
	return err;
}
