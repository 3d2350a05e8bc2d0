// SPDX-License-Identifier: BSD-2-Clause
/* A link to this very process: who may have an order under way, who waits, who gets the replies. */
#include "agent/link/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lien/pass_fds.h>

struct message {
	struct lien_wire_header header;
	char body[256];
	int fds[LIEN_PASS_FDS_MAX];
	unsigned fds_count;
};

/* pair[0] is the agent's end. */
static int pair[2];
static struct lien_link *to;

static int begin(void **state)
{
	struct lien_control_state shown = {
		.magic = LIEN_WIRE_MAGIC, .version = LIEN_WIRE_VERSION, .pid = getpid()};
	struct stat st;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(fstat(pair[0], &st), 0);
	shown.agent_fd = pair[0];
	shown.agent_ino = st.st_ino;
	assert_int_equal(lien_link_open(&to, getpid(), &shown), 0);
	return 0;
}

static int end(void **state)
{
	(void)state;
	lien_link_close(to);
	close(pair[0]);
	close(pair[1]);
	return 0;
}

static int send_fds(enum lien_asker asker, unsigned type, unsigned seq, const char *body,
	const int *fds, unsigned n)
{
	struct lien_wire_header order = {
		.length = sizeof(order) + strlen(body), .type = type, .seq = seq};

	return lien_link_send(to, asker, &order, body, fds, n);
}

static int send_as(enum lien_asker asker, unsigned type, unsigned seq)
{
	return send_fds(asker, type, seq, "", NULL, 0);
}

/* What has arrived at the process; false: nothing. */
static bool arrived(struct message *message)
{
	ssize_t n;

	memset(message, 0, sizeof(*message));
	n = lien_pass_receive(pair[1], message, offsetof(struct message, fds), message->fds,
		&message->fds_count, MSG_DONTWAIT);
	if (n > 0)
		assert_int_equal(n, message->header.length);
	return n > 0;
}

static void answer(const struct message *order, uint32_t flags, int fd)
{
	struct lien_wire_header reply = {.length = sizeof(reply),
		.type = order->header.type,
		.seq = order->header.seq,
		.flags = flags};
	struct iovec part = {&reply, sizeof(reply)};

	assert_int_equal(lien_pass_send(pair[1], &part, 1, &fd, fd >= 0), 0);
}

static void expect(enum lien_asker asker, unsigned type, unsigned seq)
{
	struct lien_reply reply;

	assert_int_equal(lien_link_receive(to, &reply), 1);
	assert_int_equal(reply.asker, asker);
	assert_int_equal(reply.header.type, type);
	assert_int_equal(reply.header.seq, seq);
	lien_link_discard(&reply);
}

static void test_short_orders_do_not_wait(void **state)
{
	static const enum lien_asker shorts[] = {
		LIEN_ASK_HELLO, LIEN_ASK_GATE, LIEN_ASK_WALK, LIEN_ASK_PREPARE};
	static const enum lien_asker all[] = {LIEN_ASK_HELLO, LIEN_ASK_GATE, LIEN_ASK_WALK,
		LIEN_ASK_PREPARE, LIEN_ASK_END, LIEN_ASK_TRANSACTION};
	struct message order, next;

	(void)state;
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(send_as(all[i], LIEN_WIRE_WALK, 1), 0);
		assert_int_equal(to->asked, all[i]);
		for (unsigned j = 0; j < 4; j++)
			assert_int_equal(send_as(shorts[j], LIEN_WIRE_WALK, 2), -EBUSY);
		assert_int_equal(send_as(all[i], LIEN_WIRE_WALK, 2), -EBUSY);
		assert_int_equal(to->waiting.asker, LIEN_ASK_NOBODY);
		assert_true(arrived(&order));
		assert_false(arrived(&next));
		answer(&order, LIEN_WIRE_LAST, -1);
		expect(all[i], LIEN_WIRE_WALK, 1);
		assert_int_equal(to->asked, LIEN_ASK_NOBODY);
		assert_int_equal(lien_link_next(to), 0);
		assert_false(arrived(&next));
	}
}

/* Its body and files are copied, and it goes when the last reply to the first one has come. */
static void test_order_waits(void **state)
{
	char body[] = "what is to be imported";
	struct message order, late;
	int files[2], again;

	(void)state;
	assert_int_equal(send_as(LIEN_ASK_PREPARE, LIEN_WIRE_PREPARE, 7), 0);
	assert_true(arrived(&order));
	assert_int_equal(pipe(files), 0);
	assert_int_equal(
		send_fds(LIEN_ASK_TRANSACTION, LIEN_WIRE_IMPORT, 8, body, &files[1], 1), 0);
	close(files[1]);
	memset(body, 'x', sizeof(body) - 1);
	assert_int_equal(to->asked, LIEN_ASK_PREPARE);
	assert_int_equal(to->waiting.asker, LIEN_ASK_TRANSACTION);
	assert_int_equal(send_as(LIEN_ASK_END, LIEN_WIRE_END, 9), -EBUSY);

	answer(&order, 0, -1);
	expect(LIEN_ASK_PREPARE, LIEN_WIRE_PREPARE, 7);
	assert_int_equal(lien_link_next(to), 0);
	assert_false(arrived(&late));
	answer(&order, LIEN_WIRE_LAST, -1);
	expect(LIEN_ASK_PREPARE, LIEN_WIRE_PREPARE, 7);
	assert_false(arrived(&late));
	assert_int_equal(lien_link_next(to), 0);
	assert_int_equal(to->waiting.asker, LIEN_ASK_NOBODY);
	assert_int_equal(to->asked, LIEN_ASK_TRANSACTION);
	assert_true(arrived(&late));
	assert_int_equal(late.header.type, LIEN_WIRE_IMPORT);
	assert_string_equal(late.body, "what is to be imported");
	assert_int_equal(late.fds_count, 1);
	assert_int_equal(write(late.fds[0], "!", 1), 1);
	close(late.fds[0]);
	assert_int_equal(read(files[0], body, sizeof(body)), 1);
	assert_int_equal(read(files[0], body, sizeof(body)), 0); /* nobody else has that end */
	close(files[0]);

	/* A late reply to the one before is nobody's. */
	answer(&order, LIEN_WIRE_LAST, -1);
	answer(&late, LIEN_WIRE_LAST, -1);
	expect(LIEN_ASK_TRANSACTION, LIEN_WIRE_IMPORT, 8);
	again = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(again <= files[1]);
	close(again);
}

static void test_cancel(void **state)
{
	struct message order, next;

	(void)state;
	assert_int_equal(send_as(LIEN_ASK_WALK, LIEN_WIRE_WALK, 1), 0);
	assert_true(arrived(&order));
	assert_int_equal(send_as(LIEN_ASK_TRANSACTION, LIEN_WIRE_STAGE, 2), 0);
	lien_link_cancel(to, LIEN_ASK_END);
	assert_int_equal(to->waiting.asker, LIEN_ASK_TRANSACTION);
	lien_link_cancel(to, LIEN_ASK_TRANSACTION);
	assert_int_equal(to->waiting.asker, LIEN_ASK_NOBODY);
	answer(&order, LIEN_WIRE_LAST, -1);
	expect(LIEN_ASK_WALK, LIEN_WIRE_WALK, 1);
	assert_int_equal(lien_link_next(to), 0);
	assert_false(arrived(&next));

	/* What is on the wire stays there. */
	assert_int_equal(send_as(LIEN_ASK_TRANSACTION, LIEN_WIRE_STAGE, 3), 0);
	lien_link_cancel(to, LIEN_ASK_TRANSACTION);
	assert_int_equal(to->asked, LIEN_ASK_TRANSACTION);
	assert_true(arrived(&order));
	answer(&order, LIEN_WIRE_LAST, -1);
	expect(LIEN_ASK_TRANSACTION, LIEN_WIRE_STAGE, 3);
}

static void test_closed_while_one_waits(void **state)
{
	struct message order;
	int files[2];
	char byte;

	(void)state;
	assert_int_equal(send_as(LIEN_ASK_WALK, LIEN_WIRE_WALK, 1), 0);
	assert_true(arrived(&order));
	assert_int_equal(pipe(files), 0);
	assert_int_equal(send_fds(LIEN_ASK_TRANSACTION, LIEN_WIRE_IMPORT, 2, "", &files[1], 1), 0);
	close(files[1]);
	lien_link_close(to);
	to = NULL;
	assert_int_equal(read(files[0], &byte, 1), 0);
	close(files[0]);
	assert_false(arrived(&order));
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_short_orders_do_not_wait),
		TEST(test_order_waits),
		TEST(test_cancel),
		TEST(test_closed_while_one_waits),
	};

	return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
