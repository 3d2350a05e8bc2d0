// SPDX-License-Identifier: BSD-2-Clause
/* The journal's file: what a kill, a full disk and damage leave of it. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "events.h"

#include "agent/journal/journal.h"
#include "agent/journal/recording.h"

#define NUMBER 0x123456789abcull

static char path[] = "/tmp/lien-test-journal-XXXXXX";
static struct lien_journal *journal;

static int journal_setup(void **state)
{
	int fd = mkstemp(path);

	if (fd < 0 || close(fd) || setup(state))
		return -1;
	journal = NULL;
	return 0;
}

static int journal_teardown(void **state)
{
	lien_journal_close(journal);
	journal = NULL;
	unlink(path);
	memset(path + sizeof(path) - 7, 'X', 6);
	return teardown(state);
}

/* Records of several lengths, different each time. */
static struct lien_event nth(unsigned n)
{
	struct lien_event ev = {.pid = 1, .tid = 2, .start = 3, .t_entry = 10 + n, .t_return = 11};

	if (n % 3 == 1) {
		ev.type = LIEN_CALL_CU_MEM_SET_ACCESS;
		ev.access.va = n;
		ev.access.count = n % (LIEN_ACCESS_MAX + 1);
		ev.size = LIEN_EVENT_HEADER + 24 + ev.access.count * sizeof(struct lien_access);
	} else {
		ev.type = n % 3 ? LIEN_CALL_CU_MEM_CREATE : LIEN_CALL_CU_MEM_RELEASE;
		ev.size = n % 3 ? LIEN_EVENT_SIZE(create) : LIEN_EVENT_SIZE(release);
		ev.create.handle = 1 + n;
	}
	return ev;
}

static void append(unsigned from, unsigned to)
{
	for (unsigned n = from; n < to; n++) {
		struct lien_event ev = nth(n);

		assert_int_equal(lien_journal_append(journal, &ev), 0);
	}
}

static int count_right(void *context, const struct lien_event *ev)
{
	unsigned *count = context;
	struct lien_event right = nth((*count)++);

	assert_memory_equal(ev, &right, sizeof(right));
	return 0;
}

static int reopen(unsigned *count)
{
	lien_journal_close(journal);
	journal = NULL;
	*count = 0;
	return lien_journal_open(&journal, path, count_right, count);
}

static size_t read_file(unsigned char *data, size_t room)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, data, room);

	assert_true(n > 0);
	close(fd);
	return n;
}

static void write_file(const void *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
}

static void test_goes_on(void **state)
{
	struct lien_event ev = nth(7), other = nth(20000);
	struct stat st;
	unsigned count;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	assert_int_equal(reopen(&count), 0);
	assert_int_equal(count, 0);
	append(0, 20000); /* more than the first room */
	assert_true(lien_journal_bytes(journal) > 1 << 20);
	assert_int_equal(reopen(&count), 0);
	assert_int_equal(count, 20000);
	assert_int_equal(lien_journal_number(journal), NUMBER);
	assert_true(lien_journal_has(journal, &ev));
	assert_false(lien_journal_has(journal, &other));
	append(20000, 20005);
	assert_true(lien_journal_has(journal, &other));
	ev.t_return++;
	assert_false(lien_journal_has(journal, &ev));
	assert_int_equal(reopen(&count), 0);
	assert_int_equal(count, 20005);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

/* As `lien replay` reads it, also while it is being written. */
static void test_is_a_recording(void **state)
{
	struct lien_recording *recording;
	struct lien_event ev;
	unsigned count = 0;
	int err;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 500);
	assert_int_equal(lien_recording_open(path, &recording), 0);
	while ((err = lien_recording_read(recording, &ev)) == 1)
		count_right(&count, &ev);
	assert_int_equal(err, -ENODATA);
	assert_int_equal(count, 500);
	assert_int_equal(lien_recording_close(recording), 0);
}

/* Cut anywhere, it has what is whole, and goes on from there. */
static void test_cut(void **state)
{
	static unsigned char data[1 << 14];
	unsigned count, again, last = 0;
	size_t bytes, i;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 40);
	lien_journal_close(journal);
	journal = NULL;
	bytes = read_file(data, sizeof(data));
	for (i = 0; i <= bytes; i++) {
		lien_journal_close(journal);
		journal = NULL;
		write_file(data, i);
		if (i < sizeof(struct lien_recording_header)) {
			assert_int_equal(reopen(&count), -EBADMSG);
			continue;
		}
		assert_int_equal(reopen(&count), 0);
		assert_in_range(count, last, 40);
		last = count;
		append(count, 41);
		assert_int_equal(reopen(&again), 0);
		assert_int_equal(again, 41);
	}
	assert_int_equal(last, 40);
}

/*
 * Killed while a record was written: its bytes are there in part, its size is not. What comes
 * then is shorter than what was left.
 */
static void test_killed_while_writing(void **state)
{
	static unsigned char data[1 << 14];
	unsigned count, n;
	size_t bytes;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 30);
	lien_journal_close(journal);
	journal = NULL;
	bytes = read_file(data, sizeof(data));
	for (n = 4; n < sizeof(struct lien_event); n += 4) {
		memset(data + bytes, 0, sizeof(data) - bytes);
		memset(data + bytes + 4, 0xee, n);
		write_file(data, sizeof(data));
		assert_int_equal(reopen(&count), 0);
		assert_int_equal(count, 30);
		append(30, 31);
		lien_journal_close(journal);
		journal = NULL;
		/* Not cut, as it would be had it been killed again. */
		assert_int_equal(truncate(path, sizeof(data)), 0);
		assert_int_equal(reopen(&count), 0);
		assert_int_equal(count, 31);
	}
}

static void test_killed_again(void **state)
{
	static unsigned char data[1 << 14];
	unsigned count;
	size_t bytes;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 30);
	lien_journal_close(journal);
	journal = NULL;
	bytes = read_file(data, sizeof(data));
	memset(data + bytes, 0, sizeof(data) - bytes);
	memset(data + bytes + 4, 0xee, 200);
	write_file(data, sizeof(data));
	assert_int_equal(reopen(&count), 0);
	append(30, 31);
	/* Read while it is open: what another agent would find. */
	count = 0;
	{
		struct lien_journal *other;

		assert_int_equal(lien_journal_open(&other, path, count_right, &count), 0);
		lien_journal_close(other);
	}
	assert_int_equal(count, 31);
}

static int ignore(void *context, const struct lien_event *ev)
{
	assert_true(lien_event_valid(ev));
	++*(unsigned *)context;
	return 0;
}

/* An agent goes on with a journal of the version before, and not with one of a later version. */
static void test_versions(void **state)
{
	static unsigned char data[1 << 14];
	uint32_t version = LIEN_RECORDING_OLDEST - 1;
	unsigned count = 0;
	size_t bytes;
	int err;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 40);
	lien_journal_close(journal);
	journal = NULL;
	bytes = read_file(data, sizeof(data));
	for (; version <= LIEN_RECORDING_VERSION + 1; version++) {
		memcpy(data + offsetof(struct lien_recording_header, version), &version,
			sizeof(version));
		write_file(data, bytes);
		err = lien_journal_open(&journal, path, ignore, &count);
		if (version < LIEN_RECORDING_OLDEST || version > LIEN_RECORDING_VERSION)
			assert_int_equal(err, -EPROTONOSUPPORT);
		else
			assert_int_equal(err, 0);
		lien_journal_close(journal);
		journal = NULL;
	}
	assert_int_equal(count, 2 * 40);
}

static void test_damaged(void **state)
{
	static unsigned char data[1 << 14];
	unsigned count, bad = 0;
	size_t bytes, i;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 40);
	lien_journal_close(journal);
	journal = NULL;
	bytes = read_file(data, sizeof(data));
	for (i = 0; i < bytes; i++) {
		int err;

		data[i] ^= 0xff;
		write_file(data, bytes);
		count = 0;
		err = lien_journal_open(&journal, path, ignore, &count);
		assert_true(err == 0 || err == -EBADMSG || err == -EPROTONOSUPPORT);
		bad += !!err;
		lien_journal_close(journal);
		journal = NULL;
		data[i] ^= 0xff;
	}
	assert_true(bad > 40 * 4); /* a size or a type at least, of each */
	write_file("LIENREC", 7);
	assert_int_equal(reopen(&count), -EBADMSG);
	write_file("", 0);
	assert_int_equal(reopen(&count), -EBADMSG);
	unlink(path);
	assert_int_equal(reopen(&count), -ENOENT);
}

/* A recording that was compressed, or closed in good order, is no journal. */
static void test_foreign(void **state)
{
	struct lien_recording *recording;
	struct lien_event ev = nth(0);
	unsigned count;

	(void)state;
	assert_int_equal(lien_recording_create(path, &recording), 0);
	assert_int_equal(lien_recording_write(recording, &ev), 0);
	assert_int_equal(lien_recording_close(recording), 0);
	assert_int_equal(reopen(&count), -EBADMSG);
}

/* Root does not write to what a link leads to. */
static void test_link(void **state)
{
	char other[64];
	unsigned count;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 3);
	lien_journal_close(journal);
	journal = NULL;
	snprintf(other, sizeof(other), "%s.other", path);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(symlink(other, path), 0);
	assert_int_equal(reopen(&count), -ELOOP);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(link(other, path), 0);
	assert_int_equal(reopen(&count), -EPERM);
	unlink(other);
	assert_int_equal(reopen(&count), 0);
	assert_int_equal(count, 3);
}

/* No room: an error, the journal is as it was, and there is no SIGBUS. */
static void test_full(void **state)
{
	struct rlimit old, limit;
	struct lien_event ev;
	unsigned count, n;
	int err = 0;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	limit = (struct rlimit){3 << 20, old.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	for (n = 0; !err; n++) {
		ev = nth(n);
		err = lien_journal_append(journal, &ev);
	}
	assert_int_equal(err, -EFBIG);
	assert_int_equal(lien_journal_append(journal, &ev), -EFBIG);
	assert_true(lien_journal_bytes(journal) > (3 << 20) - sizeof(ev) - 8);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(reopen(&count), 0);
	assert_int_equal(count, n - 1);
	limit.rlim_cur = 1000;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	lien_journal_close(journal);
	journal = NULL;
	err = lien_journal_create(&journal, path, NUMBER);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_equal(err, -EFBIG);
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(lien_journal_create(&journal, "/nowhere/at/all", 1), -ENOENT);
}

static int apply_to(void *context, const struct lien_event *ev)
{
	return lien_graph_apply(context, ev);
}

/* A long history of little: a snapshot replaces it, under the same number. */
static void test_bounded(void **state)
{
	struct lien_graph *copy;
	struct lien_event ev;
	uint64_t bytes;
	unsigned n;

	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	ev = EVENT(LIEN_EVENT_PROCESS, 1, .process = {.complete = 1});
	for (n = 0; n < 10000; n++) {
		apply(&ev);
		assert_int_equal(lien_journal_append(journal, &ev), 0);
		if (n % 100)
			ev = EVENT(LIEN_EVENT_PROCESS, 1, .process = {.complete = 1});
		else
			ev = EVENT(LIEN_CALL_CU_MEM_CREATE, 1, .create = {n + 1, MIB});
	}
	bytes = lien_journal_bytes(journal);
	assert_int_equal(lien_journal_bound(journal, graph, bytes), 0);
	assert_int_equal(lien_journal_bytes(journal), bytes);
	assert_int_equal(lien_journal_bound(journal, graph, bytes - 1), 0);
	assert_true(lien_journal_bytes(journal) < bytes / 10);
	bytes = lien_journal_bytes(journal);
	assert_int_equal(lien_journal_bound(journal, graph, 0), 0); /* not twice as much yet */
	assert_int_equal(lien_journal_bytes(journal), bytes);
	ev = EVENT(LIEN_CALL_CU_MEM_CREATE, 1, .create = {77777777, MIB});
	apply(&ev);
	assert_int_equal(lien_journal_append(journal, &ev), 0);
	lien_journal_close(journal);
	journal = NULL;
	assert_int_equal(lien_graph_new(&copy), 0);
	assert_int_equal(lien_journal_open(&journal, path, apply_to, copy), 0);
	assert_int_equal(lien_journal_number(journal), NUMBER);
	assert_int_equal(lien_graph_stats(copy)->allocations, lien_graph_stats(graph)->allocations);
	assert_int_equal(lien_graph_stats(graph)->allocations, 101);
	assert_int_equal(lien_graph_process(copy, 1)->incomplete, 0);
	lien_graph_free(copy);
}

/* No room for the snapshot: the journal goes on as it was. */
static void test_bounded_when_full(void **state)
{
	struct rlimit old, limit;
	struct lien_event ev;
	unsigned count, n;
	char other[64];

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	limit = (struct rlimit){1000, old.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	for (n = 0; n < 100; n++) {
		ev = nth(n);
		assert_int_equal(lien_journal_append(journal, &ev), 0);
	}
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(lien_journal_bound(journal, graph, 100), -EFBIG);
	assert_int_equal(lien_journal_bound(journal, graph, 100), 0); /* later */
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	append(100, 110);
	assert_int_equal(reopen(&count), 0);
	assert_int_equal(count, 110);
	snprintf(other, sizeof(other), "%s.new", path);
	assert_int_equal(access(other, F_OK), -1);
}

static int refuse(void *context, const struct lien_event *ev)
{
	(void)context;
	return ev->t_entry == 15 ? -ENOMEM : 0;
}

static void test_reader_refuses(void **state)
{
	(void)state;
	assert_int_equal(lien_journal_create(&journal, path, NUMBER), 0);
	append(0, 10);
	lien_journal_close(journal);
	journal = NULL;
	assert_int_equal(lien_journal_open(&journal, path, refuse, NULL), -ENOMEM);
}

#define JOURNAL(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		JOURNAL(test_goes_on),
		JOURNAL(test_is_a_recording),
		JOURNAL(test_cut),
		JOURNAL(test_killed_while_writing),
		JOURNAL(test_killed_again),
		JOURNAL(test_damaged),
		JOURNAL(test_versions),
		JOURNAL(test_foreign),
		JOURNAL(test_link),
		JOURNAL(test_full),
		JOURNAL(test_bounded),
		JOURNAL(test_bounded_when_full),
		JOURNAL(test_reader_refuses),
	};

	return cmocka_run_group_tests_name("journal", tests, NULL, NULL);
}
