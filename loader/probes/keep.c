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
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lien/version.h>
#include "loader/hash.h"
#include "loader/probes/gate_links.h"
#include "loader/probes/keep_state.h"

#define MAPS_MAX 64

static void state_path(const char *socket, char *path, size_t size)
{
	snprintf(path, size, "%s.state", socket);
}

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
		(unsigned long long)lien_hash(LIEN_HASH_START, bytes, size),
		lien_probes_method(probes), probes->can_follow ? "" : "-shared");
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
static const char *unusable(const struct lien_probes *probes, const struct lien_keep_state *state)
{
	char boot[40], mark[64];

	lien_keep_boot(boot);
	mark_pin(state->journal, mark, sizeof(mark));
	if (!boot[0] || strcmp(state->boot, boot))
		return "the machine was started again since";
	if (state->pidns != lien_keep_pidns())
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
	int fds[MAPS_MAX], err = 0;
	struct bpf_map *map;
	unsigned n = 0, i = 0;
	char name[64];

	bpf_object__for_each_map(map, probes->skel->obj)
	{
		if (err || !is_kept(map))
			continue;
		map_pin(map, name, sizeof(name));
		fds[n] = n < MAPS_MAX - 1 ? lien_pins_get(probes->pins, name) : -E2BIG;
		if (fds[n] < 0)
			err = fds[n];
		else
			n++;
	}
	bpf_object__for_each_map(map, probes->skel->obj) if (!err && is_kept(map)) err =
		bpf_map__reuse_fd(map, fds[i++]);
	while (n)
		close(fds[--n]);
	return err;
}

/* A link may be pinned without being in the state file: do not reuse its number. */
static bool note_number(void *context, const char *name)
{
	struct lien_probes *probes = context;
	unsigned number;

	if (sscanf(name, "link-%u-", &number) == 1 && number > probes->next_attachment)
		probes->next_attachment = number;
	return true;
}

static void take_attached(struct lien_probes *probes, struct lien_keep_state *state)
{
	bool same_build = !strcmp(state->build, probes->build), same;
	unsigned i;

	for (i = 0; i < state->attached.count; i++) {
		struct lien_attached *attached = state->attached.items[i];

		/* That agent may have ended before it had replaced an earlier agent's links. */
		same = same_build && !attached->old;

		if (!has_pins(probes, attached))
			lien_attached_free(attached);
		else if (!attached->file.library && same && !probes->system)
			probes->system = attached;
		else if (lien_attached_add(
				 same && attached->file.library ? &probes->files : &probes->old,
				 attached))
			lien_attached_free(attached);
	}
	free(state->attached.items);
	probes->next_attachment = state->next_attachment;
	lien_pins_each(probes->pins, note_number, probes);
}

static bool drop_all(void *context, const char *name)
{
	lien_pins_drop(context, name);
	return true;
}

int lien_keep_begin(struct lien_probes *probes)
{
	struct lien_keep_state state;
	const char *why = NULL;
	char path[PATH_MAX];
	int err;

	if (!probes->config.socket)
		return 0;
	err = lien_pins_open(&probes->pins, probes->config.socket, true);
	if (err) {
		snprintf(probes->problem, sizeof(probes->problem),
			"nothing can be pinned under /sys/fs/bpf: %s", strerror(-err));
		return 0;
	}
	probes->layout = layout_of(probes->skel->obj);
	probes->journal = probes->config.new_journal;
	name_build(probes);
	state_path(probes->config.socket, path, sizeof(path));
	err = lien_keep_state_read(path, &state);
	if (!err && probes->config.journal)
		why = unusable(probes, &state);
	if (!err && probes->config.journal && !why) {
		probes->resumed = true;
		probes->journal = state.journal;
		take_attached(probes, &state);
		return reuse_maps(probes);
	}
	if (err == -EBADMSG)
		why = "its state file is damaged";
	if (why)
		snprintf(probes->problem, sizeof(probes->problem),
			"what an agent before this one left is not used: %s", why);
	lien_attached_clear(&state.attached);
	unlink(path);
	lien_pins_each(probes->pins, drop_all, probes->pins);
	return 0;
}

void lien_keep_problem(struct lien_probes *probes, const char *what, int err)
{
	snprintf(probes->problem, sizeof(probes->problem), "cannot pin %s in %s: %s", what,
		lien_pins_folder(probes->pins), strerror(-err));
}

void lien_keep_maps(struct lien_probes *probes)
{
	struct bpf_map *map;
	char name[64];
	int err = 0;

	if (!probes->pins || probes->resumed)
		return;
	bpf_object__for_each_map(map, probes->skel->obj)
	{
		if (err || !is_kept(map))
			continue;
		map_pin(map, name, sizeof(name));
		err = lien_pins_put(probes->pins, name, bpf_map__fd(map));
	}
	mark_pin(probes->journal, name, sizeof(name));
	if (!err)
		err = lien_pins_put(probes->pins, name, bpf_map__fd(probes->skel->maps.counters));
	if (!err)
		return;
	lien_keep_problem(probes, "maps", err);
	lien_pins_remove(probes->pins);
	probes->pins = NULL;
}

/* Returns the fd of a link: attachments have either one link per probe or two in all. */
static int link_fd(const struct lien_attached *attached, unsigned index)
{
	if (attached->links_count)
		return index < attached->links_count ? bpf_link__fd(attached->links[index]) : -1;
	return index < 2 ? attached->multi[index] : -1;
}

void lien_keep_links(struct lien_probes *probes, struct lien_attached *attached)
{
	char name[64];
	unsigned i;
	int fd, err;

	if (!probes->pins)
		return;
	for (i = 0; (fd = link_fd(attached, i)) >= 0; i++) {
		link_pin(attached, i, name, sizeof(name));
		err = lien_pins_put(probes->pins, name, fd);
		if (err) {
			lien_keep_problem(probes, attached->file.path, err);
			while (i--) {
				link_pin(attached, i, name, sizeof(name));
				lien_pins_drop(probes->pins, name);
			}
			return;
		}
	}
	attached->pins = i;
}

void lien_keep_drop(struct lien_probes *probes, struct lien_attached *attached, int *fds)
{
	char name[64];
	unsigned i;

	for (i = 0; probes->pins && i < attached->pins; i++) {
		link_pin(attached, i, name, sizeof(name));
		fds[i] = lien_pins_take(probes->pins, name);
	}
}

static void following_pin(const struct lien_following *following, char *name, size_t size)
{
	snprintf(name, size, "link-%u-process", following->number);
}

void lien_keep_following(struct lien_probes *probes, const struct lien_following *following)
{
	char name[64];
	int err;

	if (!probes->pins)
		return;
	following_pin(following, name, sizeof(name));
	err = lien_pins_put(probes->pins, name, following->link);
	if (err)
		lien_keep_problem(probes, "a link", err);
}

void lien_keep_unfollow(struct lien_probes *probes, const struct lien_following *following)
{
	char name[64];

	if (!probes->pins)
		return;
	following_pin(following, name, sizeof(name));
	lien_pins_drop(probes->pins, name);
}

void lien_keep_save(struct lien_probes *probes)
{
	char path[PATH_MAX];
	int err;

	if (!probes->pins)
		return;
	state_path(probes->config.socket, path, sizeof(path));
	err = lien_keep_state_write(path, probes);
	if (err)
		snprintf(probes->problem, sizeof(probes->problem), "cannot write %.160s: %s", path,
			strerror(-err));
}

bool lien_probes_resumed(const struct lien_probes *probes)
{
	return probes->resumed;
}

const char *lien_probes_pinned(const struct lien_probes *probes)
{
	return probes->pins ? lien_pins_folder(probes->pins) : NULL;
}

const char *lien_probes_problem(const struct lien_probes *probes)
{
	return probes->problem[0] ? probes->problem : NULL;
}

void lien_probes_unpin(struct lien_probes *probes)
{
	char path[PATH_MAX];

	if (!probes->pins)
		return;
	lien_gate_links_stop(probes); /* they have the pins */
	state_path(probes->config.socket, path, sizeof(path));
	unlink(path);
	lien_pins_remove(probes->pins);
	probes->pins = NULL;
}

int lien_probes_clean(const char *socket, int (*may)(const char *socket))
{
	struct lien_pins *pins = NULL;
	char path[PATH_MAX];
	int err = lien_pins_open(&pins, socket, false);

	if (err && err != -ENOENT)
		return err;
	err = may ? may(socket) : 0;
	if (err) {
		lien_pins_close(pins);
		return err;
	}
	if (pins)
		lien_pins_remove(pins);
	state_path(socket, path, sizeof(path));
	return unlink(path) && errno != ENOENT ? -errno : 0;
}
