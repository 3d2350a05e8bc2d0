// SPDX-License-Identifier: BSD-2-Clause
/* What the control library asks the agent: answers of all kinds, and none. */
#include "control/ask/ask.c" /* before cmocka's fail() */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include <lien/pass_fds.h>

/* --- JSON ------------------------------------------------------------------------------------- */

static char seen[4000];

/* "a.b[2]=VALUE " for each value. */
static void note(void *context, const struct lien_json_piece *path, unsigned depth,
	const struct lien_json_piece *value)
{
	size_t n = strlen(seen);
	unsigned i;

	assert_ptr_equal(context, seen);
	for (i = 0; i < depth; i++)
		if (path[i].at)
			n += snprintf(seen + n, sizeof(seen) - n, "%s%.*s", i ? "." : "",
				(int)path[i].length, path[i].at);
		else
			n += snprintf(seen + n, sizeof(seen) - n, "[%zu]", path[i].length);
	snprintf(seen + n, sizeof(seen) - n, "=%.*s ", (int)value->length, value->at);
}

static int scan(const char *text)
{
	char *copy = malloc(strlen(text) + !text[0]); /* a byte too far is noticed */
	int result;

	memcpy(copy, text, strlen(text));
	seen[0] = '\0';
	result = json_scan(copy, strlen(text), note, seen);
	free(copy);
	return result;
}

static void test_json(void **state)
{
	(void)state;
	assert_int_equal(
		scan(" { \"a\" : 1, \"b\":{\"c\":[true,{\"d\":\"x\\\"y\"}, [ ]]},\"e\":{} }\n"), 0);
	assert_string_equal(seen, "a=1 b.c[0]=true b.c[1].d=x\\\"y ");
	assert_int_equal(scan("[-0.5e+7, 10, null, false, \"\\u00e4\\\\\"]"), 0);
	assert_string_equal(seen, "[0]=-0.5e+7 [1]=10 [2]=null [3]=false [4]=\\u00e4\\\\ ");
	assert_int_equal(scan("7"), 0);
	assert_string_equal(seen, "=7 ");
}

static void test_no_json(void **state)
{
	static const char *const texts[] = {"", " ", "{", "}", "[1,]", "{\"a\"}", "{\"a\":}",
		"{a:1}", "{\"a\":1,}", "[1 2]", "01", "1.", "1e", "-", "+1", "tru", "truer", "nul",
		"\"", "\"\\\"", "\"\\x\"", "\"\\u12g4\"", "\"\\u12", "\"\t\"", "{} {}", "[1]]",
		"{\"a\":1]", "[\"a\":1]", "\xff", "NaN", ".5"};
	char deep[64];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (scan(texts[i]) != -EBADMSG)
			fail_msg("taken for JSON: %s", texts[i]);
	for (i = 1; i < 30; i++) {
		memset(deep, '[', i);
		deep[i] = '1';
		memset(deep + i + 1, ']', i);
		deep[2 * i + 1] = '\0';
		assert_int_equal(scan(deep), i <= LIEN_JSON_DEPTH ? 0 : -EBADMSG);
	}
}

static struct lien_json_piece piece_of(const char *text)
{
	return (struct lien_json_piece){text, strlen(text)};
}

static void test_json_values(void **state)
{
	static const struct {
		const char *text;
		uint64_t number;
	} numbers[] = {{"0", 0}, {"17", 17}, {"18446744073709551607", 18446744073709551607ull},
		{"184467440737095516070", 0}, {"1844674407370955160", 1844674407370955160},
		{"-1", 0}, {"1.5", 0}, {"", 0}};
	struct lien_json_piece piece = piece_of("a\\nb\\\"c\\u0041d\x01\xc3\xa4\\/");
	char text[32];
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		piece = piece_of(numbers[i].text);
		assert_true(lien_json_number(&piece) == numbers[i].number);
	}
	piece = piece_of("a\\nb\\\"c\\u0041d\x01\xc3\xa4\\/");
	lien_json_copy(&piece, text, sizeof(text));
	assert_string_equal(text, "a b\"c d?\xc3\xa4/");
	lien_json_copy(&piece, text, 4);
	assert_string_equal(text, "a b");
}

/* --- an agent --------------------------------------------------------------------------------- */

static struct agent {
	int listener;
	const char *answer; /* NULL: none */
	unsigned pieces;    /* bytes at a time; 0: all at once */
	char asked[100];
	pthread_t thread;
	int done;   /* the client has what it wants */
	int passes; /* a descriptor with each piece of the answer */
} agent;

static void *serve(void *arg)
{
	const size_t size = agent.answer ? strlen(agent.answer) : 0;
	int fd = accept(agent.listener, NULL, NULL);
	size_t sent = 0, n;

	(void)arg;
	agent.asked[read(fd, agent.asked, sizeof(agent.asked) - 1)] = '\0';
	for (; sent < size; sent += n) {
		n = agent.pieces && agent.pieces < size - sent ? agent.pieces : size - sent;
		if (agent.passes) {
			struct iovec part = {(void *)(agent.answer + sent), n};

			if (lien_pass_send(fd, &part, 1, &fd, 1))
				break;
		} else if (send(fd, agent.answer + sent, n, MSG_NOSIGNAL) != (ssize_t)n) {
			break;
		}
	}
	while (!agent.answer && !__atomic_load_n(&agent.done, __ATOMIC_ACQUIRE))
		usleep(1000);
	close(fd);
	return NULL;
}

/* What is asked of an agent that answers so. */
static int passes;

static int asked(const char *answer, unsigned pieces, unsigned limit_ms, struct lien_asked *asked)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int result;

	snprintf(name.sun_path, sizeof(name.sun_path), "/tmp/lien-test-ask-%d", getpid());
	unlink(name.sun_path);
	setenv("LIEN_SOCKET", name.sun_path, 1);
	agent = (struct agent){.listener = socket(AF_UNIX, SOCK_STREAM, 0),
		.answer = answer,
		.pieces = pieces,
		.passes = passes};
	assert_int_equal(bind(agent.listener, (void *)&name, sizeof(name)), 0);
	assert_int_equal(listen(agent.listener, 1), 0);
	assert_int_equal(pthread_create(&agent.thread, NULL, serve, NULL), 0);
	result = lien_ask("{\"op\": \"x\"}\n", limit_ms, asked);
	__atomic_store_n(&agent.done, 1, __ATOMIC_RELEASE);
	pthread_join(agent.thread, NULL);
	close(agent.listener);
	unlink(name.sun_path);
	assert_string_equal(agent.asked, "{\"op\": \"x\"}\n");
	return result;
}

static void test_answers(void **state)
{
	static const char progress[] =
		"{\"progress\": {\"phase\": \"drain\", \"done\": 1, \"of\": 2}}\n";
	struct lien_asked answer = {.fn = note, .context = seen};
	char text[400];
	unsigned pieces;

	(void)state;
	for (pieces = 0; pieces < 30; pieces += 7) {
		seen[0] = '\0';
		snprintf(text, sizeof(text),
			"%s%s{\"ok\": true, \"result\": {\"a\": {\"b\": 3}, \"c\": \"d\"}}\n",
			progress, progress);
		assert_int_equal(asked(text, pieces, 60000, &answer), 0);
		assert_string_equal(seen, "a.b=3 c=d ");
		snprintf(text, sizeof(text),
			"%s{\"ok\": false, \"error\": \"no\", \"code\": \"busy\", \"remedy\": "
			"\"wait\"}\n",
			progress);
		assert_int_equal(asked(text, pieces, 60000, &answer), -EREMOTEIO);
		assert_string_equal(answer.code, "busy");
		assert_string_equal(answer.text, "no: wait");
	}
	assert_int_equal(asked("{\"ok\": 1}\n", 0, 60000, &answer), -EPROTO);
	assert_int_equal(asked("{\"ok\": true", 0, 60000, &answer), -ECONNREFUSED);
	assert_non_null(strstr(answer.text, "hung up"));
}

static unsigned open_files(void)
{
	unsigned fd, count = 0;

	for (fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void test_passed_descriptors(void **state)
{
	const unsigned before = open_files();
	int passed = 77;
	struct lien_asked answer = {.passed = &passed};

	(void)state;
	assert_int_equal(asked("{\"ok\": true, \"result\": {}}\n", 0, 60000, &answer), 0);
	assert_int_equal(passed, -1);
	passes = 1;
	/* The first one is kept. */
	assert_int_equal(asked("{\"ok\": true, \"result\": {}}\n", 9, 60000, &answer), 0);
	assert_true(fcntl(passed, F_GETFD) == FD_CLOEXEC);
	close(passed);
	/* A refusal keeps none, and nor does who has not asked for any. */
	assert_int_equal(asked("{\"ok\": false, \"error\": \"no\", \"code\": \"busy\"}\n", 9, 60000,
				 &answer),
		-EREMOTEIO);
	assert_int_equal(passed, -1);
	answer.passed = NULL;
	assert_int_equal(asked("{\"ok\": true, \"result\": {}}\n", 9, 60000, &answer), 0);
	passes = 0;
	assert_int_equal(open_files(), before);
}

/* It says nothing: the wait has an end. */
static void test_silence(void **state)
{
	struct lien_asked answer = {0};

	(void)state;
	assert_int_equal(asked(NULL, 0, 50, &answer), -ETIMEDOUT);
	assert_string_equal(answer.code, "no-answer");
}

static void test_nobody(void **state)
{
	struct lien_asked answer = {0};
	char path[200];

	(void)state;
	setenv("LIEN_SOCKET", "/nonexistent/agent.sock", 1);
	assert_int_equal(lien_ask("{}\n", 1000, &answer), -ECONNREFUSED);
	assert_string_equal(answer.code, "no-agent");
	assert_non_null(strstr(answer.text, "/nonexistent/agent.sock"));
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	setenv("LIEN_SOCKET", path, 1);
	assert_int_equal(lien_ask("{}\n", 1000, &answer), -ECONNREFUSED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_no_json),
		cmocka_unit_test(test_json_values),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_passed_descriptors),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
