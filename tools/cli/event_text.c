// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/event_text.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/cuda_abi.h>

#include "agent/graph/event_check.h"
#include "agent/graph/graph.h"
#include "tools/text/output.h"

/* How the bytes of an argument are shown. */
enum kind {
	HEX,	  /* address, handle, stream */
	BYTES,	  /* a size */
	OFFSET,	  /* a size that is mostly 0, and then omitted from lines */
	DETAIL,	  /* a size that appears only in JSON */
	NUMBER,	  /* signed */
	COUNT,	  /* unsigned */
	TEXT,	  /* char[], NUL-terminated */
	LOCATION, /* location_type followed by location_id */
	GROUP,	  /* ncclUniqueId: its magic names the communicator in other views, too */
	PLACES,	  /* .access */
	MAPPED,	  /* the same, of .state.mapping */
	FLAGS,	  /* bits, in hexadecimal */
	ORIGIN,	  /* enum lien_origin */
	TAG,	  /* char[], left out where the record ends before it */
};

struct field {
	const char *name;
	enum kind kind;
	uint16_t offset, size;
};

#define FIELD(member, name, kind)                                                                  \
	{                                                                                          \
		name, kind, offsetof(struct lien_event, member),                                   \
			sizeof(((struct lien_event *)0)->member)                                   \
	}

/* clang-format off */
#define FIELDS(name, ...) static const struct field fields_##name[] = {__VA_ARGS__, {}}

#define TAGGED FIELD(tagged.tag, "tag", TAG)

FIELDS(process, FIELD(process.comm, "command", TEXT), FIELD(process.uid, "uid", COUNT),
	FIELD(process.complete, "complete", COUNT));
FIELDS(library, FIELD(library.name, "name", TEXT), FIELD(library.start, "address", HEX),
	FIELD(library.length, "length", BYTES));
FIELDS(lost, FIELD(lost.count, "count", COUNT));
FIELDS(create, FIELD(create.bytes, "size", BYTES),
	FIELD(create.prop.location_type, "location", LOCATION),
	FIELD(create.handle, "handle", HEX), TAGGED);
FIELDS(release, FIELD(release.handle, "handle", HEX));
FIELDS(retain, FIELD(retain.handle, "handle", HEX), FIELD(retain.va, "addr", HEX));
FIELDS(reserve, FIELD(reserve.va, "ptr", HEX), FIELD(reserve.bytes, "size", BYTES),
	FIELD(reserve.align, "alignment", DETAIL));
FIELDS(unmap, FIELD(range.va, "ptr", HEX), FIELD(range.bytes, "size", BYTES));
FIELDS(map, FIELD(map.va, "ptr", HEX), FIELD(map.bytes, "size", BYTES),
	FIELD(map.offset, "offset", OFFSET), FIELD(map.handle, "handle", HEX));
FIELDS(access, FIELD(access.va, "ptr", HEX), FIELD(access.bytes, "size", BYTES),
	FIELD(access.access, "desc", PLACES));
FIELDS(export, FIELD(share.handle, "handle", HEX), FIELD(share.fd, "fd", NUMBER));
FIELDS(alloc, FIELD(alloc.va, "dptr", HEX), FIELD(alloc.bytes, "bytesize", BYTES),
	FIELD(alloc.device, "device", NUMBER), TAGGED);
FIELDS(alloc_from_pool, FIELD(alloc.va, "dptr", HEX), FIELD(alloc.bytes, "bytesize", BYTES),
	FIELD(alloc.pool, "pool", HEX), FIELD(alloc.device, "device", NUMBER), TAGGED);
FIELDS(alloc_host, FIELD(alloc.va, "p", HEX), FIELD(alloc.bytes, "bytesize", BYTES), TAGGED);
FIELDS(free_host, FIELD(range.va, "p", HEX));
FIELDS(pool_create, FIELD(pool.pool, "pool", HEX), FIELD(pool.device, "device", NUMBER));
FIELDS(pool_share, FIELD(pool.pool, "pool", HEX), FIELD(pool.fd, "fd", NUMBER));
FIELDS(pool_destroy, FIELD(pool.pool, "pool", HEX));
FIELDS(key_export, FIELD(key.va, "dptr", HEX), FIELD(key.key, "handle", GROUP));
FIELDS(multicast_create, FIELD(multicast.handle, "mcHandle", HEX), FIELD(multicast.bytes, "size", BYTES),
	FIELD(multicast.device, "devices", NUMBER));
FIELDS(multicast_device, FIELD(multicast.handle, "mcHandle", HEX),
	FIELD(multicast.device, "dev", NUMBER));
FIELDS(multicast_bind, FIELD(multicast.handle, "mcHandle", HEX),
	FIELD(multicast.offset, "mcOffset", OFFSET), FIELD(multicast.memory, "mem", HEX),
	FIELD(multicast.memory_offset, "memOffset", OFFSET),
	FIELD(multicast.bytes, "size", BYTES));
FIELDS(multicast_unbind, FIELD(multicast.handle, "mcHandle", HEX),
	FIELD(multicast.device, "dev", NUMBER), FIELD(multicast.offset, "mcOffset", OFFSET),
	FIELD(multicast.bytes, "size", BYTES));
FIELDS(range_handle, FIELD(range_handle.va, "dptr", HEX), FIELD(range_handle.bytes, "size", BYTES),
	FIELD(range_handle.fd, "fd", NUMBER));
FIELDS(context, FIELD(context.context, "ctx", HEX), FIELD(context.device, "dev", NUMBER));
FIELDS(context_destroy, FIELD(context.context, "ctx", HEX));
FIELDS(free, FIELD(range.va, "dptr", HEX));
FIELDS(stream_destroy, FIELD(capture.stream, "hStream", HEX));
FIELDS(comm_init, FIELD(comm.id, "commId", GROUP), FIELD(comm.rank, "rank", NUMBER),
	FIELD(comm.nranks, "nranks", NUMBER), FIELD(comm.comm, "comm", HEX));
FIELDS(comm_split, FIELD(comm.parent, "comm", HEX), FIELD(comm.color, "color", NUMBER),
	FIELD(comm.key, "key", NUMBER), FIELD(comm.comm, "newcomm", HEX));
FIELDS(comm_shrink, FIELD(comm.parent, "comm", HEX),
	FIELD(comm.excluded, "excludeRanksCount", NUMBER), FIELD(comm.comm, "newcomm", HEX));
FIELDS(comm_end, FIELD(comm_end.comm, "comm", HEX));
FIELDS(register, FIELD(reg.comm, "comm", HEX), FIELD(reg.va, "buff", HEX),
	FIELD(reg.bytes, "size", BYTES), FIELD(reg.handle, "handle", HEX));
FIELDS(deregister, FIELD(reg.comm, "comm", HEX), FIELD(reg.handle, "handle", HEX));
FIELDS(register_mr, FIELD(reg.va, "addr", HEX), FIELD(reg.bytes, "length", BYTES),
	FIELD(reg.handle, "mr", HEX));
FIELDS(deregister_mr, FIELD(reg.handle, "mr", HEX));

/* --- snapshots --- */
#define STATE(name, member, text, kind) FIELD(state.name.member, text, kind)
FIELDS(state_process, STATE(process, command, "command", TEXT), STATE(process, uid, "uid", COUNT),
	STATE(process, incomplete, "incomplete", FLAGS));
FIELDS(state_reservation, STATE(reservation, va, "ptr", HEX), STATE(reservation, bytes, "size", BYTES));
FIELDS(state_context, STATE(context, value, "ctx", HEX), STATE(context, device, "dev", NUMBER));
FIELDS(state_pool, STATE(pool, value, "pool", HEX), STATE(pool, device, "device", NUMBER));
FIELDS(state_capture, STATE(capture, stream, "hStream", HEX));
FIELDS(state_comm, STATE(comm, id, "commId", GROUP), STATE(comm, rank, "rank", NUMBER),
	STATE(comm, nranks, "nranks", NUMBER), FIELD(scope, "comm", HEX));
FIELDS(state_init, STATE(init, number, "comm", COUNT));
FIELDS(state_split, STATE(split, color, "color", NUMBER), STATE(split, key, "key", NUMBER),
	STATE(split, parent_rank, "rank", NUMBER));
FIELDS(state_site, STATE(site, number, "site", COUNT), STATE(site, library, "library", TEXT),
	STATE(site, file, "file", TEXT), STATE(site, offset, "offset", HEX));
FIELDS(state_allocation, STATE(allocation, id, "id", COUNT), STATE(allocation, origin, "origin", ORIGIN),
	STATE(allocation, bytes, "size", BYTES), STATE(allocation, prop.location_type, "location", LOCATION),
	STATE(allocation, site, "site", COUNT), STATE(allocation, tag, "tag", TAG));
FIELDS(state_share, STATE(share, allocation, "id", COUNT), STATE(share, imports, "imports", COUNT),
	STATE(share, fd, "fd", NUMBER));
FIELDS(state_handle, STATE(handle, allocation, "id", COUNT), STATE(handle, value, "handle", HEX),
	STATE(handle, references, "references", COUNT));
FIELDS(state_mapping, STATE(mapping, allocation, "id", COUNT), STATE(mapping, va, "ptr", HEX),
	STATE(mapping, bytes, "size", BYTES), STATE(mapping, count, "desc", MAPPED));
FIELDS(state_registration, STATE(registration, va, "buff", HEX), STATE(registration, bytes, "size", BYTES),
	STATE(registration, handle, "handle", HEX));
FIELDS(state_binding, STATE(binding, object, "object", COUNT), STATE(binding, memory, "id", COUNT),
	STATE(binding, offset, "mcOffset", OFFSET), STATE(binding, bytes, "size", BYTES));
FIELDS(state_end, STATE(end, allocation, "id", COUNT));

/* Shown by other fields. */
#define fields_init	       NULL
#define fields_holds	       NULL
#define fields_device_comm     NULL
#define fields_address_free    fields_unmap
#define fields_import	       fields_export
#define fields_alloc_pitch     fields_alloc
#define fields_alloc_managed   fields_alloc
#define fields_alloc_async     fields_alloc
#define fields_register_host   fields_alloc_host
#define fields_unregister_host fields_free_host
#define fields_ipc_close       fields_free
#define fields_capture_begin   fields_stream_destroy
#define fields_capture_end     fields_stream_destroy
#define fields_pool_import     fields_pool_share
#define fields_key_import      fields_key_export
#define fields_comm_finalize   fields_comm_end
/* clang-format on */

static const struct field *fields_of(unsigned type)
{
	static const struct field *const shown[LIEN_KIND_COUNT] = {
#define SHOWN(kind, least, origin) [LIEN_KIND_##kind] = fields_##kind,
		LIEN_KINDS(SHOWN)
#undef SHOWN
	};

	switch (type) {
	case LIEN_EVENT_PROCESS:
		return fields_process;
	case LIEN_EVENT_LIBRARY:
		return fields_library;
	case LIEN_EVENT_LOST:
		return fields_lost;
#define SHOWN(name, number, least)                                                                 \
	case number:                                                                               \
		return fields_state_##name;
		LIEN_STATES(SHOWN)
#undef SHOWN
	}
	return shown[lien_call_kind(type)];
}

static const char *const symbols[LIEN_CALL_MAX] = {[LIEN_EVENT_PROCESS] = "process",
	[LIEN_EVENT_EXEC] = "exec",
	[LIEN_EVENT_EXIT] = "exit",
	[LIEN_EVENT_LIBRARY] = "library",
	[LIEN_EVENT_LOST] = "lost",
#define SYMBOL(name, number, library, symbol, flags, kind) [number] = (symbol),
	LIEN_CALLS(SYMBOL)
#undef SYMBOL
#define SYMBOL(name, number, least) [number] = "state-" #name,
		LIEN_STATES(SYMBOL)
#undef SYMBOL
};

struct lien_event_name lien_event_name(unsigned type)
{
	const char *symbol = type < LIEN_CALL_MAX && symbols[type] ? symbols[type] : "";
	const char *version = strstr(symbol, "_v2");
	int before = version ? version - symbol : (int)strlen(symbol);
	struct lien_event_name name;

	snprintf(name.text, sizeof(name.text), "%.*s%s", before, symbol,
		version ? version + strlen("_v2") : "");
	return name;
}

bool lien_event_is_named(unsigned type, const char *pattern)
{
	if (type >= LIEN_CALL_MAX || !symbols[type])
		return false;
	return !fnmatch(pattern, symbols[type], 0) ||
	       !fnmatch(pattern, lien_event_name(type).text, 0);
}

void lien_event_fields(unsigned type,
	void (*each)(
		void *context, const char *name, const char *kind, unsigned offset, unsigned size),
	void *context)
{
	static const char *const kinds[] = {[HEX] = "hex",
		[BYTES] = "count",
		[OFFSET] = "count",
		[DETAIL] = "count",
		[NUMBER] = "number",
		[COUNT] = "count",
		[TEXT] = "text",
		[LOCATION] = "location",
		[GROUP] = "group",
		[PLACES] = "places",
		[MAPPED] = "mapped",
		[FLAGS] = "count",
		[ORIGIN] = "origin",
		[TAG] = "tag"};
	const struct field *field;

	for (field = fields_of(type); field && field->name; field++)
		each(context, field->name, kinds[field->kind], field->offset, field->size);
}

static uint64_t number_at(const struct lien_event *event, const struct field *field)
{
	const char *at = (const char *)event + field->offset;
	uint32_t narrow;
	uint64_t wide;

	if (field->size == sizeof(narrow)) {
		memcpy(&narrow, at, sizeof(narrow));
		return field->kind == NUMBER ? (uint64_t)(int32_t)narrow : narrow;
	}
	memcpy(&wide, at, sizeof(wide));
	return wide;
}

/* "device 0", "host", "host node 1" */
static char *location_text(unsigned type, int id)
{
	switch (type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return lien_format("device %d", id);
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return lien_format("host node %d", id);
	default:
		return lien_format("host");
	}
}

static json_t *location_json(unsigned type, int id)
{
	return json_pack("{s:i}", type == CU_MEM_LOCATION_TYPE_DEVICE ? "device" : "host", id);
}

/* "device 0 rw, device 1 r" */
static char *places_text(const struct lien_access *access, uint32_t count)
{
	static const char *const names[] = {"none", "r", "w", "rw"};
	char *text = NULL, *place;

	for (; count; count--, access++) {
		place = location_text(access->location_type, access->location_id);
		text = lien_append(text, ", ", "%s %s", place, names[access->flags & 3]);
		free(place);
	}
	return text ? text : lien_format("nobody");
}

static json_t *places_json(const struct lien_access *access, uint32_t count)
{
	static const char *const names[] = {"none", "read", "write", "read-write"};
	json_t *list = json_array(), *place;

	for (; count; count--, access++) {
		place = location_json(access->location_type, access->location_id);
		json_object_set_new(place, "access", json_string(names[access->flags & 3]));
		json_array_append_new(list, place);
	}
	return list;
}

/* Belongs to another process, so it may not be UTF-8. */
struct text {
	char text[sizeof(((struct lien_event *)0)->library.name)];
};

static struct text printable(const char *bytes, size_t size)
{
	struct text text = {""};
	char *c;

	memcpy(text.text, bytes, size);
	for (c = text.text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	return text;
}

/* NULL: the record has no tag, or one that could not be read. */
static const char *tag_at(const struct lien_event *event, const struct field *field)
{
	const char *tag = (const char *)event + field->offset;

	return event->size >= field->offset + field->size && lien_tag_valid(tag) ? tag : NULL;
}

/* Recordings may have any number. */
static const char *origin_text(uint64_t origin)
{
	return origin && origin < LIEN_ORIGIN_COUNT ? lien_origin_name(origin) : "unknown";
}

static json_t *json_of(const struct lien_event *event, const struct field *field)
{
	const char *at = (const char *)event + field->offset;
	uint64_t value = number_at(event, field);
	int32_t location[2];

	switch (field->kind) {
	case HEX:
		return json_sprintf("0x%" PRIx64, value);
	case TEXT:
		return json_string(printable(at, field->size).text);
	case GROUP:
		return json_sprintf("%016" PRIx64, value);
	case LOCATION:
		memcpy(location, at, sizeof(location));
		return location_json(location[0], location[1]);
	case PLACES:
		return places_json(event->access.access, event->access.count);
	case MAPPED:
		return places_json(event->state.mapping.access, event->state.mapping.count);
	case ORIGIN:
		return json_string(origin_text(value));
	case TAG:
		return json_string(tag_at(event, field));
	default:
		return json_integer(value);
	}
}

json_t *lien_event_arguments(const struct lien_event *event)
{
	const struct field *field = fields_of(event->type);
	json_t *all = json_object();

	for (; field && field->name; field++)
		if (field->kind != TAG || tag_at(event, field))
			json_object_set_new(all, field->name, json_of(event, field));
	return all;
}

/* Whole numbers, the usual case, without a fraction. */
static char *bytes_text(uint64_t bytes)
{
	if (bytes >= 1ull << 30 && bytes % (1ull << 30) == 0)
		return lien_format("%" PRIu64 " GiB", bytes >> 30);
	if (bytes >= 1ull << 20 && bytes < 1ull << 30 && bytes % (1ull << 20) == 0)
		return lien_format("%" PRIu64 " MiB", bytes >> 20);
	if (bytes < 1024)
		return lien_format("%" PRIu64, bytes);
	return lien_format("%s", lien_bytes(bytes).text);
}

/* NULL: omitted from lines. */
static char *text_of(const struct lien_event *event, const struct field *field)
{
	const char *at = (const char *)event + field->offset;
	uint64_t value = number_at(event, field);
	int32_t location[2];
	char *text, *named;

	switch (field->kind) {
	case DETAIL:
		return NULL;
	case OFFSET:
	case BYTES:
		if (field->kind == OFFSET && !value)
			return NULL;
		text = bytes_text(value);
		named = lien_format("%s=%s", field->name, text);
		free(text);
		return named;
	case HEX:
		return lien_format("%s=0x%" PRIx64, field->name, value);
	case TEXT:
		return lien_format("%s=%s", field->name, printable(at, field->size).text);
	case GROUP:
		return lien_format("%s=%016" PRIx64, field->name, value);
	case LOCATION:
		memcpy(location, at, sizeof(location));
		return location_text(location[0], location[1]);
	case PLACES:
		return places_text(event->access.access, event->access.count);
	case MAPPED:
		return places_text(event->state.mapping.access, event->state.mapping.count);
	case FLAGS:
		return value ? lien_format("%s=0x%" PRIx64, field->name, value) : NULL;
	case ORIGIN:
		return lien_format("%s=%s", field->name, origin_text(value));
	case TAG:
		return tag_at(event, field)
			       ? lien_format("%s=%s", field->name, tag_at(event, field))
			       : NULL;
	case NUMBER:
	case COUNT:
		break;
	}
	return lien_format("%s=%" PRId64, field->name, (int64_t)value);
}

char *lien_event_arguments_text(const struct lien_event *event)
{
	const struct field *field = fields_of(event->type);
	char *all = NULL, *text;

	for (; field && field->name; field++) {
		text = text_of(event, field);
		if (text)
			all = lien_append(all, ", ", "%s", text);
		free(text);
	}
	return all ? all : lien_format("%s", "");
}

static const char *cuda_result(int result)
{
	switch (result) {
#define NAME(error, value)                                                                         \
	case error:                                                                                \
		return #error;
		LIEN_CUDA_ERRORS(NAME)
#undef NAME
	default:
		return NULL;
	}
}

static const char *nccl_result(int result)
{
	/* ncclResult_t of nccl.h */
	static const char *const names[] = {NULL, "ncclUnhandledCudaError", "ncclSystemError",
		"ncclInternalError", "ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError",
		"ncclInProgress"};

	return result > 0 && result < (int)(sizeof(names) / sizeof(names[0])) ? names[result]
									      : NULL;
}

const char *lien_event_result_name(const struct lien_event *event)
{
	switch (lien_event_library(event->type)) {
	case LIEN_LIB_CUDA:
		return cuda_result(event->result);
	case LIEN_LIB_NCCL:
		return nccl_result(event->result);
	default:
		return NULL;
	}
}
