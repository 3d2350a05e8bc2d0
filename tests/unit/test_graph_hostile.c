// SPDX-License-Identifier: BSD-2-Clause
/*
 * Whatever processes say, in any order: events with the right shape and any contents. The graph and
 * what is made of it stay in one piece, a copy by a dump takes what it is told, and when the
 * processes have ended nothing is left. Meant for AddressSanitizer.
 *
 * LIEN_SEED repeats a run, LIEN_SEQUENCES sets how many.
 */

#include "agent/graph/event_check.h"
#include "agent/graph/internal.h"
#include "agent/views/views.h"
#include "events.h"
#include "tests/unit/seeds.h"

#define PIDS   4
#define EVENTS 600

static uint64_t random_state;

static unsigned below(unsigned n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % n;
}

static uint64_t value(void)
{
	static const uint64_t values[] = {0, 1, 2, 3, 8, 16, 64, 0x1000, 0x200000, 0x400000,
		0x7f0000000000, 0x7f0000200000, 0x7f0000400000, UINT64_MAX, UINT64_MAX - 0x200000,
		1ull << 63, 1ull << 40, 0xffffffff};

	return values[below(sizeof(values) / sizeof(values[0]))];
}

/* Numbers that are likely to be those of something, and names that end. */
static void any_state(struct lien_event *event)
{
	uint32_t *word = (uint32_t *)&event->state;
	size_t i;

	for (i = 0; i < sizeof(event->state) / sizeof(*word); i++)
		if (below(2))
			word[i] = below(5);
	if (event->type == LIEN_STATE_process)
		event->state.process.command[below(16)] = '\0';
	if (event->type == LIEN_STATE_site)
		event->state.site.library[below(64)] = event->state.site.file[below(64)] = '\0';
	if (event->type == LIEN_STATE_allocation)
		strcpy(event->state.allocation.tag, below(2) ? "a" : "b");
	if (event->type == LIEN_STATE_handle)
		event->state.handle.raw_to[below(64)] = '\0';
	if (event->type == LIEN_STATE_mapping)
		event->state.mapping.count = below(LIEN_ACCESS_MAX + 1);
}

/* Any event that lien_event_valid() lets through. */
static void any_event(struct lien_event *event, uint64_t at)
{
	const size_t words = (sizeof(*event) - LIEN_EVENT_HEADER) / 8;
	uint64_t *body = (uint64_t *)((char *)event + LIEN_EVENT_HEADER);
	size_t i;

	do {
		memset(event, 0, sizeof(*event));
		event->size = sizeof(*event);
		event->type = below(LIEN_CALL_MAX);
		event->flags = below(3) ? 0 : below(64);
		event->pid = 1 + below(PIDS);
		event->tid = event->pid + below(3);
		event->start = below(400) ? 1 : 2;
		event->t_entry = below(4) ? at - below(8) : at;
		event->t_return = at;
		event->result = below(4) ? 0 : (int)below(8);
		event->outer = below(LIEN_CALL_MAX);
		event->caller = value();
		event->scope = below(2) ? 0 : value() | (below(2) ? LIEN_SCOPE_INIT : 0);
		for (i = 0; i < words; i++)
			body[i] = below(3) ? value() : value() << 32 | (uint32_t)value();
		if (event->type == LIEN_EVENT_LIBRARY)
			event->library.name[below(64)] = '\0';
		if (event->type == LIEN_CALL_CU_MEM_SET_ACCESS)
			event->access.count = below(LIEN_ACCESS_MAX + 1);
		if (lien_event_tagged(event) && below(2))
			strcpy(event->tagged.tag, below(2) ? "a" : "b");
		if (LIEN_IS_STATE(event->type))
			any_state(event);
	} while (!lien_event_valid(event) ||
		 ((event->type == LIEN_EVENT_EXIT || event->type == LIEN_EVENT_EXEC) && below(20)));
}

static int copies(void *context, const struct lien_event *event)
{
	assert_true(lien_event_valid(event));
	assert_true(lien_graph_apply(context, event) != -ENOMEM);
	return 0;
}

/* Every answer can be made. */
static void look(struct lien_graph *graph)
{
	struct lien_view_source input = {.graph = graph, .now_ns = 1000000000, .idle_ns = 1};
	struct lien_view_files files = {.known = true};
	struct lien_selection selection = {0};
	struct lien_graph *copy;
	struct lien_plan plan;
	char error[600];

	json_decref(lien_view_ps(graph, NULL));
	json_decref(lien_view_mem(graph, NULL, LIEN_MEM_BY_KIND, 0, NULL));
	json_decref(lien_view_graph(graph, NULL));
	json_decref(lien_findings(&input));
	json_decref(lien_view_holders(
		graph, NULL, 1 + below(PIDS), value(), &files, error, sizeof(error)));
	if (!lien_plan_offload(graph, &selection, &plan, error, sizeof(error))) {
		json_decref(lien_view_plan(&plan));
		lien_plan_clear(&plan);
	}
	assert_int_equal(lien_graph_new(&copy), 0);
	assert_int_equal(lien_graph_dump(graph, copies, copy), 0);
	lien_graph_free(copy);
}

static void whole(struct lien_graph *graph)
{
	struct lien_allocation *allocation;
	struct lien_holding *holding;
	struct lien_process *process;
	struct lien_mapping *mapping;
	struct lien_handle *handle;
	uint64_t end;

	for (process = lien_graph_first(graph); process; process = lien_graph_next(process)) {
		end = 0;
		RB_FOREACH (mapping, lien_mapping_tree, &process->mappings) {
			assert_true(mapping->va >= end && mapping->bytes);
			end = mapping->va + mapping->bytes;
			assert_true(end > mapping->va);
		}
	}
	for (allocation = lien_graph_first_allocation(graph); allocation;
		allocation = lien_graph_next_allocation(allocation)) {
		LIST_FOREACH (holding, &allocation->holdings, of_allocation) {
			assert_ptr_equal(holding->allocation, allocation);
			LIST_FOREACH (mapping, &holding->mappings, of_holding)
				assert_ptr_equal(
					lien_process_mapping(holding->process, mapping->va),
					mapping);
			TAILQ_FOREACH (handle, &holding->handles, of_holding)
				assert_ptr_equal(SPLAY_FIND(lien_handle_tree,
							 &holding->process->handles, handle),
					handle);
		}
	}
}

static void all_end(struct lien_graph *graph)
{
	struct lien_process *process;
	struct lien_event event = {.size = LIEN_EVENT_HEADER, .type = LIEN_EVENT_EXIT};

	while ((process = lien_graph_first(graph))) {
		event.pid = event.tid = process->pid;
		event.start = process->start;
		assert_int_equal(lien_graph_apply(graph, &event), 0);
	}
	assert_int_equal(
		lien_graph_apply(graph, &event), 0); /* a snapshot may be just being loaded */
	assert_null(lien_graph_first_allocation(graph));
	assert_int_equal(lien_graph_stats(graph)->mappings, 0);
	assert_int_equal(lien_graph_stats(graph)->allocations, 0);
}

struct records {
	struct lien_event *event;
	size_t count;
};

static int keeps(void *context, const struct lien_event *event)
{
	struct records *records = context;

	records->event = realloc(records->event, (records->count + 1) * sizeof(*event));
	memset(&records->event[records->count], 0, sizeof(*event));
	memcpy(&records->event[records->count++], event, event->size);
	return 0;
}

/* Changes, repeats, moves or drops a record. */
static void change(struct records *records)
{
	size_t i = below(records->count), j = below(records->count);
	struct lien_event event = records->event[i];
	uint64_t *word = (uint64_t *)&event;

	switch (below(5)) {
	case 0:
		records->event[i] = records->event[--records->count];
		break;
	case 1:
		records->event[i] = records->event[j];
		records->event[j] = event;
		break;
	case 2:
		records->event[i] = records->event[j];
		break;
	default:
		word[1 + below(event.size / 8 - 1)] = below(2) ? below(5) : value();
		if (lien_event_valid(&event))
			records->event[i] = event;
	}
}

/* A snapshot of this graph that somebody has changed, cut short or not, and what follows it. */
static void forge(void)
{
	struct records records = {0};
	struct lien_graph *forged;
	struct lien_event event;
	size_t i, count;
	int err;

	assert_int_equal(lien_graph_new(&forged), 0);
	assert_int_equal(lien_graph_dump(graph, keeps, &records), 0);
	for (i = below(5); i && records.count > 1; i--)
		change(&records);
	count = below(3) ? records.count : below(records.count);
	for (i = 0; i < count; i++) {
		err = lien_graph_apply(forged, &records.event[i]);
		assert_true(!err || err == -EBADMSG);
	}
	whole(forged);
	look(forged);
	for (i = 0; i < 50; i++) {
		any_event(&event, 1000 + i);
		err = lien_graph_apply(forged, &event);
		assert_true(!err || err == -EBADMSG);
	}
	whole(forged);
	all_end(forged);
	lien_graph_free(forged);
	free(records.event);
}

static void sequence(void)
{
	struct lien_event event;
	unsigned i;
	int err;

	for (i = 0; i < EVENTS; i++) {
		any_event(&event, 100 + i);
		err = lien_graph_apply(graph, &event);
		assert_true(!err || err == -EBADMSG);
		if (!below(100)) {
			whole(graph);
			look(graph);
			forge();
		}
	}
	whole(graph);
	all_end(graph);
}

static void test_anything_is_taken(void **unused)
{
	unsigned first = lien_test_seed(), n = lien_test_sequences(300), i;

	(void)unused;
	print_message("LIEN_SEED=%u LIEN_SEQUENCES=%u\n", first, n);
	for (i = 0; i < n; i++) {
		random_state = first + i;
		sequence();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_anything_is_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
