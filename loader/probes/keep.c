// SPDX-License-Identifier: BSD-2-Clause
/*
 * State that outlives the agent: maps and links are pinned, and a file next to the socket lists the
 * attachments and the build of lien that made them. An agent of the same build takes over
 * everything. An agent of another build with the same map layout makes its programs use the pinned
 * maps, attaches them everywhere, and then removes the old links; of a call that hits both, one
 * record is dropped by the attachment's number.
 */
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <lien/thread.h>
#include <lien/version.h>
#include "agent/graph/hash.h"
#include "loader/probes/maps.h"
#include "loader/probes/probes_internal.h"

/* --- the folder of pins ----------------------------------------------------------------------- */

#define BPFFS "/sys/fs/bpf"
#define ROOT  BPFFS "/lien"

struct lien_pins {
	int fd; /* locked, so that two agents that would use the same do not disturb each other */
	char folder[192];
	char state[PATH_MAX]; /* the file that lists the attachments */
};

static bool is_bpffs(void)
{
	struct statfs fs;

	return !statfs(BPFFS, &fs) && fs.f_type == BPF_FS_MAGIC;
}

static int make_root(void)
{
	if (!is_bpffs() &&
		mount("bpf", BPFFS, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700"))
		return -errno;
	return mkdir(ROOT, 0700) && errno != EEXIST ? -errno : 0;
}

/*
 * The name is "run_lien_agent_sock-" and a hash of the whole path and its file system: containers
 * have sockets with the same path, and may share the BPF file system.
 */
static int name_folder(char *folder, size_t size, const char *socket)
{
	char real[PATH_MAX], parent[PATH_MAX], *slash;
	const char *last = strrchr(socket, '/');
	struct stat st;
	uint64_t hash;
	int n, i;

	snprintf(parent, sizeof(parent), "%s", socket);
	slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = '\0';
	if (!realpath(slash ? parent : ".", real) || stat(real, &st))
		return -errno;
	hash = lien_hash(LIEN_HASH_START, real, strlen(real));
	hash = lien_hash(hash, last ? last + 1 : socket, strlen(last ? last + 1 : socket));
	hash = lien_hash(hash, &st.st_dev, sizeof(st.st_dev));
	n = snprintf(folder, size, ROOT "/%.64s_%.64s-%016llx", real + 1, last ? last + 1 : socket,
		(unsigned long long)hash);
	for (i = sizeof(ROOT); i < n; i++)
		if (!isalnum((unsigned char)folder[i]) && folder[i] != '-')
			folder[i] = '_';
	return 0;
}

/*
 * Opens and locks the folder of the agent with that socket. With `make`, mounts /sys/fs/bpf and
 * makes the folder if missing. -ENOENT: there is none; -EBUSY: another process has it locked; or
 * -errno.
 */
static int open_pins(struct lien_pins **out, const char *socket, bool make)
{
	struct lien_pins *pins = calloc(1, sizeof(*pins));
	int err = 0;

	if (!pins)
		return -ENOMEM;
	pins->fd = -1;
	snprintf(pins->state, sizeof(pins->state), "%s.state", socket);
	if (make)
		err = make_root();
	if (!err)
		err = name_folder(pins->folder, sizeof(pins->folder), socket);
	if (!err && make && mkdir(pins->folder, 0700) && errno != EEXIST)
		err = -errno;
	if (!err) {
		pins->fd = open(pins->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (pins->fd < 0)
			err = -errno;
		else if (flock(pins->fd, LOCK_EX | LOCK_NB))
			err = errno == EWOULDBLOCK ? -EBUSY : -errno;
	}
	if (err) {
		lien_pins_close(pins);
		return err;
	}
	*out = pins;
	return 0;
}

void lien_pins_close(struct lien_pins *pins)
{
	if (!pins)
		return;
	if (pins->fd >= 0)
		close(pins->fd);
	free(pins);
}

static void path_of(const struct lien_pins *pins, const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s/%s", pins->folder, name);
}

/* Names must not contain dots or slashes. */
static int put(struct lien_pins *pins, const char *name, int fd)
{
	char path[512];

	path_of(pins, name, path, sizeof(path));
	return bpf_obj_pin(fd, path) ? -errno : 0;
}

int lien_pins_get(const struct lien_pins *pins, const char *name)
{
	char path[512];
	int fd;

	path_of(pins, name, path, sizeof(path));
	fd = bpf_obj_get(path);
	return fd < 0 ? -errno : fd;
}

bool lien_pins_has(const struct lien_pins *pins, const char *name)
{
	return !faccessat(pins->fd, name, F_OK, 0);
}

void lien_pins_drop(struct lien_pins *pins, const char *name)
{
	if (pins)
		unlinkat(pins->fd, name, 0);
}

void lien_pins_each(
	struct lien_pins *pins, void (*fn)(void *context, const char *name), void *context)
{
	DIR *folder = opendir(pins->folder);
	struct dirent *entry;

	while (folder && (entry = readdir(folder)))
		if (entry->d_name[0] != '.')
			fn(context, entry->d_name);
	if (folder)
		closedir(folder);
}

static void drop(void *pins, const char *name)
{
	lien_pins_drop(pins, name);
}

static void clear(struct lien_pins *pins)
{
	lien_pins_each(pins, drop, pins);
}

/* Removes all pins, the folder and the state file, and closes it. */
static void remove_pins(struct lien_pins *pins)
{
	unlink(pins->state);
	clear(pins);
	rmdir(pins->folder);
	rmdir(ROOT); /* succeeds only when it is empty */
	lien_pins_close(pins);
}

/* --- what is kept ----------------------------------------------------------------------------- */

static void hash_text(void *context, const char *format, va_list args)
{
	uint64_t *hash = context;
	char text[1024];
	int n = vsnprintf(text, sizeof(text), format, args);

	*hash = lien_hash(*hash, text, n < (int)sizeof(text) ? n : (int)sizeof(text) - 1);
}

/* Hashes the type of a section (the global variables). */
static uint64_t hash_section(uint64_t hash, const struct btf *btf, const struct btf_type *section)
{
	const struct btf_var_secinfo *variable = btf_var_secinfos(section);
	unsigned i;

	for (i = 0; i < btf_vlen(section); i++) {
		const char *name =
			btf__name_by_offset(btf, btf__type_by_id(btf, variable[i].type)->name_off);

		hash = lien_hash(hash, name, strlen(name));
		hash = lien_hash(hash, &variable[i].offset, 2 * sizeof(variable[i].offset));
	}
	return hash;
}

static bool is_kept(const struct bpf_map *map)
{
	return !strstr(bpf_map__name(map), ".rodata");
}

/* Returns 0 if the user chooses the size (--ring, --threads): the existing size is kept. */
static uint32_t entries_of(const struct bpf_map *map)
{
	const char *name = bpf_map__name(map);

	return !strcmp(name, "events") || !strcmp(name, "threads") || !strcmp(name, "held")
		       ? 0
		       : bpf_map__max_entries(map);
}

/* Hashes the layout of the kept maps, down to the members of their keys and values. */
static uint64_t layout_of(struct bpf_object *object)
{
	const struct btf *btf = bpf_object__btf(object);
	uint64_t hash = LIEN_HASH_START;
	struct btf_dump *dump = btf_dump__new(btf, hash_text, &hash, NULL);
	struct bpf_map *map;

	bpf_object__for_each_map(map, object)
	{
		uint32_t facts[] = {bpf_map__type(map), bpf_map__key_size(map),
			bpf_map__value_size(map), entries_of(map), bpf_map__map_flags(map)};
		uint32_t types[] = {bpf_map__btf_key_type_id(map), bpf_map__btf_value_type_id(map)};
		unsigned i;

		if (!is_kept(map))
			continue;
		hash = lien_hash(hash, bpf_map__name(map), strlen(bpf_map__name(map)));
		hash = lien_hash(hash, facts, sizeof(facts));
		for (i = 0; i < 2; i++) {
			const struct btf_type *type = btf__type_by_id(btf, types[i]);

			if (types[i] && type && btf_is_datasec(type))
				hash = hash_section(hash, btf, type);
			else if (types[i] && dump)
				btf_dump__dump_type(dump, types[i]);
		}
	}
	btf_dump__free(dump);
	return hash;
}

/* Names programs that were built and are attached in the same way. */
static void name_build(struct lien_probes *probes)
{
	size_t size;
	const void *bytes = trace_bpf__elf_bytes(&size);

	snprintf(probes->build, sizeof(probes->build), "%s-%016llx-%s%s", LIEN_VERSION,
		(unsigned long long)lien_hash(LIEN_HASH_START, bytes, size), probes->facts.method,
		probes->facts.can_follow ? "" : "-shared");
}

static void map_pin(const struct bpf_map *map, char *name, size_t size)
{
	char *dot;

	snprintf(name, size, "map-%s", bpf_map__name(map));
	while ((dot = strchr(name, '.')))
		*dot = '_';
}

static void link_pin(const struct lien_attached *attached, unsigned index, char *name, size_t size)
{
	snprintf(name, size, "link-%u-%u", attached->number, index);
}

/* The mark ties the pins to the state file: a journal's number is never reused. */
static void mark_pin(uint64_t journal, char *name, size_t size)
{
	snprintf(name, size, "journal-%016llx", (unsigned long long)journal);
}

/* Returns why the state cannot be taken over, NULL if it can. */
static const char *unusable(
	const struct lien_probes *probes, const struct lien_attached_state *state)
{
	char mark[64];

	mark_pin(state->journal, mark, sizeof(mark));
	if (state->other_boot)
		return "the machine was started again since";
	if (state->other_pidns)
		return "it counted processes in another pid namespace";
	if (state->journal != probes->config.journal)
		return "its journal is another one";
	if (state->layout != probes->layout)
		return "it was written by a version of lien whose records are different";
	return lien_pins_has(probes->pins, mark) ? NULL : "its pinned maps are gone";
}

static bool has_pins(struct lien_probes *probes, const struct lien_attached *attached)
{
	char name[64];
	unsigned i;

	for (i = 0; i < attached->pins; i++) {
		link_pin(attached, i, name, sizeof(name));
		if (!lien_pins_has(probes->pins, name))
			return false;
	}
	return attached->pins;
}

static int reuse_maps(struct lien_probes *probes)
{
	struct bpf_map *map;
	char name[64];
	int fd, err;

	bpf_object__for_each_map(map, probes->skel->obj)
	{
		if (!is_kept(map))
			continue;
		map_pin(map, name, sizeof(name));
		fd = lien_pins_get(probes->pins, name);
		err = fd < 0 ? fd : bpf_map__reuse_fd(map, fd);
		if (fd >= 0)
			close(fd);
		if (err)
			return err;
	}
	return 0;
}

/* A link may be pinned without being in the state file: do not reuse its number. */
static void note_number(void *context, const char *name)
{
	struct lien_probes *probes = context;
	unsigned number;

	if (sscanf(name, "link-%u-", &number) == 1 && number > probes->next_attachment)
		probes->next_attachment = number;
}

static void take_attached(struct lien_probes *probes, struct lien_attached_state *state)
{
	bool same_build = !strcmp(state->build, probes->build), same;
	struct lien_attached *attached;

	while ((attached = TAILQ_FIRST(&state->list))) {
		TAILQ_REMOVE(&state->list, attached, next);
		/* That agent may have ended before it had replaced an earlier agent's links. */
		same = same_build && !attached->old;

		if (!has_pins(probes, attached))
			lien_attached_free(attached);
		else if (!attached->file.library && same && !probes->system)
			probes->system = attached;
		else if (same && attached->file.library)
			TAILQ_INSERT_TAIL(&probes->files, attached, next);
		else
			TAILQ_INSERT_TAIL(&probes->old, attached, next);
	}
	probes->next_attachment = state->next_attachment;
	lien_pins_each(probes->pins, note_number, probes);
}

int lien_keep_begin(struct lien_probes *probes)
{
	struct lien_attached_state state;
	const char *why = NULL;
	int err;

	if (!probes->config.socket)
		return 0;
	err = open_pins(&probes->pins, probes->config.socket, true);
	if (err) {
		snprintf(probes->facts.problem, sizeof(probes->facts.problem),
			"nothing can be pinned under /sys/fs/bpf: %s", strerror(-err));
		return 0;
	}
	probes->facts.pinned = probes->pins->folder;
	probes->layout = layout_of(probes->skel->obj);
	probes->journal = probes->config.new_journal;
	name_build(probes);
	err = lien_attached_read(probes->pins->state, &state);
	if (!err && probes->config.journal)
		why = unusable(probes, &state);
	if (!err && probes->config.journal && !why) {
		probes->facts.resumed = true;
		probes->journal = state.journal;
		take_attached(probes, &state);
		return reuse_maps(probes);
	}
	if (err == -EBADMSG)
		why = "its state file is damaged";
	if (why)
		snprintf(probes->facts.problem, sizeof(probes->facts.problem),
			"what an agent before this one left is not used: %s", why);
	lien_attached_clear(&state.list);
	unlink(probes->pins->state);
	clear(probes->pins);
	return 0;
}

/* Notes that something could not be pinned. */
static void cannot_pin(struct lien_probes *probes, const char *what, int err)
{
	snprintf(probes->facts.problem, sizeof(probes->facts.problem), "cannot pin %s in %s: %s",
		what, probes->pins->folder, strerror(-err));
}

void lien_keep_maps(struct lien_probes *probes)
{
	struct bpf_map *map;
	char name[64];
	int err = 0;

	if (!probes->pins || probes->facts.resumed)
		return;
	bpf_object__for_each_map(map, probes->skel->obj)
	{
		if (err || !is_kept(map))
			continue;
		map_pin(map, name, sizeof(name));
		err = put(probes->pins, name, bpf_map__fd(map));
	}
	mark_pin(probes->journal, name, sizeof(name));
	if (!err)
		err = put(probes->pins, name, MAP(probes, counters));
	if (!err)
		return;
	cannot_pin(probes, "maps", err);
	remove_pins(probes->pins);
	probes->pins = NULL;
	probes->facts.pinned = NULL;
}

bool lien_keep_link(struct lien_probes *probes, const char *name, int fd, const char *what)
{
	int err = probes->pins ? put(probes->pins, name, fd) : -ENOENT;

	if (err && probes->pins)
		cannot_pin(probes, what, err);
	return !err;
}

static void drop_links(struct lien_probes *probes, struct lien_attached *attached)
{
	char name[64];

	while (attached->pins) {
		link_pin(attached, --attached->pins, name, sizeof(name));
		lien_pins_drop(probes->pins, name);
	}
}

void lien_keep_links(struct lien_probes *probes, struct lien_attached *attached)
{
	char name[64];

	for (; attached->pins < attached->links_count; attached->pins++) {
		link_pin(attached, attached->pins, name, sizeof(name));
		if (!lien_keep_link(
			    probes, name, attached->links[attached->pins], attached->file.path)) {
			drop_links(probes, attached);
			return;
		}
	}
}

void lien_keep_remove(struct lien_probes *probes, struct lien_attached *attached)
{
	/* Their names go last: whoever closes the last reference to a link waits for the kernel. */
	lien_attached_close(attached);
	drop_links(probes, attached);
	lien_attached_free(attached);
}

void lien_keep_save(struct lien_probes *probes)
{
	int err = probes->pins ? lien_attached_write(probes->pins->state, probes) : 0;

	if (err)
		snprintf(probes->facts.problem, sizeof(probes->facts.problem),
			"cannot write %.160s: %s", probes->pins->state, strerror(-err));
}

void lien_probes_unpin(struct lien_probes *probes)
{
	if (!probes->pins)
		return;
	remove_pins(probes->pins);
	probes->pins = NULL;
	probes->facts.pinned = NULL;
}

int lien_probes_clean(const char *socket, int (*may)(const char *socket))
{
	struct lien_pins *pins = NULL;
	char path[PATH_MAX];
	int err = open_pins(&pins, socket, false);

	if (err && err != -ENOENT)
		return err;
	err = may ? may(socket) : 0;
	if (err) {
		lien_pins_close(pins);
		return err;
	}
	if (pins)
		remove_pins(pins);
	snprintf(path, sizeof(path), "%s.state", socket); /* also without pins */
	return unlink(path) && errno != ENOENT ? -errno : 0;
}

/* --- finishing -------------------------------------------------------------------------------- */

static bool is_live(const struct lien_probes *probes, unsigned number)
{
	const struct lien_attached *attached;
	unsigned i;

	if (probes->system && probes->system->number == number)
		return true;
	TAILQ_FOREACH (attached, &probes->files, next)
		if (attached->number == number)
			return true;
	for (i = 0; i < probes->following_count; i++)
		if (probes->following[i].links->number == number)
			return true;
	return false;
}

static void drop_old(void *context, const char *name)
{
	struct lien_probes *probes = context;
	unsigned number;

	if (sscanf(name, "link-%u-", &number) == 1 && !is_live(probes, number))
		lien_pins_drop(probes->pins, name);
}

struct strand {
	struct lien_probes *probes;
	void (*stranded)(void *context, uint32_t pid, uint64_t start);
	void *context;
};

/* A thread in a call whose return no probe will see. Removes the frame as well, because it would
 * hide later calls from the same place. */
static int strand(void *context, const void *ktid, const void *value)
{
	const struct strand *strand = context;
	const struct thread *thread = value;
	unsigned i = 0;

	while (i < thread->depth && i < FRAMES &&
		is_live(strand->probes, thread->frame[i].attachment))
		i++;
	if (i == thread->depth)
		return 0;
	strand->stranded(strand->context, thread->pid, thread->start);
	bpf_map_delete_elem(MAP(strand->probes, threads), ktid);
	return 0;
}

int lien_probes_finish_takeover(struct lien_probes *probes,
	void (*stranded)(void *context, uint32_t pid, uint64_t start), void *context)
{
	struct strand what = {probes, stranded, context};
	int err;

	probes->taken_over = true;
	if (!probes->facts.resumed)
		return 0;
	lien_pins_each(probes->pins, drop_old, probes);
	lien_attached_clear(&probes->old);
	err = lien_map_each(probes->skel->maps.threads, strand, &what);
	lien_keep_save(probes);
	return err;
}
