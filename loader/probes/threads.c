// SPDX-License-Identifier: BSD-2-Clause
#include "loader/probes/threads.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <errno.h>
#include <string.h>

#include "loader/probes/map_each.h"

static const char *const names[LIEN_THREAD_MEMBERS] = {
	[LIEN_THREAD_PID] = "pid",
	[LIEN_THREAD_TID] = "tid",
	[LIEN_THREAD_START] = "start",
	[LIEN_THREAD_DEPTH] = "depth",
	[LIEN_THREAD_LAST_SP] = "last_sp",
	[LIEN_THREAD_LAST_CALLER] = "last_caller",
	[LIEN_THREAD_T_COUNTED] = "t_counted",
	[LIEN_THREAD_T_GATE] = "t_gate",
	[LIEN_THREAD_GATE_TURN] = "gate_turn",
	[LIEN_THREAD_GATE_SP] = "gate_sp",
	[LIEN_THREAD_GATE_CALL] = "gate_call",
	[LIEN_THREAD_GROUP_INSIDE] = "group_inside",
};

struct place {
	unsigned offset, size;
};

struct lien_thread {
	struct place members[LIEN_THREAD_MEMBERS];
	struct place frames, attachment; /* frames.size: of one frame */
	size_t size;
	const unsigned char *value;
};

static bool find(const struct btf *btf, const char *of, const char *name, struct place *place)
{
	int id = btf__find_by_name_kind(btf, of, BTF_KIND_STRUCT);
	const struct btf_type *outer = id < 0 ? NULL : btf__type_by_id(btf, id);
	const struct btf_member *member;
	unsigned i;

	for (i = 0; outer && i < btf_vlen(outer); i++) {
		member = &btf_members(outer)[i];
		if (strcmp(btf__name_by_offset(btf, member->name_off), name))
			continue;
		place->offset = btf_member_bit_offset(outer, i) / 8;
		place->size = btf__resolve_size(btf, member->type);
		return true;
	}
	return false;
}

static bool find_all(const struct btf *btf, struct lien_thread *thread)
{
	int frame = btf__find_by_name_kind(btf, "frame", BTF_KIND_STRUCT);
	unsigned i;

	for (i = 0; i < LIEN_THREAD_MEMBERS; i++)
		if (!find(btf, "thread", names[i], &thread->members[i]) ||
			thread->members[i].size > sizeof(uint64_t))
			return false;
	if (frame < 0 || !find(btf, "thread", "frame", &thread->frames) ||
		!find(btf, "frame", "attachment", &thread->attachment))
		return false;
	thread->frames.size = btf__resolve_size(btf, frame);
	return true;
}

static uint64_t take(const struct lien_thread *thread, size_t offset, size_t size)
{
	uint64_t value = 0;

	if (offset + size <= thread->size)
		memcpy(&value, thread->value + offset, size);
	return value;
}

uint64_t lien_thread_get(const struct lien_thread *thread, enum lien_thread_member member)
{
	return take(thread, thread->members[member].offset, thread->members[member].size);
}

unsigned lien_thread_attachment(const struct lien_thread *thread, unsigned depth)
{
	return take(thread,
		thread->frames.offset + (size_t)depth * thread->frames.size +
			thread->attachment.offset,
		sizeof(uint32_t));
}

struct visit {
	struct lien_thread thread;
	int (*fn)(void *context, uint32_t ktid, const struct lien_thread *thread);
	void *context;
};

static int visit(void *context, const void *key, const void *value)
{
	struct visit *visit = context;

	visit->thread.value = value;
	return visit->fn(visit->context, *(const uint32_t *)key, &visit->thread);
}

int lien_threads_each(struct lien_probes *probes,
	int (*fn)(void *context, uint32_t ktid, const struct lien_thread *thread), void *context)
{
	const struct bpf_map *map = probes->skel->maps.threads;
	struct visit each = {{.size = bpf_map__value_size(map)}, fn, context};

	if (!find_all(bpf_object__btf(probes->skel->obj), &each.thread))
		return -ENOENT;
	return lien_map_each(map, visit, &each);
}
