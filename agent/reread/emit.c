// SPDX-License-Identifier: BSD-2-Clause
#include "agent/reread/emit.h"

#include <string.h>

#include <lien/cuda_abi.h>

struct lien_event lien_emit_event(
	struct lien_emitter *emitter, const struct lien_process *process, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.type = type;
	event.flags = LIEN_EVENT_FOUND;
	event.pid = event.tid = process->pid;
	event.start = process->start;
	event.t_entry = event.t_return = ++emitter->now_ns;
	if (type >= LIEN_CALL_CU_INIT)
		event.outer = type;
	return event;
}

void lien_emit(struct lien_emitter *emitter, struct lien_event *event, size_t size)
{
	event->size = size;
	emitter->emit(emitter->context, event);
}

void lien_emit_given_back(struct lien_emitter *emitter, struct lien_event *event, size_t size)
{
	struct lien_event entry = *event;

	entry.flags |= LIEN_EVENT_ENTRY;
	entry.t_return = 0;
	lien_emit(emitter, &entry, size);
	lien_emit(emitter, event, size);
}

void lien_emit_release_all(struct lien_emitter *emitter, struct lien_handle *handle)
{
	struct lien_event event =
		lien_emit_event(emitter, handle->holding->process, LIEN_CALL_CU_MEM_RELEASE);
	uint32_t references = handle->references;

	event.release.handle = handle->value;
	for (; references; references--) {
		lien_emit_given_back(emitter, &event, LIEN_EVENT_SIZE(release));
		event.t_entry = event.t_return = ++emitter->now_ns;
	}
}

void lien_emit_unmap(struct lien_emitter *emitter, const struct lien_process *process, uint64_t va,
	uint64_t bytes)
{
	struct lien_event event = lien_emit_event(emitter, process, LIEN_CALL_CU_MEM_UNMAP);

	event.range.va = va;
	event.range.bytes = bytes;
	lien_emit_given_back(emitter, &event, LIEN_EVENT_SIZE(range));
}

void lien_emit_create(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t handle, uint64_t bytes, const struct lien_prop *prop)
{
	struct lien_event event = lien_emit_event(emitter, process, LIEN_CALL_CU_MEM_CREATE);

	event.create.handle = handle;
	event.create.bytes = bytes;
	event.create.prop = *prop;
	lien_emit(emitter, &event, LIEN_EVENT_SIZE(create));
}

void lien_emit_import(struct lien_emitter *emitter, const struct lien_process *process,
	uint64_t handle, uint64_t share)
{
	struct lien_event event = lien_emit_event(emitter, process, LIEN_CALL_CU_MEM_IMPORT);

	event.share.handle = handle;
	event.share.handle_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	event.share.share = share;
	event.share.fd = -1;
	lien_emit(emitter, &event, LIEN_EVENT_SIZE(share));
}

void lien_emit_map(struct lien_emitter *emitter, const struct lien_process *process, uint64_t va,
	uint64_t bytes, uint64_t handle)
{
	struct lien_event event = lien_emit_event(emitter, process, LIEN_CALL_CU_MEM_MAP);

	event.map.va = va;
	event.map.bytes = bytes;
	event.map.handle = handle;
	lien_emit(emitter, &event, LIEN_EVENT_SIZE(map));
}
