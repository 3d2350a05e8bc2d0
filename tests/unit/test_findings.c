// SPDX-License-Identifier: BSD-2-Clause
/* lien_findings(): each kind is found where it is, and not where it is not. */
#include "events.h"
#include "agent/views/views.h"

static struct lien_view_source input;
static json_t *answer;

static int begin(void **state)
{
	memset(&input, 0, sizeof(input));
	answer = NULL;
	return setup(state);
}

static int end(void **state)
{
	json_decref(answer);
	return teardown(state);
}

#define FINDS(name) cmocka_unit_test_setup_teardown(name, begin, end)

static const json_t *find(const char *kind, uint32_t pid)
{
	const json_t *list, *entry;
	size_t i;

	json_decref(answer);
	input.graph = graph;
	answer = lien_findings(&input);
	list = json_object_get(answer, "findings");
	assert_true(json_is_array(list));
	json_array_foreach (list, i, entry)
		if (!strcmp(json_string_value(json_object_get(entry, "kind")), kind) &&
			json_integer_value(json_object_get(entry, "pid")) == pid)
			return entry;
	return NULL;
}

static size_t all_findings(void)
{
	find("", 0);
	return json_array_size(json_object_get(answer, "findings"));
}

static void assert_found(
	const char *kind, uint32_t pid, const char *level, uint64_t bytes, uint64_t count)
{
	const json_t *entry = find(kind, pid);

	assert_non_null(entry);
	assert_string_equal(json_string_value(json_object_get(entry, "level")), level);
	assert_int_equal(json_integer_value(json_object_get(entry, "bytes")), bytes);
	assert_int_equal(json_integer_value(json_object_get(entry, "count")), count);
	assert_true(json_string_length(json_object_get(entry, "text")) > 0);
	assert_true(json_string_length(json_object_get(entry, "remedy")) > 0);
	assert_true(json_array_size(json_object_get(entry, "evidence")) <= 8);
}

static void made_and_shared(uint32_t owner, uint32_t importer, unsigned i)
{
	create(owner, 100 + i, PIECE);
	TELL(LIEN_CALL_CU_MEM_MAP, owner,
		.map = {.va = VA + i * PIECE, .bytes = PIECE, .handle = 100 + i});
	TELL(LIEN_CALL_CU_MEM_EXPORT, owner,
		.share = {.handle = 100 + i, .share = 1 + i, .handle_type = 1, .fd = 9});
	TELL(LIEN_CALL_CU_MEM_IMPORT, importer,
		.share = {.handle = 200 + i, .share = 1 + i, .handle_type = 1, .fd = 9});
	TELL(LIEN_CALL_CU_MEM_MAP, importer,
		.map = {.va = VA + i * PIECE, .bytes = PIECE, .handle = 200 + i});
}

static void test_nothing(void **state)
{
	unsigned i;

	(void)state;
	assert_int_equal(all_findings(), 0);
	started(1);
	started(2);
	for (i = 0; i < 3; i++)
		made_and_shared(1, 2, i);
	assert_int_equal(all_findings(), 0);
	assert_true(json_is_false(json_object_get(answer, "open_files_known")));
}

static void test_held_by_the_dead(void **state)
{
	unsigned i;

	(void)state;
	started(1);
	started(2);
	for (i = 0; i < 10; i++)
		made_and_shared(1, 2, i);
	ended(1);
	assert_found("held by the dead", 2, "leak", 10 * PIECE, 10);
	ended(2);
	assert_int_equal(all_findings(), 0);
}

static void test_import_not_mapped(void **state)
{
	(void)state;
	started(1);
	started(2);
	made_and_shared(1, 2, 0);
	RELEASE(LIEN_CALL_CU_MEM_UNMAP, 2, .range = {VA, PIECE});
	assert_found("import not mapped", 2, "warning", PIECE, 1);
	RELEASE(LIEN_CALL_CU_MEM_RELEASE, 2, .release = {200});
	assert_int_equal(all_findings(), 0);
}

static void communicator(uint32_t pid, uint64_t address)
{
	struct lien_event ev = EVENT(LIEN_CALL_NCCL_INIT_RANK, pid,
		.comm = {.comm = address, .nranks = 2, .rank = pid - 1, .device = -1});

	ev.comm.id[0] = 7;
	apply(&ev);
}

static void test_registered_but_freed(void **state)
{
	(void)state;
	started(1);
	communicator(1, 0xc0);
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {VA, 4096, .device = 0});
	TELL(LIEN_CALL_NCCL_REGISTER, 1, .reg = {0xc0, VA, 4096, 0x11});
	TELL(LIEN_CALL_IBV_REG_MR, 1, .reg = {0, VA, 4096, 0x12});
	assert_int_equal(all_findings(), 0);
	RELEASE(LIEN_CALL_CU_MEM_FREE, 1, .range = {VA});
	assert_found("registered but freed", 1, "leak", 4096, 1);
	assert_int_equal(all_findings(), 2); /* the card's as well */
	RELEASE(LIEN_CALL_NCCL_DEREGISTER, 1, .reg = {.comm = 0xc0, .handle = 0x11});
	RELEASE(LIEN_CALL_IBV_DEREG_MR, 1, .reg = {.handle = 0x12});
	assert_int_equal(all_findings(), 0);
}

/* Of a process that is not known whole, the memory may be there. */
static void test_registered_unknown(void **state)
{
	(void)state;
	started(1);
	communicator(1, 0xc0);
	TELL(LIEN_CALL_NCCL_REGISTER, 1, .reg = {0xc0, VA, 4096, 0x11});
	TELL(LIEN_EVENT_LOST, 1, .lost = {3});
	assert_null(find("registered but freed", 1));
	assert_found("incomplete", 1, "note", 0, 1);
}

static void test_registered_again(void **state)
{
	unsigned i;

	(void)state;
	started(1);
	communicator(1, 0xc0);
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {VA, 4096, .device = 0});
	TELL(LIEN_CALL_NCCL_REGISTER, 1, .reg = {0xc0, VA, 4096, 0x11});
	TELL(LIEN_CALL_NCCL_REGISTER, 1, .reg = {0xc0, VA, 4096, 0x11});
	assert_found("registered again", 1, "warning", 4096, 1);
	for (i = 0; i < 5; i++)
		TELL(LIEN_CALL_NCCL_REGISTER, 1, .reg = {0xc0, VA, 4096, 0x20 + i});
	assert_found("registered again", 1, "leak", 4096, 1);
	assert_non_null(
		strstr(json_string_value(json_object_get(find("registered again", 1), "text")),
			"7 times"));
}

static struct lien_probe_traffic said;

static bool traffic(void *context, uint32_t pid, uint64_t comm, struct lien_probe_traffic *traffic)
{
	assert_ptr_equal(context, &said);
	assert_int_equal(pid, 1);
	assert_int_equal(comm, 0xc0);
	*traffic = said;
	return said.t_last;
}

static void test_idle(void **state)
{
	uint64_t made;

	(void)state;
	started(1);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	communicator(1, 0xc0);
	made = now;
	{
		struct lien_event ev = EVENT(LIEN_CALL_CU_MEM_CREATE, 1,
			.create = {.handle = 5, .bytes = PIECE, .prop = device_prop(0)});

		ev.scope = 0xc0;
		apply(&ev);
	}
	tell.outer = 0;
	input.now_ns = made + 1000;
	input.idle_ns = 500;
	assert_null(find("idle communicator", 1)); /* nothing is known of its traffic */
	input.traffic = traffic;
	input.context = &said;
	said.t_last = 0;
	assert_found("idle communicator", 1, "warning", PIECE, 1);
	said.t_last = made + 600;
	assert_null(find("idle communicator", 1));
	input.now_ns = made + 1100;
	assert_found("idle communicator", 1, "warning", PIECE, 1);
}

static void test_cuda_malloc_by_nccl(void **state)
{
	(void)state;
	started(1);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {VA, 4096, .device = 0});
	tell.outer = 0;
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {VA + MIB, 4096, .device = 0});
	assert_found("NCCL without cuMem", 1, "note", 4096, 1);
}

static void test_legacy_ipc(void **state)
{
	struct lien_event get, open;

	(void)state;
	started(1);
	started(2);
	TELL(LIEN_CALL_CU_MEM_ALLOC, 1, .alloc = {VA, 4096, .device = 0});
	get = EVENT(LIEN_CALL_CU_IPC_GET, 1, .key = {.va = VA});
	memset(get.key.key, 9, LIEN_KEY_BYTES);
	apply(&get);
	assert_null(find("legacy IPC", 1));
	open = EVENT(LIEN_CALL_CU_IPC_OPEN, 2, .key = {.va = VA + MIB});
	memset(open.key.key, 9, LIEN_KEY_BYTES);
	apply(&open);
	assert_found("legacy IPC", 1, "note", 4096, 1);
}

static void test_open_exports(void **state)
{
	struct lien_probe_open_file files[] = {{1, 1, 30}, {1, 2, 31}, {99, 1, 32}};

	(void)state;
	started(1);
	started(2);
	made_and_shared(1, 2, 0);
	input.files = (struct lien_view_files){files, 2, true};
	assert_found("export not closed", 1, "warning", 0, 1);
	assert_found("export not closed", 2, "warning", 0, 1);
	input.files.count = 3; /* whose memory nothing else holds */
	assert_found("export not closed", 1, "leak", 0, 2);
	files[1] = (struct lien_probe_open_file){1, 0, 1}; /* in a socket */
	assert_found("export on its way", 0, "note", 0, 1);
	assert_null(find("export not closed", 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FINDS(test_nothing),
		FINDS(test_held_by_the_dead),
		FINDS(test_import_not_mapped),
		FINDS(test_registered_but_freed),
		FINDS(test_registered_unknown),
		FINDS(test_registered_again),
		FINDS(test_idle),
		FINDS(test_cuda_malloc_by_nccl),
		FINDS(test_legacy_ipc),
		FINDS(test_open_exports),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
