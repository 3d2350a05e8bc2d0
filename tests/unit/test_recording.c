// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <cmocka.h>

#include "agent/graph/event_check.h"
#include "agent/journal/recording.h"

static char path[] = "/tmp/lien-test-recording-XXXXXX";

static int make_path(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	if (fd < 0)
		return -1;
	return close(fd);
}

static int remove_path(void **state)
{
	(void)state;
	return unlink(path);
}

/* Records of every length there is, different each time. */
static struct lien_event event(unsigned int i)
{
	struct lien_event ev = {.pid = 10 + i, .tid = 20 + i, .start = 30 + i, .t_entry = i * 7};

	switch (i % 4) {
	case 0:
		ev.type = LIEN_CALL_CU_MEM_CREATE;
		ev.size = LIEN_EVENT_SIZE(create);
		ev.create.handle = i * 0x9e3779b97f4a7c15ull;
		break;
	case 1:
		ev.type = LIEN_CALL_CU_MEM_SET_ACCESS;
		ev.access.count = i % (LIEN_ACCESS_MAX + 1);
		ev.size = LIEN_EVENT_HEADER + 24 + ev.access.count * sizeof(struct lien_access);
		break;
	case 2:
		ev.type = LIEN_EVENT_EXIT;
		ev.size = LIEN_EVENT_HEADER;
		break;
	default:
		ev.type = LIEN_EVENT_LIBRARY;
		ev.size = LIEN_EVENT_SIZE(library);
		strcpy(ev.library.name, "libnccl.so.2");
	}
	return ev;
}

static void write_events(unsigned int count)
{
	struct lien_recording *rec;
	struct lien_event ev;
	unsigned int i;

	assert_int_equal(lien_recording_create(path, &rec), 0);
	for (i = 0; i < count; i++) {
		ev = event(i);
		assert_int_equal(lien_recording_write(rec, &ev), 0);
	}
	assert_int_equal(lien_recording_close(rec), 0);
}

/* Reads to the end or an error, which it returns; *count gets how many were right. */
static int read_events(unsigned int *count)
{
	struct lien_recording *rec;
	struct lien_event ev, expected;
	int err;

	*count = 0;
	err = lien_recording_open(path, &rec);
	if (err)
		return err;
	while ((err = lien_recording_read(rec, &ev)) == 1) {
		expected = event((*count)++);
		if (memcmp(&ev, &expected, sizeof(ev)))
			(*count) += 1000000;
	}
	/* Ends and errors stay. */
	assert_int_equal(lien_recording_read(rec, &ev), err);
	assert_int_equal(lien_recording_close(rec), 0);
	return err;
}

static size_t read_file(unsigned char *data, size_t room)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, data, room);

	assert_true(n > 0 && (size_t)n < room);
	close(fd);
	return n;
}

static void write_file(const unsigned char *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_TRUNC);

	assert_int_equal(write(fd, data, bytes), bytes);
	close(fd);
}

static void test_round_trip(void **state)
{
	static const unsigned int counts[] = {0, 1, 17, 20000};
	struct lien_recording *rec;
	unsigned int count;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		write_events(counts[i]);
		assert_int_equal(read_events(&count), 0);
		assert_int_equal(count, counts[i]);
	}
	assert_int_equal(lien_recording_open(path, &rec), 0);
	assert_true(lien_recording_time(rec, 0) > 1700000000ull * 1000000000);
	assert_int_equal(lien_recording_close(rec), 0);
}

static void test_cut_short(void **state)
{
	unsigned char data[65536];
	unsigned int count, last = 0;
	size_t bytes, i;
	int err;

	(void)state;
	write_events(40);
	bytes = read_file(data, sizeof(data));
	for (i = 0; i < bytes; i++) {
		write_file(data, i);
		err = read_events(&count);
		/* One byte of gzip's magic is no gzip, so it is not ours. */
		assert_int_equal(err, i == 1 ? -EBADMSG : -ENODATA);
		assert_in_range(count, last, 40);
		last = count;
	}
	assert_int_equal(last, 40);
}

static void test_bit_flips(void **state)
{
	unsigned char data[65536];
	unsigned int count;
	size_t bytes, i;
	int bit, err;

	(void)state;
	write_events(40);
	bytes = read_file(data, sizeof(data));
	for (i = 0; i < bytes; i++) {
		for (bit = 0; bit < 8; bit++) {
			data[i] ^= 1 << bit;
			write_file(data, bytes);
			err = read_events(&count);
			/* Some bits mean nothing to gzip, or the same: then all is still right. */
			if (!err)
				assert_int_equal(count, 40);
			else
				assert_true(err == -EBADMSG || err == -ENODATA);
			data[i] ^= 1 << bit;
		}
	}
}

/* A stream that gzip finds right, with any contents. */
static void write_gz(const void *data, size_t bytes)
{
	gzFile file = gzopen(path, "wb");

	assert_int_equal(gzwrite(file, data, bytes), bytes);
	assert_int_equal(gzclose(file), Z_OK);
}

struct image {
	char magic[8];
	uint32_t version, flags;
	uint64_t created;
	struct lien_event ev;
	char more[512];
};

static void test_header(void **state)
{
	struct image image = {.magic = "LIENREC", .version = LIEN_RECORDING_VERSION};
	unsigned int count;

	(void)state;
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -ENODATA);
	image.version++;
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -EPROTONOSUPPORT);
	image.version = LIEN_RECORDING_OLDEST - 1;
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -EPROTONOSUPPORT);
	image.version = LIEN_RECORDING_OLDEST;
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -ENODATA);
	image.version = LIEN_RECORDING_VERSION;
	image.flags = LIEN_RECORDING_HAS_ORIGIN;
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -ENODATA);
	write_gz(&image, 24 + sizeof(struct lien_recording_origin) - 1);
	assert_int_equal(read_events(&count), -ENODATA);
	image.flags = 2;
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -EPROTONOSUPPORT);
	image.flags = 0;
	image.magic[7] = 'x';
	write_gz(&image, 24);
	assert_int_equal(read_events(&count), -EBADMSG);
	write_gz("#!/bin/sh\nexit 0\nand more of it", 30);
	assert_int_equal(read_events(&count), -EBADMSG);
	write_gz("x", 1);
	assert_int_equal(read_events(&count), -EBADMSG);
	write_gz("LIEN", 4);
	assert_int_equal(read_events(&count), -ENODATA);
	write_gz("", 0);
	assert_int_equal(read_events(&count), -ENODATA);
	assert_int_equal(
		lien_recording_open("/nowhere/at/all", &(struct lien_recording *){NULL}), -ENOENT);
}

/* Where and when: as the recorder's machine was called, and had it. */
static void test_origin(void **state)
{
	struct {
		struct lien_recording_header header;
		struct lien_recording_origin origin;
	} image = {{LIEN_RECORDING_MAGIC, LIEN_RECORDING_VERSION, LIEN_RECORDING_HAS_ORIGIN, 5000},
		{.clock = 700}};
	struct lien_recording *rec;

	(void)state;
	memset(image.origin.host, 'a', sizeof(image.origin.host));
	memcpy(image.origin.host, "node-7\n\xff", 8);
	write_gz(&image, sizeof(image));
	assert_int_equal(lien_recording_open(path, &rec), 0);
	assert_int_equal(strncmp(lien_recording_host(rec), "node-7??aa", 10), 0);
	assert_int_equal(strlen(lien_recording_host(rec)), sizeof(image.origin.host) - 1);
	assert_int_equal(lien_recording_time(rec, 0), 5000);
	assert_int_equal(lien_recording_time(rec, 1000), 5300);
	assert_int_equal(lien_recording_close(rec), 0);
	image.header.flags = 0; /* as earlier versions wrote it */
	write_gz(&image.header, sizeof(image.header));
	assert_int_equal(lien_recording_open(path, &rec), 0);
	assert_string_equal(lien_recording_host(rec), "");
	assert_int_equal(lien_recording_time(rec, 1000), 5000);
	assert_int_equal(lien_recording_close(rec), 0);
}

static void test_bad_records(void **state)
{
	struct image image = {.magic = "LIENREC", .version = LIEN_RECORDING_VERSION};
	static const uint32_t sizes[] = {0, 8, 56, 65, 68, 240, 1u << 31, UINT32_MAX};
	unsigned int count;
	size_t i;

	(void)state;
	image.ev = event(2);
	for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		image.ev.size = sizes[i];
		write_gz(&image, sizeof(image));
		assert_int_equal(read_events(&count), -EBADMSG);
	}
	/* Something after the end. */
	image.ev = (struct lien_event){.size = LIEN_EVENT_HEADER, .type = LIEN_EVENT_END};
	write_gz(&image, 24 + LIEN_EVENT_HEADER + 1);
	assert_int_equal(read_events(&count), -EBADMSG);
	write_gz(&image, 24 + LIEN_EVENT_HEADER);
	assert_int_equal(read_events(&count), 0);
}

static void test_valid(void **state)
{
	struct lien_event ev;
	unsigned int i;

	(void)state;
	for (i = 0; i < 100; i++) {
		ev = event(i);
		assert_true(lien_event_valid(&ev));
	}
	ev = event(1);
	ev.access.count = LIEN_ACCESS_MAX + 1;
	ev.size = sizeof(ev);
	assert_false(lien_event_valid(&ev));
	ev.access.count = UINT32_MAX;
	assert_false(lien_event_valid(&ev));
	ev.access.count = LIEN_ACCESS_MAX;
	assert_true(lien_event_valid(&ev));
	ev.size = LIEN_EVENT_SIZE(access) - 8;
	assert_false(lien_event_valid(&ev));

	ev = event(3);
	memset(ev.library.name, 'x', sizeof(ev.library.name));
	assert_false(lien_event_valid(&ev));

	ev = event(2);
	ev.outer = LIEN_CALL_MAX;
	assert_false(lien_event_valid(&ev));
	ev = event(2);
	ev.flags = LIEN_EVENT_ENTRY; /* of something that releases nothing */
	assert_false(lien_event_valid(&ev));
	ev = event(2);
	ev.flags = 0x8000;
	assert_false(lien_event_valid(&ev));
	for (i = 0; i < UINT16_MAX; i++) {
		ev = event(2);
		ev.type = i;
		ev.size = sizeof(ev);
		if (lien_event_valid(&ev))
			assert_true(i < LIEN_CALL_MAX &&
				    (lien_event_library(i) || i <= LIEN_EVENT_ADOPT ||
					    LIEN_IS_STATE(i)));
	}
	ev.type = LIEN_CALL_CUDA_MALLOC; /* a frame, not an event */
	assert_false(lien_event_valid(&ev));
}

static void test_succeeded(void **state)
{
	struct lien_event ev = {.type = LIEN_CALL_NCCL_DESTROY, .result = 7};

	(void)state;
	assert_true(lien_event_succeeded(&ev));
	ev.result = 3;
	assert_false(lien_event_succeeded(&ev));
	ev.type = LIEN_CALL_CU_MEM_RELEASE;
	ev.result = 7;
	assert_false(lien_event_succeeded(&ev));
	ev.result = 0;
	assert_true(lien_event_succeeded(&ev));
	ev.flags = LIEN_EVENT_ENTRY;
	assert_false(lien_event_succeeded(&ev));
}

static void test_writer_refuses(void **state)
{
	struct lien_event ev = {.size = LIEN_EVENT_HEADER, .type = LIEN_EVENT_END};
	struct lien_recording *rec;

	(void)state;
	assert_int_equal(lien_recording_create(path, &rec), 0);
	assert_int_equal(lien_recording_read(rec, &ev), -EINVAL);
	assert_int_equal(lien_recording_write(rec, &ev), -EINVAL);
	ev.type = 0;
	assert_int_equal(lien_recording_write(rec, &ev), -EINVAL);
	assert_int_equal(lien_recording_close(rec), 0);
	assert_int_equal(lien_recording_open(path, &rec), 0);
	ev = event(0);
	assert_int_equal(lien_recording_write(rec, &ev), -EINVAL);
	assert_int_equal(lien_recording_flush(rec), -EINVAL);
	assert_int_equal(lien_recording_close(rec), 0);
	assert_int_equal(lien_recording_create("/nowhere/at/all", &rec), -ENOENT);
	assert_int_equal(lien_recording_close(NULL), 0);
}

static void test_full_disk(void **state)
{
	struct lien_event ev = event(0);
	struct lien_recording *rec;
	int err = 0, i;

	(void)state;
	/* Little fits into the buffer: only close can tell. */
	assert_int_equal(lien_recording_create("/dev/full", &rec), 0);
	assert_int_equal(lien_recording_write(rec, &ev), 0);
	assert_int_equal(lien_recording_close(rec), -ENOSPC);
	assert_int_equal(lien_recording_create("/dev/full", &rec), 0);
	assert_int_equal(lien_recording_flush(rec), -ENOSPC);
	assert_int_equal(lien_recording_write(rec, &ev), -ENOSPC);
	assert_int_equal(lien_recording_close(rec), -ENOSPC);
	/* Much does not, and the error stays. */
	assert_int_equal(lien_recording_create("/dev/full", &rec), 0);
	srandom(1);
	for (i = 0; i < 100000 && !err; i++) {
		ev.create.handle = random() * 0x9e3779b97f4a7c15ull;
		ev.create.bytes = random();
		err = lien_recording_write(rec, &ev);
	}
	assert_int_equal(err, -ENOSPC);
	assert_int_equal(lien_recording_write(rec, &ev), -ENOSPC);
	assert_int_equal(lien_recording_close(rec), -ENOSPC);
}

static void test_flush(void **state)
{
	struct lien_recording *rec;
	struct lien_event ev;
	unsigned int i, count;

	(void)state;
	assert_int_equal(lien_recording_create(path, &rec), 0);
	for (i = 0; i < 5; i++) {
		ev = event(i);
		assert_int_equal(lien_recording_write(rec, &ev), 0);
	}
	assert_int_equal(lien_recording_flush(rec), 0);
	assert_int_equal(read_events(&count), -ENODATA);
	assert_int_equal(count, 5);
	assert_int_equal(lien_recording_close(rec), 0);
	assert_int_equal(read_events(&count), 0);
	assert_int_equal(count, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_cut_short),
		cmocka_unit_test(test_bit_flips),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_origin),
		cmocka_unit_test(test_bad_records),
		cmocka_unit_test(test_valid),
		cmocka_unit_test(test_succeeded),
		cmocka_unit_test(test_writer_refuses),
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_flush),
	};

	return cmocka_run_group_tests(tests, make_path, remove_path);
}
