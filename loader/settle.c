// SPDX-License-Identifier: BSD-2-Clause
/* The end of taking over: what is not wanted any more goes, and what fell between is named. */
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/probes_internal.h"

static bool is_live(const struct lien_probes *probes, unsigned number)
{
	unsigned i;

	if (probes->system && probes->system->number == number)
		return true;
	for (i = 0; i < probes->files.count; i++)
		if (probes->files.items[i]->number == number)
			return true;
	for (i = 0; i < probes->following_count; i++)
		if (probes->following[i].number == number)
			return true;
	return false;
}

static bool drop_old(void *context, const char *name)
{
	struct lien_probes *probes = context;
	unsigned number;

	if (sscanf(name, "link-%u-", &number) == 1 && !is_live(probes, number))
		lien_pins_drop(probes->pins, name);
	return true;
}

/* Where the members of the map's values are; the struct is known to the BPF programs alone. */
struct thread_layout {
	unsigned pid, start, depth, frames, frame_size, attachment;
};

static bool member_offset(const struct btf *btf, const char *of, const char *name, unsigned *offset,
	const struct btf_type **type)
{
	int id = btf__find_by_name_kind(btf, of, BTF_KIND_STRUCT);
	const struct btf_type *outer = id < 0 ? NULL : btf__type_by_id(btf, id);
	const struct btf_member *member;
	unsigned i;

	for (i = 0; outer && i < btf_vlen(outer); i++) {
		member = &btf_members(outer)[i];
		if (strcmp(btf__name_by_offset(btf, member->name_off), name))
			continue;
		*offset = btf_member_bit_offset(outer, i) / 8;
		*type = outer;
		return true;
	}
	return false;
}

static int thread_layout(const struct btf *btf, struct thread_layout *layout)
{
	const struct btf_type *thread, *frame;

	if (!member_offset(btf, "thread", "pid", &layout->pid, &thread) ||
		!member_offset(btf, "thread", "start", &layout->start, &thread) ||
		!member_offset(btf, "thread", "depth", &layout->depth, &thread) ||
		!member_offset(btf, "thread", "frame", &layout->frames, &thread) ||
		!member_offset(btf, "frame", "attachment", &layout->attachment, &frame))
		return -ENOENT;
	layout->frame_size = frame->size;
	return 0;
}

/* Whether the thread is in a call whose return no probe will see. */
static bool is_stranded(const struct lien_probes *probes, const struct thread_layout *layout,
	const unsigned char *thread, size_t size)
{
	uint32_t depth, number, i;
	size_t at;

	memcpy(&depth, thread + layout->depth, sizeof(depth));
	for (i = 0; i < depth; i++) {
		at = layout->frames + i * layout->frame_size + layout->attachment;
		if (at + sizeof(number) > size)
			return false;
		memcpy(&number, thread + at, sizeof(number));
		if (!is_live(probes, number))
			return true;
	}
	return false;
}

/* Its frame would keep later calls from the same place from being seen, so it goes as well. */
static int strand(struct lien_probes *probes,
	void (*stranded)(void *context, uint32_t pid, uint64_t start), void *context)
{
	const struct bpf_map *map = probes->skel->maps.threads;
	unsigned rest = 2 * bpf_map__max_entries(map);
	size_t size = bpf_map__value_size(map);
	struct thread_layout layout;
	uint32_t key, next, pid;
	unsigned char *thread;
	uint64_t start;
	int err, more;

	err = thread_layout(bpf_object__btf(probes->skel->obj), &layout);
	thread = err ? NULL : malloc(size);
	if (!thread)
		return err ? err : -ENOMEM;
	more = !bpf_map_get_next_key(bpf_map__fd(map), NULL, &next);
	/* Threads come and go meanwhile, and a walk whose key has gone begins anew. */
	while (more && rest--) {
		key = next;
		more = !bpf_map_get_next_key(bpf_map__fd(map), &key, &next);
		if (bpf_map_lookup_elem(bpf_map__fd(map), &key, thread) ||
			!is_stranded(probes, &layout, thread, size))
			continue;
		memcpy(&pid, thread + layout.pid, sizeof(pid));
		memcpy(&start, thread + layout.start, sizeof(start));
		stranded(context, pid, start);
		bpf_map_delete_elem(bpf_map__fd(map), &key);
	}
	free(thread);
	return 0;
}

int lien_probes_settle(struct lien_probes *probes,
	void (*stranded)(void *context, uint32_t pid, uint64_t start), void *context)
{
	int err;

	probes->settled = true;
	if (!probes->resumed)
		return 0;
	lien_pins_each(probes->pins, drop_old, probes);
	lien_attached_clear(&probes->old);
	err = strand(probes, stranded, context);
	lien_keep_save(probes);
	return err;
}
