/* SPDX-License-Identifier: BSD-2-Clause */
#include <lien/client.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* An agent that answers the n-th request it gets with replies[n], and keeps silent after a NULL. */
struct agent {
	char directory[32], path[64];
	int listener;
	pthread_t thread;
	const char *const *replies;
	unsigned connections, served;
};

static void *serve(void *arg)
{
	struct agent *agent = arg;
	char byte;
	int fd;

	while ((fd = accept(agent->listener, NULL, NULL)) >= 0) {
		agent->connections++;
		while (read(fd, &byte, 1) == 1) {
			const char *reply;

			if (byte != '\n' || !agent->replies[agent->served])
				continue;
			reply = agent->replies[agent->served++];
			if (send(fd, reply, strlen(reply), MSG_NOSIGNAL) < 0)
				break;
			/* A reply that isn't a whole line ends the connection, but for "+". */
			if (reply[strlen(reply) - 1] != '\n' && reply[strlen(reply) - 1] != '+')
				break;
		}
		close(fd);
	}
	return NULL;
}

static void start(struct agent *agent, const char *const *replies)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	memset(agent, 0, sizeof(*agent));
	agent->replies = replies;
	strcpy(agent->directory, "/tmp/lien-test-XXXXXX");
	assert_non_null(mkdtemp(agent->directory));
	snprintf(agent->path, sizeof(agent->path), "%s/agent.sock", agent->directory);
	strcpy(address.sun_path, agent->path);
	agent->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(agent->listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(agent->listener, 4), 0);
	assert_int_equal(pthread_create(&agent->thread, NULL, serve, agent), 0);
}

static void stop(struct agent *agent)
{
	shutdown(agent->listener, SHUT_RDWR);
	pthread_join(agent->thread, NULL);
	close(agent->listener);
	unlink(agent->path);
	rmdir(agent->directory);
}

static int ask(struct lien_client *client, json_t **result)
{
	json_t *request = json_pack("{s:s}", "op", "ps");
	int err = lien_client_call(client, request, result);

	json_decref(request);
	return err;
}

static void count_progress(const json_t *progress, void *arg)
{
	*(unsigned *)arg += json_integer_value(json_object_get(progress, "done"));
}

static void makes_calls_on_one_connection(void **state)
{
	static const char *const replies[] = {"{\"ok\": true, \"result\": {\"a\": 1}}\n",
		"{\"progress\": {\"done\": 1}}\n{\"progress\": {\"done\": 2}}\n"
		"{\"ok\": true, \"result\": {\"a\": 2}}\n",
		"{\"ok\": false, \"error\": \"no such process\"}\n", "{\"ok\": true}\n", NULL};
	struct lien_client *client;
	struct agent agent;
	unsigned progress = 0;
	json_t *result;

	(void)state;
	start(&agent, replies);
	client = lien_client_new(agent.path);
	assert_string_equal(lien_client_path(client), agent.path);
	assert_int_equal(lien_client_connect(client), 0);
	assert_int_equal(lien_client_connect(client), 0);
	assert_int_equal(ask(client, &result), 0);
	assert_int_equal(json_integer_value(json_object_get(result, "a")), 1);
	json_decref(result);
	lien_client_on_progress(client, count_progress, &progress);
	assert_int_equal(ask(client, &result), 0);
	assert_int_equal(json_integer_value(json_object_get(result, "a")), 2);
	assert_int_equal(progress, 3);
	json_decref(result);
	assert_int_equal(ask(client, &result), -EREMOTEIO);
	assert_string_equal(lien_client_error(client), "no such process");
	assert_int_equal(ask(client, NULL), 0);
	lien_client_free(client);
	assert_int_equal(agent.connections, 1);
	stop(&agent);
}

static void connects_anew_after_failures(void **state)
{
	static const char *const replies[] = {"garbage\n", "{\"ok\": tr", "{\"ok\": true}\n", NULL};
	struct lien_client *client;
	struct agent agent;

	(void)state;
	start(&agent, replies);
	client = lien_client_new(agent.path);
	assert_int_equal(ask(client, NULL), -EPROTO);
	assert_non_null(strstr(lien_client_error(client), agent.path));
	assert_int_equal(ask(client, NULL), -ECONNRESET);
	assert_int_equal(ask(client, NULL), 0);
	lien_client_free(client);
	stop(&agent);
}

static void gives_up_in_time(void **state)
{
	/* Progress does not prolong the call. */
	static const char *const replies[] = {"{\"progress\": {\"done\": 1}}\n", NULL};
	struct lien_client *client;
	struct agent agent;

	(void)state;
	start(&agent, replies);
	client = lien_client_new(agent.path);
	lien_client_timeout(client, 100);
	assert_int_equal(ask(client, NULL), -ETIMEDOUT);
	assert_non_null(strstr(lien_client_error(client), "within 100 ms"));
	assert_int_equal(ask(client, NULL), -ETIMEDOUT);
	lien_client_free(client);
	stop(&agent);
}

/* A backlog that is full: connect() itself waits. */
static void gives_up_connecting(void **state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char directory[] = "/tmp/lien-test-XXXXXX";
	struct lien_client *clients[8];
	int listener, err = 0, i;

	(void)state;
	assert_non_null(mkdtemp(directory));
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/agent.sock", directory);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 1), 0);
	for (i = 0; i < 8 && !err; i++) {
		clients[i] = lien_client_new(address.sun_path);
		lien_client_timeout(clients[i], 100);
		err = lien_client_connect(clients[i]);
	}
	assert_int_equal(err, -ETIMEDOUT);
	while (i)
		lien_client_free(clients[--i]);
	close(listener);
	unlink(address.sun_path);
	rmdir(directory);
}

static void hands_over_the_stream(void **state)
{
	static const char *const replies[] = {
		"{\"ok\": true, \"result\": {\"format\": 1}}\nbinary\n+", NULL};
	struct lien_client *client;
	char bytes[16] = "";
	size_t size = 0;
	struct agent agent;
	void *buffered;
	json_t *result;
	int fd;

	(void)state;
	start(&agent, replies);
	client = lien_client_new(agent.path);
	assert_int_equal(lien_client_take_stream(client, &fd, &buffered, &size), -ENOTCONN);
	assert_int_equal(ask(client, &result), 0);
	json_decref(result);
	assert_int_equal(lien_client_take_stream(client, &fd, &buffered, &size), 0);
	memcpy(bytes, buffered, size);
	while (size < 8) {
		ssize_t n = read(fd, bytes + size, 8 - size);

		assert_true(n > 0);
		size += n;
	}
	assert_string_equal(bytes, "binary\n+");
	free(buffered);
	close(fd);
	lien_client_free(client);
	stop(&agent);
}

static void names_the_remedy(void **state)
{
	struct lien_client *client = lien_client_new("/nowhere/agent.sock");

	(void)state;
	assert_int_equal(ask(client, NULL), -ENOENT);
	assert_string_equal(lien_client_error(client),
		"no agent listens on /nowhere/agent.sock: start one with `lien agent` (as root)");
	lien_client_free(client);
	setenv("LIEN_SOCKET", "/elsewhere", 1);
	client = lien_client_new(NULL);
	assert_string_equal(lien_client_path(client), "/elsewhere");
	lien_client_free(client);
	unsetenv("LIEN_SOCKET");
	client = lien_client_new(NULL);
	assert_string_equal(lien_client_path(client), LIEN_CLIENT_SOCKET);
	lien_client_free(client);
	lien_client_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(makes_calls_on_one_connection),
		cmocka_unit_test(connects_anew_after_failures),
		cmocka_unit_test(gives_up_in_time),
		cmocka_unit_test(gives_up_connecting),
		cmocka_unit_test(hands_over_the_stream),
		cmocka_unit_test(names_the_remedy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
