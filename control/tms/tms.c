// SPDX-License-Identifier: BSD-2-Clause
/*
 * The C functions of torch_memory_saver's hook library, so that its Python package works with this
 * library in place of the hook (docs/torch-memory-saver.md). A region is a tag: that of the region,
 * or, without a backup, that and DROPPED behind it. Pausing is an offload by tag of the
 * calling process, which the agent carries out; resuming is a restore by tag.
 *
 * The interface is that of torch_memory_saver 4a43c97 (2026-08-20): names, arguments and results of
 * its csrc/entrypoint.cpp, as its binary_wrapper.py uses them. Unlike the hook, these functions
 * never end the process: what fails is one line on stderr and a result other than 0.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/locked.h>

#include "control/ask/ask.h"
#include "control/driver/thread.h"
#include "control/orders/control.h"
#include "control/tag/tag.h"

#define EXPORT __attribute__((visibility("default")))

/* What memory held whose tag ends so is not saved. */
#define DROPPED ":no-backup"

/* cudaError_t */
#define SUCCESS	      0
#define OUT_OF_MEMORY 2
#define UNKNOWN	      999

#define LIMIT_MS     600000 /* the agent has limits of its own */
#define REST_MS	     "60000"
#define TAGS_MAX     64
#define LONGEST	     (LIEN_TAG_SIZE - sizeof(DROPPED))
#define REQUEST_SIZE 65536

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
	char line[1024], *c;
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	for (c = line; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	fprintf(stderr, "lien: torch_memory_saver: %s\n", line);
}

/* Settings of the hook's that have no effect here, or another one. Each says so once. */
enum setting { DISK_BACKUP, BACKEND, RETAIN, MARGIN };

static void say_ignored(enum setting setting)
{
	static const char *const texts[] = {
		[DISK_BACKUP] = "enable_disk_backup saves in host memory, not on disk",
		[BACKEND] = "cpu_backup_backend has no effect: what is saved lies in pinned memory",
		[RETAIN] = "retain_cpu_backup has no effect: no copy is kept after a resume, but "
			   "host memory stays pinned for the next pause",
		[MARGIN] = "memory_margin_bytes has no effect: an allocation fails when the GPU is "
			   "full",
	};
	static int said[sizeof(texts) / sizeof(texts[0])];

	if (!__atomic_exchange_n(&said[setting], 1, __ATOMIC_RELAXED))
		complain("%s", texts[setting]);
}

/* --- the calling thread's region -------------------------------------------------------------- */

/* What a thread has set that ends is never freed. */
struct region {
	char tag[LIEN_TAG_SIZE];		     /* as it was set; "": it could not be */
	char shown[LIEN_TAG_SIZE + sizeof(DROPPED)]; /* as memory has it */
	bool interesting, backup, disk;
	bool mmap; /* the name of the backend, which has no other effect */
};

static __thread __attribute__((tls_model("initial-exec"))) struct region *mine;

static bool is_set(const char *name)
{
	const char *value = getenv(name);

	return value && (!strcmp(value, "1") || !strcmp(value, "true") || !strcmp(value, "TRUE") ||
				!strcmp(value, "yes") || !strcmp(value, "YES"));
}

/* The tags of all regions so far. */
static pthread_mutex_t used_lock LIEN_ZERO_IN_CHILD;
static struct {
	unsigned count;
	bool full;
	struct {
		char name[LIEN_TAG_SIZE];
		bool saved, dropped;
	} tag[TAGS_MAX];
} used;

static void note_used(const char *name, bool saved)
{
	bool full = false;
	unsigned i = 0;

	pthread_mutex_lock(&used_lock);
	while (i < used.count && strcmp(used.tag[i].name, name))
		i++;
	if (i == used.count && i < TAGS_MAX) {
		strcpy(used.tag[i].name, name);
		used.count++;
	}
	if (i < TAGS_MAX) {
		used.tag[i].saved |= saved;
		used.tag[i].dropped |= !saved;
	} else {
		full = !used.full;
		used.full = true;
	}
	pthread_mutex_unlock(&used_lock);
	if (full)
		complain("more than %u tags: pausing without a tag leaves the others alone",
			TAGS_MAX);
}

static void show(struct region *region)
{
	const bool saved = region->backup || region->disk;

	if (region->disk)
		say_ignored(DISK_BACKUP);
	lien_tag_cover(NULL); /* also while the text changes */
	if (!region->interesting || !region->tag[0])
		return;
	snprintf(region->shown, sizeof(region->shown), "%s%s", region->tag, saved ? "" : DROPPED);
	lien_tag_cover(region->shown);
	note_used(region->tag, saved);
}

static struct region no_region; /* without memory for another: nothing is ever paused */

static struct region *region_of(void)
{
	const char *backend = getenv("TMS_INIT_CPU_BACKUP_BACKEND");

	if (mine)
		return mine;
	mine = calloc(1, sizeof(*mine));
	if (!mine) {
		complain("out of memory");
		return &no_region;
	}
	strcpy(mine->tag, "default");
	mine->interesting = is_set("TMS_INIT_ENABLE");
	mine->backup = is_set("TMS_INIT_ENABLE_CPU_BACKUP");
	mine->disk = is_set("TMS_INIT_ENABLE_DISK_BACKUP");
	mine->mmap = backend && !strcmp(backend, "mmap");
	if (mine->mmap)
		say_ignored(BACKEND);
	show(mine);
	return mine;
}

/* Threads that have called none of these functions are in a region, too. */
static void begin_thread(void)
{
	region_of();
}

__attribute__((constructor)) static void start(void)
{
	if (is_set("TMS_INIT_ENABLE"))
		lien_tag_begin = begin_thread;
}

#define FLAG(name, member)                                                                         \
	EXPORT void tms_set_##name(bool on)                                                        \
	{                                                                                          \
		struct region *region = region_of();                                               \
                                                                                                   \
		region->member = on;                                                               \
		show(region);                                                                      \
	}                                                                                          \
	EXPORT bool tms_get_##name(void)                                                           \
	{                                                                                          \
		return region_of()->member;                                                        \
	}

FLAG(interesting_region, interesting)
FLAG(enable_cpu_backup, backup)
FLAG(enable_disk_backup, disk)

EXPORT void tms_set_current_tag(const char *tag)
{
	struct region *region = region_of();

	if (!lien_tag_is_name(tag) || strlen(tag) > LONGEST) {
		complain("a tag has 1 to %zu printable ASCII characters: '%.80s' is none, and what "
			 "is allocated now is not paused",
			LONGEST, tag ? tag : "");
		region->tag[0] = '\0';
		lien_tag_cover(NULL);
		return;
	}
	strcpy(region->tag, tag);
	show(region);
}

EXPORT const char *tms_get_current_tag(void)
{
	return region_of()->tag;
}

EXPORT void tms_set_cpu_backup_backend(const char *backend)
{
	const bool mmap = backend && !strcmp(backend, "mmap");

	if (!mmap && (!backend || strcmp(backend, "pinned"))) {
		complain("no such backend: %.40s", backend ? backend : "NULL");
		return;
	}
	region_of()->mmap = mmap;
	if (mmap)
		say_ignored(BACKEND);
}

EXPORT const char *tms_get_cpu_backup_backend(void)
{
	return region_of()->mmap ? "mmap" : "pinned";
}

EXPORT void tms_set_disk_backup_dir(const char *path)
{
	(void)path;
}

EXPORT void set_memory_margin_bytes(uint64_t bytes)
{
	if (bytes)
		say_ignored(MARGIN);
}

EXPORT void tms_set_retain_cpu_backup(bool on)
{
	if (on)
		say_ignored(RETAIN);
}

EXPORT bool tms_get_retain_cpu_backup(void)
{
	return false;
}

/* As the hook, NULL for memory that is not paused. */
EXPORT uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t bytes)
{
	const char *why;
	const void *copy = lien_control_saved((uintptr_t)address, bytes, &why);

	if (why)
		complain("there is no copy of %p: %s", (const void *)address, why);
	return (uint8_t *)(uintptr_t)copy;
}

/* --- pausing and resuming --------------------------------------------------------------------- */

struct request {
	char text[REQUEST_SIZE];
	size_t length;
	unsigned names;
};

__attribute__((format(printf, 2, 3))) static void add(
	struct request *request, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	request->length += vsnprintf(request->text + request->length,
		sizeof(request->text) - request->length, format, args);
	va_end(args);
}

/* A tag is printable, so that nothing else needs an escape. */
static void add_name(
	struct request *request, const char *before, const char *name, const char *after)
{
	add(request, "%s\"%s", request->names++ ? ", " : "", before);
	for (; *name; name++)
		add(request, "%s%c", *name == '"' || *name == '\\' ? "\\" : "", *name);
	add(request, "%s\"", after);
}

/* Lists the tags of memory that `tag` means. NULL: of all regions. */
static void add_tags(struct request *request, const char *tag, const char *before, bool saved)
{
	unsigned i;

	LIEN_LOCKED(&used_lock);
	for (i = 0; i < used.count; i++) {
		if (tag && strcmp(tag, used.tag[i].name))
			continue;
		if (saved && used.tag[i].saved)
			add_name(request, before, used.tag[i].name, "");
		if (used.tag[i].dropped)
			add_name(request, before, used.tag[i].name, DROPPED);
	}
}

/* What an offload has left on the GPU. */
struct answer {
	char reason[400];
	uint64_t left;
};

static void read_left(void *context, const struct lien_json_piece *path, unsigned depth,
	const struct lien_json_piece *value)
{
	struct answer *answer = context;

	if (depth != 3 || !lien_json_is(&path[0], "left"))
		return;
	if (lien_json_is(&path[2], "bytes"))
		answer->left += lien_json_number(value);
	if (lien_json_is(&path[2], "reason") && !answer->reason[0])
		lien_json_copy(value, answer->reason, sizeof(answer->reason));
}

static int carry_out(const struct request *request, const char *verb, const char *tag)
{
	static const char none[] = "no GPU memory has the tag";
	struct answer answer = {.left = 0};
	struct lien_asked asked = {.fn = read_left, .context = &answer};
	int err;

	err = lien_ask(request->text, LIMIT_MS, &asked);
	if (err && !strcmp(asked.code, "invalid") && !strncmp(asked.text, none, sizeof(none) - 1))
		return SUCCESS; /* it has been freed */
	if (err) {
		complain("cannot %s %s: %s", verb, tag ? tag : "all regions", asked.text);
		return strcmp(asked.code, "gpu-memory") ? UNKNOWN : OUT_OF_MEMORY;
	}
	if (answer.left)
		complain("%llu bytes of %s stay on the GPU: %s", (unsigned long long)answer.left,
			tag ? tag : "all regions", answer.reason);
	return SUCCESS;
}

static int change(bool pause, const char *tag)
{
	static const char settings[] = "\"with_closure\": true, \"on_use\": \"ignore\", "
				       "\"timeout_ms\": " REST_MS ", ";
	const char *verb = pause ? "pause" : "resume";
	struct request *request = calloc(1, sizeof(*request));
	int result = SUCCESS;
	unsigned names;

	if (!request) {
		complain("cannot %s: out of memory", verb);
		return UNKNOWN;
	}
	if (tag && !tag[0])
		tag = NULL;
	add(request, "{\"op\": \"%s\", \"pids\": [0], \"wait\": true, %s\"tags\": [",
		pause ? "offload" : "restore", pause ? settings : "");
	add_tags(request, tag, "", true);
	names = request->names;
	if (pause) {
		add(request, "], \"discard\": [");
		request->names = 0;
		add_tags(request, tag, "tag:", false);
	}
	add(request, "]}\n");
	if (names)
		result = carry_out(request, verb, tag);
	free(request);
	return result;
}

EXPORT int tms_pause(const char *tag)
{
	return change(true, tag);
}

EXPORT int tms_resume(const char *tag)
{
	return change(false, tag);
}
