// SPDX-License-Identifier: BSD-2-Clause
#include "see.h"

static const struct lien_view_files no_files;

static void seen_by_nccl(void)
{
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
}

static void seen_by_itself(void)
{
	tell.outer = 0;
}

/* Two ranks: 1 exports to 2, which maps the import twice; both have more of their own. */
static void two_ranks(void)
{
	started(1);
	started(2);
	comm_init(1, 0x100, 0xaa, 0, 2);
	comm_init(2, 0x200, 0xaa, 1, 2);
	seen_by_nccl();
	buffer(1, 10, VA, PIECE);
	buffer(1, 11, VA + PIECE, PIECE);
	export(1, 10, 5);
	create_on(2, 20, PIECE, device_prop(1));
	reserve(2, VA, PIECE);
	map_rw(2, VA, PIECE, 20);
	imported_buffer(2, 21, 5, VA + PIECE, PIECE);
	reserve(2, VA + 2 * PIECE, PIECE);
	map_rw(2, VA + 2 * PIECE, PIECE, 21);
	seen_by_itself();
	alloc(2, VA + 4 * PIECE, 1000);
}

/* --- ps --------------------------------------------------------------------------------------- */

static void test_ps(void **state)
{
	(void)state;
	see(lien_view_ps(graph, NULL));
	assert_members(view, "processes:a dead:a");
	LENGTH(0, "processes");
	two_ranks();
	library(3, IN_TORCH, "libcuda.so.1"); /* only mapped a library */
	see(lien_view_ps(graph, NULL));
	LENGTH(2, "processes");
	for (unsigned i = 0; i < 2; i++)
		assert_members(at("processes[%u]", i),
			"pid:i command:s uid:i state:s complete:b control:s movable:? reason:? "
			"devices:a ranks:a "
			"bytes:i nccl_bytes:i nccl_inferred_bytes:i imported_bytes:i "
			"offloaded_bytes:i "
			"arena_bytes:i arena_used_bytes:i used_in:n");
	INTEGER(1, "processes[0].pid");
	STRING("python3", "processes[0].command");
	INTEGER(1000, "processes[0].uid");
	STRING("running", "processes[0].state");
	assert_true(json_is_true(at("processes[0].complete")));
	STRING("ready", "processes[0].control");
	LENGTH(1, "processes[0].devices");
	INTEGER(0, "processes[0].devices[0]");
	INTEGER(2 * PIECE, "processes[0].bytes");
	INTEGER(2 * PIECE, "processes[0].nccl_bytes");
	INTEGER(0, "processes[0].imported_bytes");
	INTEGER(0, "processes[0].offloaded_bytes");
	INTEGER(2, "processes[1].pid");
	INTEGER(1, "processes[1].devices[0]");
	INTEGER(PIECE + 1000, "processes[1].bytes");
	INTEGER(PIECE, "processes[1].nccl_bytes");
	assert_members(at("processes[1].ranks[0]"), "group:s rank:i nranks:i");
	INTEGER(1, "processes[1].ranks[0].rank");
	INTEGER(2, "processes[1].ranks[0].nranks");
	STRING("00000000000000aa", "processes[0].ranks[0].group");
	STRING("00000000000000aa", "processes[1].ranks[0].group");
}

/* An import with an alias is the same memory. */
static void test_ps_import_once(void **state)
{
	(void)state;
	two_ranks();
	see(lien_view_ps(graph, NULL));
	INTEGER(PIECE, "processes[1].imported_bytes");
}

static void test_ps_arena(void **state)
{
	(void)state;
	two_ranks();
	process(1)->arena_bytes = 5 * PIECE;
	process(1)->arena_used = 3 * PIECE;
	process(1)->used_in = "cuMemFree";
	see(lien_view_ps(graph, NULL));
	INTEGER(5 * PIECE, "processes[0].arena_bytes");
	INTEGER(3 * PIECE, "processes[0].arena_used_bytes");
	STRING("cuMemFree", "processes[0].used_in");
	INTEGER(0, "processes[1].arena_bytes");
	process(1)->presence = LIEN_CONTROL_UNKNOWN;
	see(lien_view_ps(graph, NULL));
	assert_true(json_is_null(at("processes[0].arena_bytes")));
	assert_true(json_is_null(at("processes[0].arena_used_bytes")));
}

static void test_ps_states(void **state)
{
	(void)state;
	two_ranks();
	process(1)->presence = LIEN_CONTROL_NONE;
	process(2)->presence = LIEN_CONTROL_LOADED;
	process(2)->incomplete = LIEN_INCOMPLETE_ODD;
	see(lien_view_ps(graph, NULL));
	STRING("none", "processes[0].control");
	STRING("loaded", "processes[1].control");
	assert_true(json_is_false(at("processes[1].complete")));
	park(2, VA + PIECE, PIECE);
	see(lien_view_ps(graph, NULL));
	STRING("partly offloaded", "processes[1].state"); /* one of two aliases */
	INTEGER(PIECE, "processes[1].imported_bytes");
	park(2, VA + 2 * PIECE, PIECE);
	control_release(2, 21);
	see(lien_view_ps(graph, NULL));
	STRING("running", "processes[0].state");
	STRING("partly offloaded", "processes[1].state");
	INTEGER(0, "processes[1].imported_bytes");
	INTEGER(0, "processes[1].offloaded_bytes");
	control_detach(1, VA, PIECE, 10, 1);
	see(lien_view_ps(graph, NULL));
	STRING("partly offloaded", "processes[0].state");
	INTEGER(PIECE, "processes[0].bytes");
	INTEGER(PIECE, "processes[0].offloaded_bytes");
	control_detach(1, VA + PIECE, PIECE, 11, 1);
	control_detach(2, VA, PIECE, 20, 1);
	see(lien_view_ps(graph, NULL));
	STRING("offloaded", "processes[0].state");
	INTEGER(0, "processes[0].bytes");
	INTEGER(0, "processes[0].nccl_bytes");
	INTEGER(2 * PIECE, "processes[0].offloaded_bytes");
	INTEGER(0, "processes[0].devices[0]");
	STRING("partly offloaded", "processes[1].state"); /* cudaMalloc stays */
	free_alloc(2, VA + 4 * PIECE);
	see(lien_view_ps(graph, NULL));
	STRING("offloaded", "processes[1].state");
	INTEGER(PIECE, "processes[1].offloaded_bytes");
}

/* --- mem -------------------------------------------------------------------------------------- */

#define ROW                                                                                        \
	"pid:i owner:s owner_inferred:b kind:s tag:? allocations:i mappings:i bytes:i "            \
	"offload_frees:i "                                                                         \
	"offloaded_bytes:i"

static void expect_row(unsigned i, unsigned pid, const char *owner, const char *kind,
	unsigned allocations, unsigned mappings, uint64_t bytes, uint64_t frees, uint64_t offloaded)
{
	assert_members(at("rows[%u]", i), ROW);
	INTEGER(pid, "rows[%u].pid", i);
	STRING(owner, "rows[%u].owner", i);
	STRING(kind, "rows[%u].kind", i);
	INTEGER(allocations, "rows[%u].allocations", i);
	INTEGER(mappings, "rows[%u].mappings", i);
	INTEGER(bytes, "rows[%u].bytes", i);
	INTEGER(frees, "rows[%u].offload_frees", i);
	INTEGER(offloaded, "rows[%u].offloaded_bytes", i);
}

/* Makes memory of a size of its own, with a tag; NULL: none. */
static void tagged(uint32_t pid, uint64_t handle, const char *tag)
{
	struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = handle * PIECE, .prop = device_prop(0)});

	if (tag)
		strcpy(ev.tagged.tag, tag);
	apply(&ev);
}

static void test_tags(void **state)
{
	(void)state;
	started(1);
	TELL(LIEN_EVENT_PROCESS, 2, .process = {.uid = 7, .complete = 1});
	tagged(1, 10, "a");
	tagged(2, 11, "a");
	tagged(1, 12, "b");
	tagged(1, 13, NULL);
	tagged(1, 14, "\x01");
	tell.flags = LIEN_EVENT_FOUND;
	tagged(1, 15, NULL);
	tell.flags = 0;
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_TAG, 0, NULL));
	LENGTH(4, "rows");
	STRING("tag not known", "rows[0].key");
	INTEGER(29 * PIECE, "rows[0].bytes");
	STRING("a", "rows[1].key"); /* of both users */
	INTEGER(21 * PIECE, "rows[1].bytes");
	STRING("no tag", "rows[2].key");
	STRING("b", "rows[3].key");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(4, "rows");
	assert_true(json_is_null(at("rows[0].tag")));
	INTEGER(42 * PIECE, "rows[0].bytes");
	STRING("a", "rows[1].tag");
	STRING("b", "rows[2].tag");
	INTEGER(2, "rows[3].pid");
}

static void test_mem(void **state)
{
	(void)state;
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	assert_members(
		view, "rows:a bytes:i offload_frees:i host_bytes:i arena_bytes:i left:a unread:a");
	LENGTH(0, "rows");
	LENGTH(0, "left");
	INTEGER(0, "bytes");
	two_ranks();
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(5, "rows");
	expect_row(0, 1, "nccl", "exported", 1, 1, PIECE, PIECE, 0);
	expect_row(1, 1, "nccl", "local", 1, 1, PIECE, PIECE, 0);
	expect_row(2, 2, "nccl", "imported", 1, 2, PIECE, 0, 0);
	expect_row(3, 2, "nccl", "local", 1, 1, PIECE, PIECE, 0);
	expect_row(4, 2, "unknown", "local", 1, 1, 1000, 0, 0);
	INTEGER(3 * PIECE + 1000, "bytes"); /* the imported one once */
	INTEGER(3 * PIECE, "offload_frees");
	LENGTH(1, "left");
	assert_members(at("left[0]"),
		"pid:i reason:s allocations:i bytes:i address:s holder:n other_user:b");
	INTEGER(2, "left[0].pid");
	INTEGER(1, "left[0].allocations");
	INTEGER(1000, "left[0].bytes");
	assert_non_null(strstr(json_string_value(at("left[0].reason")), "cudaMalloc"));
}

static void test_mem_offloaded(void **state)
{
	(void)state;
	two_ranks();
	park(2, VA + PIECE, PIECE);
	park(2, VA + 2 * PIECE, PIECE);
	control_release(2, 21);
	control_detach(1, VA, PIECE, 10, 1);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	expect_row(0, 1, "nccl", "exported", 1, 1, 0, 0, PIECE);
	expect_row(2, 2, "nccl", "imported", 1, 2, 0, 0, PIECE);
	INTEGER(2 * PIECE + 1000, "bytes");
	INTEGER(2 * PIECE, "offload_frees");
}

/* Nobody's any more, but there: in the totals, under its owner, and where it is mapped. */
static void test_mem_dead_owner(void **state)
{
	(void)state;
	two_ranks();
	ended(1);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(4, "rows");
	expect_row(0, 1, "nccl", "dead", 1, 0, PIECE, 0, 0);
	expect_row(1, 2, "nccl", "imported", 1, 2, PIECE, 0, 0);
	INTEGER(2 * PIECE + 1000, "bytes");
	INTEGER(PIECE, "offload_frees");
	LENGTH(2, "left");
	INTEGER(1, "left[0].pid");
	assert_non_null(strstr(json_string_value(at("left[0].reason")), "exited"));
	see(lien_view_ps(graph, NULL));
	LENGTH(1, "dead");
	INTEGER(1, "dead[0].pid");
	STRING("nccl", "dead[0].owner");
	INTEGER(1, "dead[0].allocations");
	INTEGER(PIECE, "dead[0].bytes");
}

/* What is imported from nobody known is device memory all the same, as far as anybody knows. */
static void test_unmatched_import(void **state)
{
	(void)state;
	started(2);
	imported_buffer(2, 20, 99, VA, PIECE);
	see(lien_view_graph(graph, NULL));
	STRING("import", "allocations[0].origin");
	assert_true(json_is_null(at("allocations[0].pid")));
	assert_true(json_is_null(at("allocations[0].device")));
	assert_string_not_equal(json_string_value(at("allocations[0].state")), "in host memory");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(1, "rows");
	STRING("imported", "rows[0].kind");
	INTEGER(PIECE, "rows[0].bytes");
}

static void test_mem_host_memory(void **state)
{
	struct lien_prop prop = device_prop(0);

	(void)state;
	started(1);
	prop.location_type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	create_on(1, 10, PIECE, prop);
	map_rw(1, VA, PIECE, 10);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(1, "rows");
	expect_row(0, 1, "unknown", "host", 1, 1, PIECE, 0, 0);
	INTEGER(0, "bytes");
	INTEGER(PIECE, "host_bytes");
	LENGTH(0, "left");
	see(lien_view_graph(graph, NULL));
	STRING("in host memory", "allocations[0].state");
	assert_true(json_is_null(at("allocations[0].device")));
}

static void test_mem_unreachable(void **state)
{
	(void)state;
	two_ranks();
	process(1)->presence = LIEN_CONTROL_NONE;
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	INTEGER(3 * PIECE + 1000, "bytes");
	INTEGER(PIECE, "offload_frees");
	INTEGER(0, "rows[0].offload_frees");
	LENGTH(2, "left");
}

static void test_mem_many(void **state)
{
	(void)state;
	for (unsigned pid = 1; pid <= 40; pid++) {
		started(pid);
		for (unsigned i = 0; i < 30; i++) {
			library(pid, IN_TORCH + i * MIB, i % 2 ? "liba.so" : "libb.so");
			tell.caller = IN_TORCH + i * MIB;
			buffer(pid, 10 + i, VA + i * PIECE, PIECE);
			if (i % 3)
				export(pid, 10 + i, pid * 100 + i);
			tell.caller = 0;
		}
	}
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(4 * 40, "rows");
	for (unsigned i = 0; i < 4 * 40; i++) {
		INTEGER(1 + i / 4, "rows[%u].pid", i);
		STRING(i % 4 < 2 ? "a" : "b", "rows[%u].owner", i);
		STRING(i % 2 ? "local" : "exported", "rows[%u].kind", i);
		INTEGER(i % 2 ? 5 : 10, "rows[%u].allocations", i);
	}
	INTEGER(40 * 30 * PIECE, "bytes");
}

/* --- mem by ----------------------------------------------------------------------------------- */

#define BY_ROW "key:s kind:s allocations:i mappings:i bytes:i offload_frees:i offloaded_bytes:i"

static void expect_by(unsigned i, const char *key, const char *kind, unsigned allocations,
	unsigned mappings, uint64_t bytes, uint64_t frees)
{
	STRING(key, "rows[%u].key", i);
	STRING(kind, "rows[%u].kind", i);
	INTEGER(allocations, "rows[%u].allocations", i);
	INTEGER(mappings, "rows[%u].mappings", i);
	INTEGER(bytes, "rows[%u].bytes", i);
	INTEGER(frees, "rows[%u].offload_frees", i);
}

static void host_alloc(uint32_t pid, uint64_t va, uint64_t bytes)
{
	TELL(LIEN_CALL_CU_HOST_ALLOC, pid, .alloc = {va, bytes, .device = 0});
}

static void test_mem_host_kinds(void **state)
{
	struct lien_prop prop = device_prop(0);

	(void)state;
	two_ranks();
	host_alloc(1, VA + 8 * PIECE, 5 * PIECE);
	TELL(LIEN_CALL_CU_HOST_REGISTER, 1, .alloc = {VA + 16 * PIECE, 300, .device = 0});
	prop.location_type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	create_on(1, 30, PIECE, prop);
	export(1, 30, 77);
	imported_buffer(2, 31, 77, VA + 9 * PIECE, PIECE);
	TELL(LIEN_CALL_CU_MULTICAST_CREATE, 1,
		.multicast = {.handle = 40, .bytes = 64 * PIECE, .device = 1});
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(9, "rows");
	expect_row(2, 1, "unknown", "host", 1, 0, PIECE, 0, 0);
	expect_row(3, 1, "unknown", "pinned host", 1, 1, 5 * PIECE, 0, 0);
	expect_row(4, 1, "unknown", "registered host", 1, 1, 300, 0, 0);
	expect_row(8, 2, "unknown", "local", 1, 1, 1000, 0, 0);
	expect_row(7, 2, "unknown", "imported host", 1, 1, PIECE, 0, 0);
	INTEGER(6 * PIECE + 300, "host_bytes");
	INTEGER(3 * PIECE + 1000, "bytes");
	INTEGER(3 * PIECE, "offload_frees");
	LENGTH(1, "left");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_DEVICE, 0, NULL));
	LENGTH(6, "rows");
	expect_by(0, "host memory", "pinned host", 1, 1, 5 * PIECE, 0);
	INTEGER(6 * PIECE + 300, "host_bytes");
	INTEGER(3 * PIECE + 1000, "bytes");
}

/* What lien pinned for what is offloaded, which is shown as offloaded. */
static void test_mem_arena(void **state)
{
	(void)state;
	started(1);
	library(1, IN_TORCH, "liblien-control.so");
	tell.caller = IN_TORCH + 0x10;
	tell.flags = LIEN_EVENT_CONTROL;
	TELL(LIEN_CALL_CU_HOST_REGISTER, 1, .alloc = {VA, 64 * MIB, .device = 0});
	tell.flags = 0;
	tell.caller = 0;
	host_alloc(1, VA + 128 * MIB, 500);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(1, "rows");
	INTEGER(500, "host_bytes");
	INTEGER(64 * MIB, "arena_bytes");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_OWNER, 0, NULL));
	LENGTH(1, "rows");
	INTEGER(64 * MIB, "arena_bytes");
}

/* Managed, pitched and pool memory is the devices'; legacy IPC makes exports and imports of it. */
static void test_mem_plain_shapes(void **state)
{
	const uint8_t key[LIEN_KEY_BYTES] = "a legacy handle";
	struct lien_event get = EVENT(LIEN_CALL_CU_IPC_GET, 1, .key = {.va = VA}),
			  open = EVENT(LIEN_CALL_CU_IPC_OPEN, 2, .key = {.va = VA + 32 * PIECE});

	(void)state;
	started(1);
	started(2);
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {VA, 100, .device = 0});
	TELL(LIEN_CALL_CU_MEM_ALLOC_PITCH, 1, .alloc = {VA + PIECE, 200, .device = 0});
	TELL(LIEN_CALL_CU_MEM_ALLOC_MANAGED, 1, .alloc = {VA + 2 * PIECE, 300, .device = 0});
	TELL(LIEN_CALL_CU_MEM_ALLOC_ASYNC, 1, .alloc = {VA + 3 * PIECE, 400, .device = 0});
	get.key.va = VA;
	memcpy(get.key.key, key, sizeof(key));
	memcpy(open.key.key, key, sizeof(key));
	apply(&get);
	apply(&open);
	assert_nothing_odd();
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	LENGTH(3, "rows");
	expect_row(0, 1, "unknown", "exported", 1, 1, 100, 0, 0);
	expect_row(1, 1, "unknown", "local", 3, 3, 900, 0, 0);
	expect_row(2, 2, "unknown", "imported", 1, 1, 100, 0, 0);
	INTEGER(1000, "bytes");
	INTEGER(0, "host_bytes");
}

static void test_by_owner(void **state)
{
	(void)state;
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_OWNER, 0, NULL));
	assert_members(
		view, "by:s rows:a bytes:i offload_frees:i host_bytes:i arena_bytes:i unread:a");
	STRING("owner", "by");
	LENGTH(0, "rows");
	two_ranks();
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_OWNER, 0, NULL));
	LENGTH(2, "rows");
	assert_members(at("rows[0]"), BY_ROW);
	expect_by(0, "nccl", "device", 3, 5, 3 * PIECE, 3 * PIECE);
	expect_by(1, "unknown", "device", 1, 1, 1000, 0);
	INTEGER(3 * PIECE + 1000, "bytes");
	INTEGER(3 * PIECE, "offload_frees");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_OWNER, 2, NULL));
	expect_by(0, "nccl", "device", 1, 1, PIECE, PIECE);
	INTEGER(PIECE + 1000, "bytes");
}

static void test_by_rank(void **state)
{
	(void)state;
	two_ranks();
	comm_init(2, 0x300, 0xbb, 3, 4); /* larger */
	comm_init(2, 0x400, 0xcc, 2, 4); /* as large, younger */
	started(3);
	alloc(3, VA, 7 * PIECE);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_RANK, 0, NULL));
	LENGTH(4, "rows");
	assert_members(at("rows[0]"), BY_ROW " pid:i");
	expect_by(0, "process 3, no communicator", "device", 1, 1, 7 * PIECE, 0);
	expect_by(1, "rank 0/2 of 00000000000000aa", "device", 2, 2, 2 * PIECE, 2 * PIECE);
	expect_by(2, "rank 3/4 of 00000000000000bb", "device", 2, 2, PIECE + 1000, PIECE);
	expect_by(3, "rank 3/4 of 00000000000000bb", "imported", 1, 2, PIECE, 0);
	INTEGER(2, "rows[3].pid");
	INTEGER(10 * PIECE + 1000, "bytes");
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_RANK, 2, NULL));
	LENGTH(2, "rows");
	ended(1);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_RANK, 0, NULL));
	expect_by(3, "rank 3/4 of 00000000000000bb", "imported", 1, 2, PIECE, 0);
	expect_by(1, "rank 3/4 of 00000000000000bb", "device", 2, 2, PIECE + 1000, PIECE);
	expect_by(2, "process 1, which has exited", "device", 1, 0, PIECE, 0);
}

static void scoped_buffer(uint32_t pid, uint64_t handle, uint64_t scope, unsigned flags)
{
	struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, pid,
		.create = {.handle = handle, .bytes = PIECE, .prop = device_prop(0)});

	ev.scope = scope;
	ev.flags |= flags;
	ev.outer = LIEN_CALL_NCCL_INIT_RANK;
	apply(&ev);
}

static void test_by_comm(void **state)
{
	(void)state;
	started(1);
	comm_init(1, 0x100, 0xaa, 0, 2);
	comm_init(1, 0x200, 0xbb, 1, 2);
	comm_init(1, 0x300, 0xcc, 1, 2);
	for (unsigned i = 0; i < 4; i++)
		scoped_buffer(1, 10 + i, 0x100, i ? 0 : LIEN_EVENT_INFERRED);
	scoped_buffer(1, 20, 0x200, 0);
	scoped_buffer(1, 21, 0x300, 0);
	scoped_buffer(1, 22, 0, 0);
	alloc(1, VA, 1000);
	comm_destroy(1, 0x200);
	comm_destroy(1, 0x300);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_COMM, 0, NULL));
	LENGTH(3, "rows");
	assert_members(at("rows[0]"), BY_ROW " inferred_bytes:i");
	expect_by(0, "rank 0/2 of 00000000000000aa", "device", 4, 0, 4 * PIECE, 4 * PIECE);
	INTEGER(PIECE, "rows[0].inferred_bytes");
	expect_by(1, "destroyed communicator", "device", 2, 0, 2 * PIECE, 2 * PIECE); /* both */
	INTEGER(0, "rows[1].inferred_bytes");
	expect_by(2, "no communicator", "device", 2, 1, PIECE + 1000, PIECE);
}

static const struct lien_ordinals *ordinals_of(uint8_t first, uint8_t second)
{
	static struct lien_ordinals made[4];
	static unsigned used;
	struct lien_ordinals *ordinals = &made[used++ % COUNT(made)];

	*ordinals = (struct lien_ordinals){.by_driver = true, .count = 2};
	ordinals->uuid[0].bytes[0] = first;
	ordinals->uuid[1].bytes[0] = second;
	return ordinals;
}

#define UUID(first) "GPU-" first "000000-0000-0000-0000-000000000000"

static void test_by_device(void **state)
{
	struct lien_node_process used = {2, 100 * PIECE};
	struct lien_node_device device = {.uuid = {{0xb0}},
		.index = 5,
		.total = 1,
		.used = LIEN_BYTES_UNKNOWN,
		.processes = &used,
		.processes_count = 1};
	struct lien_node node = {.nvml = true, .devices = &device, .count = 1};

	(void)state;
	two_ranks(); /* 1: twice device 0; 2: device 1, and some on one that is not known */
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_DEVICE, 0, NULL));
	LENGTH(3, "rows");
	expect_by(0, "device 0 of process 1", "device", 2, 4, 2 * PIECE, 2 * PIECE);
	expect_by(1, "device 1 of process 2", "device", 1, 1, PIECE, PIECE);
	expect_by(2, "unknown device of process 2", "device", 1, 1, 1000, 0);
	process(1)->ordinals = ordinals_of(0xb0, 0xc0);
	process(2)->ordinals = ordinals_of(0xc0, 0xb0);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_DEVICE, 0, &node));
	LENGTH(2, "rows");
	expect_by(0, "GPU 5 (" UUID("b0") ")", "device", 3, 5, 3 * PIECE, 3 * PIECE);
	see(lien_view_gpus(graph, NULL, &node, true));
	assert_int_equal(json_array_size(view), 3);
	STRING(UUID("b0"), "[0].uuid");
	INTEGER(5, "[0].index");
	INTEGER(1, "[0].total_bytes");
	assert_true(json_is_null(at("[0].used_bytes")));
	LENGTH(2, "[0].processes");
	assert_members(at("[0].processes[1]"),
		"pid:i ordinal:i by:s traced_bytes:i total_bytes:i unexplained_bytes:i");
	INTEGER(1, "[0].processes[1].ordinal");
	INTEGER(PIECE, "[0].processes[1].traced_bytes");
	INTEGER(99 * PIECE, "[0].processes[1].unexplained_bytes");
	STRING(UUID("c0"), "[1].uuid");
	assert_true(json_is_null(at("[1].index")));
	assert_true(json_is_null(at("[2].uuid")));
	LENGTH(1, "[2].processes");
	INTEGER(1000, "[2].processes[0].traced_bytes");
	see(lien_view_gpus(graph, NULL, &node, false));
	assert_int_equal(json_array_size(view), 2);
	assert_members(at("[0].processes[0]"), "pid:i ordinal:i by:s");
	process(1)->ordinals = process(2)->ordinals = NULL;
}

static void test_by_callsite(void **state)
{
	const struct lien_site *site;

	(void)state;
	started(1);
	library(1, IN_TORCH, "libtorch_cuda.so");
	tell.caller = IN_TORCH + 0x123;
	alloc(1, VA, 1000);
	alloc(1, VA + PIECE, 1000);
	tell.caller = IN_TORCH + 0x456;
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	alloc(1, VA + 2 * PIECE, 500);
	tell.outer = 0;
	tell.caller = 0x1234;
	alloc(1, VA + 3 * PIECE, 10);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_CALLSITE, 0, NULL));
	LENGTH(3, "rows");
	assert_members(at("rows[0]"), BY_ROW);
	expect_by(0, "cuMemAlloc_v2 from libtorch_cuda.so+0x123", "device", 2, 2, 2000, 0);
	expect_by(1, "ncclCommInitRank from libtorch_cuda.so+0x456", "device", 1, 1, 500, 0);
	expect_by(2, "cuMemAlloc_v2 from 0x1234", "device", 1, 1, 10, 0);
	site = allocation_at(1, VA)->site;
	assert_int_equal(lien_graph_name_site(graph, site, "c10::f\n", 0x23), 0);
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_CALLSITE, 0, NULL));
	STRING("cuMemAlloc_v2 from libtorch_cuda.so c10::f?+0x23", "rows[0].key");
}

/* More keys than one table holds. */
static void test_by_many(void **state)
{
	(void)state;
	started(1);
	for (unsigned i = 0; i < 1000; i++) {
		tell.caller = 0x1000 + i % 500;
		alloc(1, VA + i * PIECE, 1 + i % 500);
	}
	see(lien_view_mem(graph, NULL, LIEN_MEM_BY_CALLSITE, 0, NULL));
	LENGTH(500, "rows");
	for (unsigned i = 0; i < 500; i++) {
		INTEGER(2 * (500 - i), "rows[%u].bytes", i);
		INTEGER(2, "rows[%u].allocations", i);
	}
}

/* The graph says once of each place that it has appeared. */
static void count_site(void *context, struct lien_process *of, const struct lien_site *site)
{
	assert_int_equal(of->pid, 1);
	assert_non_null(site->library);
	++*(unsigned *)context;
}

static void test_sites_are_told_once(void **state)
{
	unsigned count = 0;

	(void)state;
	lien_graph_on_site(graph, count_site, &count);
	started(1);
	for (unsigned i = 0; i < 6; i++) {
		tell.caller = 0x1000 + i % 3;
		alloc(1, VA + i * PIECE, 10);
	}
	assert_int_equal(count, 3);
}

/* --- holders ---------------------------------------------------------------------------------- */

static unsigned count_holders(const char *kind, unsigned pid)
{
	json_t *holder;
	unsigned n = 0;
	size_t i;

	json_array_foreach (at("holders"), i, holder)
		n += !strcmp(json_string_value(json_object_get(holder, "kind")), kind) &&
		     json_integer_value(json_object_get(holder, "pid")) == pid;
	return n;
}

static json_t *holders(uint32_t pid, uint64_t address)
{
	char error[200] = "untouched";
	json_t *made =
		lien_view_holders(graph, NULL, pid, address, &no_files, error, sizeof(error));

	assert_string_equal(error, "");
	return see(made);
}

static void test_holders(void **state)
{
	static const struct {
		const char *kind, *members;
	} kinds[] = {
		{"handle", "pid:i kind:s handle:s references:i"},
		{"import", "pid:i kind:s handle:s references:i"},
		{"mapping", "pid:i kind:s address:s bytes:i access:a"},
		{"export", "pid:i kind:s exports:i by:s"},
		{"registration", "pid:i kind:s group:s rank:i address:s bytes:i window:b"},
		{"network card", "pid:i kind:s card:? address:s bytes:i"},
	};
	json_t *holder;
	size_t i, k;

	(void)state;
	two_ranks();
	comm_register(1, 0x100, VA + 100, 10, 7);
	comm_register(1, 0x100, VA + PIECE, 10, 8); /* of another one */
	window_register(2, 0x200, VA, 2 * PIECE, 9);
	TELL(LIEN_CALL_IBV_REG_MR, 2, .reg = {0, VA + 2 * PIECE, PIECE, 0x500});
	for (unsigned from = 0; from < 3; from++) {
		/* The owner's, the importer's, and its alias. */
		holders(from ? 2 : 1, VA + from * PIECE + PIECE - 1);
		assert_members(view, "allocation:o holders:a");
		assert_members(at("allocation"), "id:i pid:i device:i bytes:i owner:s "
						 "owner_inferred:b tag:n arena:b origin:s "
						 "state:s alive:b communicator:? movable:b "
						 "reason:?");
		INTEGER(1, "allocation.pid");
		INTEGER(0, "allocation.device");
		INTEGER(PIECE, "allocation.bytes");
		STRING("nccl", "allocation.owner");
		STRING("cuMemCreate", "allocation.origin");
		STRING("on the device", "allocation.state");
		assert_true(json_is_true(at("allocation.alive")));
		LENGTH(1 + 1 + 1 + 1 + 2 + 1 + 1 + 1, "holders");
		assert_int_equal(count_holders("handle", 1), 1);
		assert_int_equal(count_holders("import", 2), 1);
		assert_int_equal(count_holders("mapping", 1), 1);
		assert_int_equal(count_holders("mapping", 2), 2);
		assert_int_equal(count_holders("export", 1), 1);
		assert_int_equal(count_holders("registration", 1), 1);
		assert_int_equal(count_holders("registration", 2), 1);
		assert_int_equal(count_holders("network card", 2), 1);
	}
	json_array_foreach (at("holders"), i, holder) {
		const char *kind = json_string_value(json_object_get(holder, "kind"));

		for (k = 0; k < COUNT(kinds) && strcmp(kinds[k].kind, kind);)
			k++;
		assert_true(k < COUNT(kinds));
		assert_members(holder, kinds[k].members);
		if (!strcmp(kind, "handle"))
			assert_string_equal(
				json_string_value(json_object_get(holder, "handle")), "0xa");
		if (!strcmp(kind, "mapping")) {
			json_t *place = json_array_get(json_object_get(holder, "access"), 0);

			assert_members(place, "device:i access:s");
			assert_string_equal(
				json_string_value(json_object_get(place, "access")), "read-write");
		}
	}
	assert_true(json_is_false(at("allocation.movable")));
	assert_non_null(strstr(json_string_value(at("allocation.reason")), "network card"));
	holders(1, VA + PIECE);
	assert_true(json_is_true(at("allocation.movable")));
	assert_true(json_is_null(at("allocation.reason")));
	LENGTH(3, "holders");
	holders(2, VA + 4 * PIECE + 999);
	STRING("cuMemAlloc", "allocation.origin");
	assert_true(json_is_null(at("allocation.device")));
	assert_true(json_is_false(at("allocation.movable")));
}

static void test_holders_states(void **state)
{
	(void)state;
	two_ranks();
	release(1, 10);
	holders(1, VA);
	assert_int_equal(count_holders("handle", 1), 0); /* a name, but it holds nothing */
	park(2, VA + PIECE, PIECE);
	park(2, VA + 2 * PIECE, PIECE);
	control_release(2, 21);
	control_detach(1, VA, PIECE, 10, 0);
	holders(2, VA + PIECE);
	STRING("offloaded", "allocation.state");
	assert_int_equal(count_holders("offloaded mapping", 1), 1);
	assert_int_equal(count_holders("offloaded mapping", 2), 2);
	assert_int_equal(count_holders("export", 1), 1);
	LENGTH(4, "holders");
	ended(1);
	holders(2, VA + PIECE);
	assert_true(json_is_false(at("allocation.alive")));
	INTEGER(1, "allocation.pid");
	assert_non_null(strstr(json_string_value(at("allocation.reason")), "exited"));
}

static void test_holders_errors(void **state)
{
	static const struct {
		uint32_t pid;
		uint64_t address;
		const char *words[2];
	} cases[] = {
		{77, VA, {"process 77", "lien ps"}},
		{1, VA - 1, {"0x7dffffffffff", "process 1"}},
		{1, VA + 2 * PIECE, {"0x7e0000400000", "lien graph"}},
		{1, 0, {"0x0", "process 1"}},
		{1, ~0ull, {"0xffffffffffffffff", "process 1"}},
	};
	char error[300];

	(void)state;
	two_ranks();
	for (unsigned i = 0; i < COUNT(cases); i++) {
		error[0] = '\0';
		assert_null(lien_view_holders(graph, NULL, cases[i].pid, cases[i].address,
			&no_files, error, sizeof(error)));
		for (unsigned w = 0; w < 2; w++)
			if (!strstr(error, cases[i].words[w]))
				fail_msg("\"%s\" is not in \"%s\"", cases[i].words[w], error);
		assert_null(strchr(error, '\n'));
	}
}

/* --- graph ------------------------------------------------------------------------------------ */

static void test_graph_members(void **state)
{
	(void)state;
	two_ranks();
	comm_register(2, 0x200, VA, PIECE, 7);
	window_register(2, 0x200, VA, PIECE, 8);
	set_access(1, VA, PIECE, 3, CU_MEM_ACCESS_FLAGS_PROT_READ);
	TELL(LIEN_CALL_CU_MEM_SET_ACCESS, 1,
		.access = {.va = VA,
			.bytes = PIECE,
			.count = 1,
			.access = {{CU_MEM_LOCATION_TYPE_HOST_NUMA, 1, 3}}});
	release(1, 11);
	create(1, 12, PIECE);
	export(1, 12, 6);
	release(1, 12); /* only in flight: not shown */
	see(lien_view_graph(graph, NULL));
	assert_members(view, "processes:a allocations:a communicators:a");
	LENGTH(2, "processes");
	LENGTH(4, "allocations");
	for (unsigned i = 0; i < 3; i++) {
		assert_members(at("allocations[%u]", i), "id:i pid:i device:i bytes:i owner:s "
							 "owner_inferred:b tag:n arena:b origin:s "
							 "state:s "
							 "exports:i alive:b "
							 "communicator:? "
							 "handles:a mappings:a");
		assert_members(
			at("allocations[%u].mappings[0]", i), "pid:i address:s bytes:i access:a");
	}
	INTEGER(1, "allocations[0].exports");
	LENGTH(2, "allocations[0].handles");
	LENGTH(0, "allocations[1].handles"); /* released */
	LENGTH(3, "allocations[0].mappings");
	for (unsigned i = 0; i < 2; i++) {
		assert_members(at("allocations[0].handles[%u]", i),
			"pid:i handle:s references:i imported:b");
		assert_int_equal(json_is_true(at("allocations[0].handles[%u].imported", i)),
			json_integer_value(at("allocations[0].handles[%u].pid", i)) == 2);
	}
	for (unsigned i = 0; i < 3; i++) {
		if (json_integer_value(at("allocations[0].mappings[%u].pid", i)) == 2)
			continue;
		STRING("0x7e0000000000", "allocations[0].mappings[%u].address", i);
		LENGTH(3, "allocations[0].mappings[%u].access", i);
		assert_members(at("allocations[0].mappings[%u].access[0]", i), "device:i access:s");
		STRING("read", "allocations[0].mappings[%u].access[1].access", i);
		INTEGER(3, "allocations[0].mappings[%u].access[1].device", i);
		assert_members(at("allocations[0].mappings[%u].access[2]", i), "host:i access:s");
	}
	LENGTH(2, "communicators");
	assert_members(
		at("communicators[1]"), "group:s pid:i address:s rank:i nranks:i registrations:a");
	STRING("0x200", "communicators[1].address");
	LENGTH(2, "communicators[1].registrations");
	assert_members(at("communicators[1].registrations[0]"), "address:s bytes:i window:b");
	assert_true(json_is_true(at("communicators[1].registrations[0].window")) !=
		    json_is_true(at("communicators[1].registrations[1].window")));
	LENGTH(0, "communicators[0].registrations");
}

/* The group is the start of the unique id, in all processes. */
static void test_group_names(void **state)
{
	(void)state;
	started(1);
	TELL(LIEN_CALL_NCCL_INIT_RANK_CONFIG, 1,
		.comm = {.comm = 1,
			.nranks = 1,
			.id = {0x33, 0xa1, 0xf0, 0xb7, 0xe0, 0xd2, 0xc1, 0x5a, 0xff}});
	see(lien_view_ps(graph, NULL));
	STRING("5ac1d2e0b7f0a133", "processes[0].ranks[0].group");
}

/* --- plans and results ------------------------------------------------------------------------ */

#define PART "pid:i allocations:i imports:i mappings:i bytes:i discarded_bytes:i freed_bytes:? ms:o"

static void test_plan(void **state)
{
	struct lien_selection all = {.owner = NULL};
	struct lien_plan plan = {};
	char error[200];

	(void)state;
	assert_int_equal(lien_plan_offload(graph, &all, &plan, error, sizeof(error)), 0);
	see(lien_view_plan(&plan));
	lien_plan_clear(&plan);
	STRING("nothing to do", "outcome");
	two_ranks();
	assert_int_equal(lien_plan_offload(graph, &all, &plan, error, sizeof(error)), 0);
	see(lien_view_plan(&plan));
	lien_plan_clear(&plan);
	assert_members(view,
		"outcome:s bytes:i discarded_bytes:i inferred_bytes:i nameless_bytes:i ms:r "
		"processes:a left:a unknown:a idle:a free:n");
	LENGTH(0, "idle");
	STRING("dry run", "outcome");
	INTEGER(3 * PIECE, "bytes");
	assert_members(at("processes[1]"), PART);
	INTEGER(1, "processes[1].allocations");
	INTEGER(1, "processes[1].imports");
	INTEGER(3, "processes[1].mappings");
	INTEGER(PIECE, "processes[1].bytes");
	assert_true(json_is_null(at("processes[1].freed_bytes")));
	INTEGER(1000, "left[0].bytes");
	all.free = PIECE;
	assert_int_equal(lien_plan_offload(graph, &all, &plan, error, sizeof(error)), 0);
	see(lien_view_plan(&plan));
	lien_plan_clear(&plan);
	assert_members(at("free[0]"), "gpu:n uuid:n pid:i device:i asked_bytes:i bytes:i "
				      "movable_bytes:i allocations:i");
	INTEGER(PIECE, "free[0].asked_bytes");
	INTEGER(PIECE, "free[0].bytes");
	INTEGER(1, "free[0].allocations");
}

static struct lien_wire_header last_order;

static int note_order(void *context, uint32_t pid, const struct lien_wire_header *order,
	const void *body, const int *fds, unsigned fds_count)
{
	(void)context, (void)pid, (void)body, (void)fds, (void)fds_count;
	last_order = *order;
	return 0;
}

static void ignore_progress(void *context, enum lien_phase phase, unsigned done, unsigned of)
{
	(void)context, (void)phase, (void)done, (void)of;
}

static void ignore_done(void *context, struct lien_transaction *transaction)
{
	(void)transaction;
	*(bool *)context = true;
}

static uint64_t two_ms_later(void *context)
{
	static uint64_t time;

	(void)context;
	return time += 2000000;
}

static const char *never(void *context, uint32_t pid)
{
	(void)context;
	(void)pid;
	return NULL;
}

static void test_result(void **state)
{
	struct lien_selection all = {.owner = NULL};
	struct lien_transaction_process process;
	struct lien_transaction_result result;
	struct lien_transaction *transaction;
	struct lien_shortfalls shortfalls;
	struct lien_plan plan = {};
	bool done = false;
	struct lien_transaction_ops ops = {.send = note_order,
		.progress = ignore_progress,
		.done = ignore_done,
		.not_now = never,
		.now_ns = two_ms_later,
		.context = &done};
	char error[200];

	(void)state;
	started(1);
	buffer(1, 10, VA, PIECE);
	alloc(1, VA + PIECE, 77);
	assert_int_equal(lien_plan_offload(graph, &all, &plan, error, sizeof(error)), 0);
	assert_int_equal(lien_transaction_offload(&transaction, &plan, 0, 0, 1, &ops), 0);
	lien_transaction_start(transaction);
	while (!done) {
		struct lien_wire_header reply = {.length = sizeof(reply),
			.type = last_order.type,
			.flags = LIEN_WIRE_LAST,
			.seq = last_order.seq,
			.ns = 1500000,
			.arg2 = last_order.type == LIEN_WIRE_DROP ? 9 * PIECE : 8 * PIECE};

		lien_transaction_reply(transaction, 1, &reply, NULL, NULL, 0);
	}
	see(lien_view_result(transaction, &plan, NULL));
	assert_members(view,
		"outcome:s bytes:i discarded_bytes:i inferred_bytes:i nameless_bytes:i "
		"verified_bytes:i let_in:i guesses:i gate_ms:r rest_ms:r ms:r processes:a left:a "
		"unknown:a idle:a free:n lazy:n short:a");
	LENGTH(0, "short");
	STRING("done", "outcome");
	INTEGER(PIECE, "bytes");
	assert_true(json_real_value(at("ms")) >= 2);
	assert_members(at("processes[0]"), PART " verified_bytes:i");
	INTEGER(PIECE, "processes[0].freed_bytes");
	assert_members(at("processes[0].ms"), "drain:r check:r save:r unmap:r drop:r");
	assert_true(json_real_value(at("processes[0].ms.save")) == 1.5);
	INTEGER(77, "left[0].bytes");
	lien_shortfalls_find(&shortfalls, graph, &plan, lien_transaction_result(transaction));
	assert_int_equal(shortfalls.count, 0);
	result = *lien_transaction_result(transaction);
	process = result.processes[0];
	process.bytes = 4 * PIECE;
	result.processes = &process;
	lien_shortfalls_find(&shortfalls, graph, &plan, &result);
	see(lien_view_result(transaction, NULL, &shortfalls));
	assert_members(at("short[0]"), "pid:i processes:i dropped_bytes:i missing_bytes:i");
	INTEGER(3 * PIECE, "short[0].missing_bytes");
	LENGTH(0, "left");
	lien_transaction_free(transaction);
	lien_plan_clear(&plan);
	/* A restore with nobody to restore. */
	done = false;
	assert_int_equal(lien_transaction_new(&transaction, LIEN_TRANSACTION_RESTORE,
				 (uint32_t[]){1}, 0, 1, &ops),
		0);
	lien_transaction_start(transaction);
	assert_true(done);
	see(lien_view_result(transaction, NULL, NULL));
	STRING("nothing to do", "outcome");
	LENGTH(0, "processes");
	lien_transaction_free(transaction);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		VIEW(test_ps),
		VIEW(test_ps_import_once),
		VIEW(test_ps_arena),
		VIEW(test_ps_states),
		VIEW(test_mem),
		VIEW(test_tags),
		VIEW(test_mem_offloaded),
		VIEW(test_mem_dead_owner),
		VIEW(test_unmatched_import),
		VIEW(test_mem_host_memory),
		VIEW(test_mem_unreachable),
		VIEW(test_mem_many),
		VIEW(test_mem_host_kinds),
		VIEW(test_mem_arena),
		VIEW(test_mem_plain_shapes),
		VIEW(test_by_owner),
		VIEW(test_by_rank),
		VIEW(test_by_comm),
		VIEW(test_by_device),
		VIEW(test_by_callsite),
		VIEW(test_by_many),
		VIEW(test_sites_are_told_once),
		VIEW(test_holders),
		VIEW(test_holders_states),
		VIEW(test_holders_errors),
		VIEW(test_graph_members),
		VIEW(test_group_names),
		VIEW(test_plan),
		VIEW(test_result),
	};

	return cmocka_run_group_tests_name("views", tests, NULL, NULL);
}
