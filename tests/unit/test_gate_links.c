// SPDX-License-Identifier: BSD-2-Clause
/* loader/probes/gate_links.c: who shares the gate's links, and when they go. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "loader/probes/gate.h"
#include "loader/probes/gate_links.h"
#include "loader/probes/make_link.h"
#include "loader/probes/uprobe.h"

#define PLACES	   5
#define GO_NEXT_NS 1000000000ull
#define KEPT_NS	   (LIEN_GATE_LINKS_KEPT_S * 1000000000ull)

static struct trace_bpf skel;
static struct lien_probes probes;
static struct lien_gate gates[2], users[32];
static unsigned users_count;
static struct stat st;
static struct lien_link_request asked[LIEN_LINK_REQUESTS]; /* the last time */
static uint64_t asked_first[LIEN_LINK_REQUESTS];
static unsigned looked_up, asked_times, abandoned, dropped[16], dropped_count, contents;
static const char *names[16]; /* of pins */
static unsigned names_count;
static bool not_yet, fails, gate_known, nccl_alone;
static char pinned; /* probes.pins leads here if links are pinned */
static uint64_t now = 1000000000000ull;

int __real_clock_gettime(clockid_t clock, struct timespec *ts);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
	if (clock != CLOCK_MONOTONIC)
		return __real_clock_gettime(clock, ts);
	*ts = (struct timespec){now / 1000000000, now % 1000000000};
	return 0;
}

int lien_calls_gated(struct lien_probe_set *set, int fd, enum lien_library library, bool all)
{
	unsigned i;

	(void)fd, (void)library;
	looked_up++;
	for (i = 0; i < PLACES; i++) {
		set->offsets[i] = 10 * (i + 1) + contents;
		set->cookies[i] = i + 100 * all;
	}
	set->count = PLACES;
	return 0;
}

int lien_making_begin(struct lien_making **making, int file_fd,
	const struct lien_link_request *requests, unsigned count)
{
	unsigned i;

	(void)file_fd;
	for (i = 0; i < count; i++) {
		asked[i] = requests[i];
		asked_first[i] = requests[i].count ? requests[i].offsets[0] : 0;
	}
	asked_times++;
	*making = (void *)&asked;
	return 0;
}

bool lien_making_ready(struct lien_making *making)
{
	assert_non_null(making);
	return !not_yet;
}

int lien_making_wait(struct lien_making **making, int *links)
{
	unsigned i, j;

	if (not_yet)
		return -EINPROGRESS;
	if (fails) {
		*making = NULL;
		return -EINVAL;
	}
	for (i = 0; i < LIEN_LINK_REQUESTS; i++)
		for (j = 0; j < (asked[i].each ? asked[i].count : 1); j++)
			*links++ = open("/dev/null", O_RDONLY | O_CLOEXEC);
	*making = NULL;
	return 0;
}

void lien_making_abandon(struct lien_making **making)
{
	abandoned += *making != NULL;
	*making = NULL;
}

void lien_uprobe_close(int fd)
{
	dropped_count++;
	assert_int_equal(close(fd), 0);
}

bool lien_keep_link(struct lien_probes *of, const char *name, int fd, const char *what)
{
	(void)name, (void)what;
	assert_true(fd >= 0);
	return of->pins;
}

/* The name ends with the index of the link. */
void lien_pins_drop(struct lien_pins *pins, const char *name)
{
	if (!pins)
		return;
	assert_ptr_equal(pins, &pinned);
	dropped[dropped_count++] = atoi(strrchr(name, '-') + 1);
}

void lien_pins_each(
	struct lien_pins *pins, void (*fn)(void *context, const char *name), void *context)
{
	unsigned i;

	assert_ptr_equal(pins, &pinned);
	for (i = 0; i < names_count; i++)
		fn(context, names[i]);
}

static bool is_pinned(const char *name)
{
	unsigned i;

	for (i = 0; i < names_count; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

bool lien_pins_has(const struct lien_pins *pins, const char *name)
{
	(void)pins;
	return is_pinned(name);
}

int lien_pins_get(const struct lien_pins *pins, const char *name)
{
	(void)pins;
	return is_pinned(name) ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -ENOENT;
}

struct lien_attached *lien_attached_find(const struct lien_probes *of, dev_t device, ino_t inode)
{
	(void)of, (void)device, (void)inode;
	return NULL;
}

int __wrap_bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	(void)fd, (void)key, (void)value;
	return gate_known ? 0 : -ENOENT;
}

/* By index from 0; NULL: there are fewer. */
static struct lien_gate_links *links_at(unsigned index)
{
	struct lien_gate_links *links;

	TAILQ_FOREACH (links, &probes.gate_links, next)
		if (!index--)
			return links;
	return NULL;
}

static unsigned links_count(void)
{
	unsigned count = 0;

	while (links_at(count))
		count++;
	return count;
}

static int setup(void **state)
{
	(void)state;
	memset(&probes, 0, sizeof(probes));
	TAILQ_INIT(&probes.gate_links);
	probes.skel = &skel;
	gates[0] = (struct lien_gate){.pid = 11};
	gates[1] = (struct lien_gate){.pid = 12};
	st = (struct stat){.st_dev = 1, .st_ino = 2};
	users_count = looked_up = asked_times = abandoned = dropped_count = contents = 0;
	names_count = 0;
	not_yet = fails = gate_known = nccl_alone = false;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	lien_gate_links_free(&probes);
	assert_int_equal(links_count(), 0);
	return 0;
}

/* Each call is that of another gate of the process. */
static int get(unsigned gate, struct lien_gate_links **links)
{
	struct lien_gate *user = &users[users_count++];
	int err;

	assert_true(users_count <= sizeof(users) / sizeof(users[0]));
	*user = gates[gate];
	user->files_count = 0;
	err = lien_gate_file_add(
		&probes, user, -1, &st, LIEN_LIB_CUDA, probes.facts.multi && !nccl_alone, true);
	if (!err)
		*links = user->files[0].links;
	return err;
}

static struct lien_gate_links *got(unsigned gate)
{
	struct lien_gate_links *links = NULL;

	assert_int_equal(get(gate, &links), 0);
	assert_non_null(links);
	return links;
}

/* One of them goes. */
static void put(const struct lien_gate_links *links)
{
	unsigned i = 0;

	while (!users[i].files_count || users[i].files[0].links != links)
		assert_true(++i < users_count);
	lien_gate_files_put(&probes, &users[i]);
}

static void pass(uint64_t ns)
{
	now += ns;
	lien_probes_gate_tick(&probes);
}

static void test_single_probes_are_kept(void **state)
{
	struct lien_gate_links *links = got(0);

	(void)state;
	assert_ptr_equal(got(1), links);
	assert_int_equal(asked_times, 1);
	assert_int_equal(links->count, 2 * PLACES);
	assert_true(asked[0].each && asked[0].at_return && !asked[1].at_return);
	put(links);
	pass(2 * KEPT_NS); /* one gate still has them */
	assert_int_equal(links->left, 2 * PLACES);
	put(links);
	pass(KEPT_NS / 2);
	assert_ptr_equal(got(0), links); /* as a gate does that comes soon */
	put(links);
	pass(KEPT_NS);
	assert_int_equal(dropped_count, 0);
	pass(1);
	assert_int_equal(dropped_count, 8);
	assert_int_equal(links->left, 2 * PLACES - 8);
	pass(GO_NEXT_NS - 1);
	assert_int_equal(dropped_count, 8);
	pass(1);
	assert_int_equal(dropped_count, 2 * PLACES);
	assert_int_equal(links_count(), 0);
	assert_int_equal(asked_times, 1);
}

static unsigned open_fds(void)
{
	unsigned fd, count = 0;

	for (fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* A library has hundreds of places, and a user many copies of it. */
static void test_pinned_links_need_no_fds(void **state)
{
	const unsigned before = open_fds();
	struct lien_gate_links *links;
	unsigned i;

	(void)state;
	links = got(0);
	assert_int_equal(open_fds(), before + 2 * PLACES);
	lien_gate_links_free(&probes);
	assert_int_equal(open_fds(), before);
	dropped_count = 0;
	probes.pins = (void *)&pinned;
	links = got(0);
	assert_int_equal(open_fds(), before);
	put(links);
	pass(KEPT_NS + 1);
	pass(GO_NEXT_NS);
	assert_int_equal(dropped_count, 2 * PLACES);
	for (i = 0; i < 2 * PLACES; i++)
		assert_int_equal(dropped[i], 2 * PLACES - 1 - i);
	assert_int_equal(open_fds(), before);
}

/* The pins of an agent that was killed while it removed some say which are left. */
static void test_taken_over(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	probes.pins = (void *)&pinned;
	names[names_count++] = "gate-9-0-00000007-1-2-3-1-3-1";
	names[names_count++] = "gate-9-0-00000007-1-2-3-1-3-0";
	names[names_count++] = "gate-10-0-00000007-1-2-4-0-2-1";  /* one of two */
	names[names_count++] = "gate-11-44-00000007-1-2-4-0-2-0"; /* of a process without a gate */
	names[names_count++] = "link-12-0";
	lien_gate_links_take(&probes);
	assert_int_equal(probes.next_attachment, 11);
	assert_int_equal(dropped_count, 1);
	assert_int_equal(links_count(), 2);
	links = links_at(0);
	assert_true(links->each && links->kept && links->build == 7);
	assert_int_equal(links->left, 2);
	assert_int_equal(links->fds[0], -1);
	assert_int_equal(links_at(1)->left, 0);
	assert_int_equal(links_at(1)->build, 0);
}

/* All that were made before the one that fails are removed for minutes. */
static void test_no_second_attempt_soon(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	fails = true;
	assert_int_equal(get(0, &links), -EINVAL);
	pass(KEPT_NS / 2);
	assert_int_equal(get(1, &links), -EINVAL);
	assert_int_equal(asked_times, 1);
	pass(KEPT_NS / 2 + 1);
	fails = false;
	got(0);
	assert_int_equal(asked_times, 2);
	probes.facts.multi = fails = true; /* two links are removed at once */
	assert_int_equal(get(0, &links), -EINVAL);
	fails = false;
	got(0);
}

static void test_taken_back_while_they_are_removed(void **state)
{
	struct lien_gate_links *links = got(0);

	(void)state;
	put(links);
	pass(KEPT_NS + 1);
	assert_int_equal(links->left, 2);
	assert_ptr_equal(got(1), links);
	assert_int_equal(links->left, 2 * PLACES);
	assert_int_equal(asked_times, 2);
	assert_int_equal(asked[0].count, PLACES - 2);
	assert_int_equal(asked_first[0], 10 * 3);
	assert_int_equal(asked[1].count, PLACES);
	pass(2 * KEPT_NS);
	assert_int_equal(links->left, 2 * PLACES);
	put(links);
	pass(KEPT_NS + 1);
	pass(1);
	assert_int_equal(links->left, 2);
	lien_gate_links_free(&probes);
	got(0);
	assert_int_equal(asked[0].count, PLACES);
}

static void test_links_of_a_process_go_with_its_gate(void **state)
{
	struct lien_gate_links *links, *other;

	(void)state;
	probes.facts.multi = probes.facts.can_follow = true;
	links = got(0);
	other = got(1);
	assert_ptr_not_equal(links, other);
	assert_int_equal(links->count, 2);
	assert_int_equal(asked[0].pid, 12);
	assert_false(asked[0].each);
	put(links);
	assert_int_equal(links_count(), 1);
	assert_int_equal(dropped_count, 2);
	put(other);
	not_yet = true;
	assert_int_equal(get(0, &links), -EINPROGRESS);
	assert_false(lien_probes_gate_ready(&probes, 11));
	assert_true(lien_probes_gate_ready(&probes, 12));
	not_yet = false;
	assert_true(lien_probes_gate_ready(&probes, 11));
	not_yet = true;
	lien_gate_links_end(&probes, 11, false, false);
	assert_int_equal(abandoned, 1);
	assert_int_equal(links_count(), 0);
}

/* The next offload of NCCL's memory need not wait for the kernel to make them. */
static void test_those_for_nccl_stay_for_a_while(void **state)
{
	struct lien_gate_links *links, *all;

	(void)state;
	probes.facts.multi = probes.facts.can_follow = nccl_alone = true;
	links = got(0);
	nccl_alone = false;
	all = got(0);
	assert_ptr_not_equal(all, links);
	put(all);
	assert_int_equal(links_count(), 1);
	nccl_alone = true;
	put(links);
	lien_gate_links_end(&probes, 11, false, true);
	pass(KEPT_NS / 2);
	assert_ptr_equal(got(0), links);
	assert_int_equal(asked_times, 2);
	put(links);
	pass(KEPT_NS);
	assert_int_equal(links_count(), 1);
	pass(1);
	assert_int_equal(links_count(), 0);
}

/* The kernel binds them to the process: one that has its number now would run into none. */
static void test_kept_links_go_with_their_process(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	probes.facts.multi = probes.facts.can_follow = nccl_alone = true;
	gates[0].start = 1;
	links = got(0);
	put(links);
	gates[0].start = 2;
	assert_ptr_not_equal(got(0), links);
	assert_int_equal(asked_times, 2);
	assert_int_equal(links_count(), 2);
	lien_gate_links_end(&probes, 11, true, false); /* the second has a user */
	assert_int_equal(links_count(), 1);
}

/* Nor do others pay for them longer than they must. */
static void test_kept_links_of_all_processes(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	probes.facts.multi = probes.facts.can_follow = nccl_alone = true;
	gates[0].shared = true;
	links = got(0);
	put(links);
	assert_ptr_equal(got(0), links);
	put(links);
	assert_int_equal(links_count(), 1);
	assert_int_equal(got(1)->pid, 12); /* another job has come */
	assert_int_equal(links_count(), 1);
}

/* An offload that is refused while the kernel is at them leaves nothing in other processes. */
static void test_shared_links_that_nobody_came_to_use(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	probes.facts.multi = true;
	not_yet = true;
	assert_int_equal(get(0, &links), -EINPROGRESS);
	lien_gate_links_end(&probes, 11, false, false); /* there is another gate */
	assert_int_equal(links_count(), 1);
	lien_gate_links_end(&probes, 12, false, true);
	assert_int_equal(abandoned, 1);
	assert_int_equal(links_count(), 0);
}

static void test_two_links_for_all_processes(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	probes.facts.multi = true;
	links = got(0);
	assert_ptr_equal(got(1), links);
	assert_int_equal(asked[0].pid, 0);
	put(links);
	assert_int_equal(links_count(), 1);
	put(links);
	assert_int_equal(links_count(), 0);
}

/* Also where links can be bound: all that would pay take part. */
static void test_links_shared_by_a_whole_job(void **state)
{
	struct lien_gate_links *links, *other;

	(void)state;
	probes.facts.multi = probes.facts.can_follow = true;
	gates[0].shared = true;
	links = got(0);
	assert_int_equal(asked[0].pid, 0);
	assert_ptr_equal(got(1), links); /* they are there: others would cost more */
	put(links);
	put(links);
	assert_int_equal(links_count(), 0);
	gates[0].shared = false;
	other = got(0);
	assert_int_equal(asked[0].pid, 11);
	put(other);
}

/* While a gate that it made may depend on them: nobody knows by which links it holds its threads.
 */
static void test_links_of_an_earlier_agent(void **state)
{
	struct lien_gate_links *links = got(0), *ours;

	(void)state;
	put(links);
	strcpy(probes.build, "8");
	probes.gates = malloc(sizeof(*probes.gates));
	assert_non_null(probes.gates);
	*probes.gates = (struct lien_gate){.pid = 11, .inherited = true};
	probes.facts.gates = 1;
	gate_known = true;
	ours = got(0);
	assert_ptr_not_equal(ours, links);
	pass(2 * KEPT_NS);
	assert_int_equal(links->left, 2 * PLACES);
	gate_known = false;
	pass(1);
	pass(GO_NEXT_NS);
	assert_int_equal(links_count(), 1);
	assert_ptr_equal(links_at(0), ours);
	free(probes.gates);
	probes.facts.gates = 0;
}

/* Another gate, which also uses them, has yet to be made again: its process does not answer. */
static void test_the_last_user_but_for_an_earlier_agents(void **state)
{
	struct lien_gate_links *links;

	(void)state;
	probes.facts.multi = true;
	probes.gates = malloc(sizeof(*probes.gates));
	assert_non_null(probes.gates);
	*probes.gates = (struct lien_gate){.pid = 12, .inherited = true};
	probes.facts.gates = 1;
	gate_known = true;
	links = got(0);
	put(links);
	lien_gate_links_end(&probes, 11, false, false);
	pass(2 * KEPT_NS);
	assert_int_equal(dropped_count, 0);
	assert_int_equal(links_count(), 1);
	gate_known = false; /* it is open */
	pass(1);
	assert_int_equal(dropped_count, 2);
	assert_int_equal(links_count(), 0);
	free(probes.gates);
	probes.facts.gates = 0;
}

/* The file was written to, or the gate is for other calls. */
static void test_other_places(void **state)
{
	struct lien_gate_links *links = got(0);

	(void)state;
	contents = 1;
	st.st_ctim.tv_nsec = 1;
	assert_ptr_not_equal(got(0), links);
	contents = 0;
	st.st_ctim.tv_nsec = 0;
	assert_int_equal(
		lien_gate_file_add(&probes, &gates[0], -1, &st, LIEN_LIB_CUDA, true, true), 0);
	assert_ptr_not_equal(gates[0].files[0].links, links);
	assert_ptr_equal(got(0), links);
}

/* It is the same file as long as its size and the time of its last change are. */
static void test_places_are_looked_up_once(void **state)
{
	unsigned i;

	(void)state;
	for (i = 0; i < 3; i++) {
		got(i % 2);
		assert_int_equal(looked_up, 1);
	}
	st.st_size = 1;
	got(0);
	assert_int_equal(looked_up, 2);
	for (i = 0; i < LIEN_GATE_PLACES_KEPT - 2; i++) {
		st.st_ino++;
		got(0);
	}
	st.st_size = 0;
	st.st_ino = 2;
	got(0); /* kept all the while */
	assert_int_equal(looked_up, LIEN_GATE_PLACES_KEPT);
	st.st_dev = 7;
	got(0);
	st.st_dev = 1;
	st.st_size = 1;
	got(0); /* the one that was not asked for the longest */
	assert_int_equal(looked_up, LIEN_GATE_PLACES_KEPT + 2);
}

static int add(bool all)
{
	return lien_gate_file_add(&probes, &gates[0], -1, &st, LIEN_LIB_CUDA, all, true);
}

/* Someone copies another build over the file while the gate is there. */
static void test_a_file_rewritten_in_place(void **state)
{
	unsigned i;

	(void)state;
	assert_int_equal(add(false), 0);
	assert_int_equal(add(false), 0);
	assert_int_equal(looked_up, 1);
	assert_int_equal(gates[0].files_count, 1);
	assert_int_equal(add(true), 0); /* more calls of the same contents */
	assert_int_equal(add(false), 0);
	assert_int_equal(gates[0].files_count, 2);
	contents = 1;
	st.st_ctim.tv_nsec = 3;
	assert_int_equal(add(true), 0);
	assert_int_equal(gates[0].files_count, 3); /* those before stay: their code may still run */
	assert_int_equal(asked_first[0], 11);
	/* The times change, but not the places. */
	st.st_ctim.tv_nsec = 4;
	assert_int_equal(add(true), 0);
	assert_int_equal(gates[0].files_count, 3);
	assert_int_equal(gates[0].files[2].links->users, 1);
	i = looked_up;
	assert_int_equal(add(true), 0);
	assert_int_equal(looked_up, i);
	while (gates[0].files_count < LIEN_GATE_FILES) {
		st.st_size++;
		contents++;
		assert_int_equal(add(true), 0);
	}
	st.st_size++;
	assert_int_equal(add(true), -EMFILE);
	lien_gate_files_put(&probes, &gates[0]);
	for (i = 0; i < links_count(); i++)
		assert_int_equal(links_at(i)->users, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_single_probes_are_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pinned_links_need_no_fds, setup, teardown),
		cmocka_unit_test_setup_teardown(test_taken_over, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_second_attempt_soon, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_taken_back_while_they_are_removed, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_links_of_a_process_go_with_its_gate, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_those_for_nccl_stay_for_a_while, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_kept_links_go_with_their_process, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kept_links_of_all_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_shared_links_that_nobody_came_to_use, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two_links_for_all_processes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_links_shared_by_a_whole_job, setup, teardown),
		cmocka_unit_test_setup_teardown(test_links_of_an_earlier_agent, setup, teardown),
		cmocka_unit_test_setup_teardown(
			test_the_last_user_but_for_an_earlier_agents, setup, teardown),
		cmocka_unit_test_setup_teardown(test_other_places, setup, teardown),
		cmocka_unit_test_setup_teardown(test_places_are_looked_up_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_file_rewritten_in_place, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
