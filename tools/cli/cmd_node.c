// SPDX-License-Identifier: BSD-2-Clause
/*
 * One end of `lien offload --nodes`: connections to this node's agent, over standard input and
 * output (docs/protocol.md). It decides nothing, keeps nothing, and ends with its input.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <lien/client.h>
#include <lien/version.h>

#include "tools/cli/commands.h"
#include "tools/cli/node_link.h"
#include "tools/cli/node_slurm.h"
#include "tools/cli/options.h"
#include "tools/text/complain.h"

#define LINE_MAX_BYTES ((size_t)1 << 24) /* of input */
#define READ_SIZE      65536

static const char *const examples[] = {"ssh node7 lien node",
	"what `lien offload --nodes node7,node8 --launch 'ssh {node}'` starts on node7", NULL};

static const struct lien_usage usage = {
	.command = "lien node",
	.arguments = "",
	.summary =
		"Connects its standard input and output with this node's agent. A launcher (ssh, "
		"srun, kubectl exec) starts it for `lien offload --nodes` and its like, with the "
		"rights of the user that it runs as. docs/protocol.md describes its lines.",
	.examples = examples,
};

/* Bytes without a whole line yet. */
struct input {
	int fd;
	char *bytes;
	size_t used, room;
};

struct node {
	const char *socket;
	struct input in;
	struct input on[LIEN_NODE_CONNECTIONS]; /* fd -1: not connected */
};

/* If a write fails, the launcher has ended, and nobody reads. */
static void put(const char *data, size_t size)
{
	ssize_t n;

	for (; size; data += n, size -= n) {
		n = write(STDOUT_FILENO, data, size);
		if (n < 0 && errno == EINTR)
			n = 0;
		else if (n <= 0)
			exit(LIEN_EXIT_FAILURE);
	}
}

static void say(json_t *message)
{
	char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;

	if (text) {
		put(text, strlen(text));
		put("\n", 1);
	}
	free(text);
	json_decref(message);
}

/* Identifies the agent, because two names can mean one node. */
static void say_hello(const struct node *node)
{
	struct lien_client *client = lien_client_new(node->socket);
	char boot[64] = "", agent[64] = "", host[256] = "";
	const char *path = client ? lien_client_path(client) : "";
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	struct stat st;

	if (file && fgets(boot, sizeof(boot), file))
		boot[strcspn(boot, "\n")] = '\0';
	if (file)
		fclose(file);
	if (!stat(path, &st))
		snprintf(agent, sizeof(agent), "%llx:%llx", (unsigned long long)st.st_dev,
			(unsigned long long)st.st_ino);
	gethostname(host, sizeof(host) - 1);
	say(json_pack("{s:s, s:i, s:s, s:s, s:s, s:s}", "lien", "node", "protocol",
		LIEN_NODE_PROTOCOL, "version", LIEN_VERSION, "host", host, "boot", boot, "agent",
		agent));
	lien_client_free(client);
}

static void hang_up(struct node *node, unsigned on, const char *why)
{
	struct input *in = &node->on[on];

	say(json_pack("{s:i, s:s}", "on", (int)on, "gone", why));
	if (in->fd >= 0)
		close(in->fd);
	free(in->bytes);
	*in = (struct input){.fd = -1};
}

/* Returns false after saying why. */
static bool call(struct node *node, unsigned on)
{
	struct lien_client *client = lien_client_new(node->socket);
	size_t size = 0;
	void *bytes = NULL;
	int err = client ? lien_client_connect(client) : -ENOMEM;

	if (!err)
		err = lien_client_take_stream(client, &node->on[on].fd, &bytes, &size);
	if (!err) /* a request is short, and the agent reads */
		fcntl(node->on[on].fd, F_SETFL, fcntl(node->on[on].fd, F_GETFL) & ~O_NONBLOCK);
	free(bytes);
	if (err)
		hang_up(node, on, client ? lien_client_error(client) : "out of memory");
	lien_client_free(client);
	return !err;
}

static void pass_on(struct node *node, unsigned on, const json_t *request)
{
	char *text = json_dumps(request, JSON_COMPACT), *line = NULL;
	const int size = text ? asprintf(&line, "%s\n", text) : -1;
	ssize_t n, at = 0;

	for (; at < size; at += n) {
		n = write(node->on[on].fd, line + at, size - at);
		if (n < 0 && errno == EINTR)
			n = 0;
		else if (n <= 0)
			break;
	}
	if (size < 0 || at < size)
		hang_up(node, on, "the agent has gone");
	free(line);
	free(text);
}

static void take_line(struct node *node, const char *line, size_t size)
{
	json_t *message = json_loadb(line, size, JSON_REJECT_DUPLICATES, NULL);
	const json_t *request = json_object_get(message, "send");
	const json_t *on = json_object_get(message, "on");
	const json_t *job = json_object_get(message, "slurm_job");
	const json_int_t number = json_integer_value(on);

	if (json_is_string(job))
		say(json_pack("{s:o}", "pids", lien_slurm_pids(json_string_value(job))));
	else if (!json_is_integer(on) || number < 0 || number >= LIEN_NODE_CONNECTIONS ||
		 !json_is_object(request))
		say(json_pack("{s:s}", "problem", "a line has the members on and send"));
	else if (node->on[number].fd >= 0 || call(node, number))
		pass_on(node, number, request);
	json_decref(message);
}

/* Reads what is there. Returns false at the end. */
static bool read_more(struct input *in, size_t most)
{
	char *grown;
	ssize_t n;

	if (in->used == most)
		return false;
	if (in->used == in->room) {
		grown = realloc(in->bytes, in->room ? 2 * in->room : READ_SIZE);
		if (!grown)
			return false;
		in->bytes = grown;
		in->room = in->room ? 2 * in->room : READ_SIZE;
	}
	n = read(in->fd, in->bytes + in->used, in->room - in->used);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return true;
	in->used += n > 0 ? n : 0;
	return n > 0;
}

/* Returns the bytes of the next line with its end, 0: there is none. */
static size_t line_of(const struct input *in, size_t at)
{
	const char *end = in->used > at ? memchr(in->bytes + at, '\n', in->used - at) : NULL;

	return end ? end - in->bytes - at + 1 : 0;
}

static void consume(struct input *in, size_t at)
{
	if (!at)
		return;
	in->used -= at;
	memmove(in->bytes, in->bytes + at, in->used);
}

/* Passes on the agent's lines unchanged. */
static void agent_ready(struct node *node, unsigned on)
{
	struct input *in = &node->on[on];
	const bool more = read_more(in, SIZE_MAX);
	size_t at = 0, size;
	char start[32];

	for (; (size = line_of(in, at)); at += size) {
		put(start, snprintf(start, sizeof(start), "{\"on\":%u,\"line\":", on));
		put(in->bytes + at, size - 1);
		put("}\n", 2);
	}
	consume(in, at);
	if (!more)
		hang_up(node, on, "the agent has gone");
}

/* Returns false at the end. */
static bool input_ready(struct node *node)
{
	const bool more = read_more(&node->in, LINE_MAX_BYTES);
	size_t at = 0, size;

	for (; (size = line_of(&node->in, at)); at += size)
		take_line(node, node->in.bytes + at, size);
	consume(&node->in, at);
	return more;
}

static void run(struct node *node)
{
	struct pollfd fds[LIEN_NODE_CONNECTIONS + 1];
	unsigned i;

	for (;;) {
		fds[LIEN_NODE_CONNECTIONS] = (struct pollfd){.fd = node->in.fd, .events = POLLIN};
		for (i = 0; i < LIEN_NODE_CONNECTIONS; i++)
			fds[i] = (struct pollfd){.fd = node->on[i].fd, .events = POLLIN};
		if (poll(fds, LIEN_NODE_CONNECTIONS + 1, -1) < 0 && errno != EINTR)
			return;
		for (i = 0; i < LIEN_NODE_CONNECTIONS; i++)
			if (fds[i].revents && node->on[i].fd >= 0)
				agent_ready(node, i);
		if (fds[LIEN_NODE_CONNECTIONS].revents && !input_ready(node))
			return;
	}
}

int lien_cmd_node(int argc, char **argv)
{
	struct node node = {.in.fd = STDIN_FILENO};
	const struct lien_option options[] = {LIEN_SOCKET_OPTION(&node.socket), {}};
	unsigned i;
	int code;

	if (!lien_options_read(&usage, options, &argc, &argv, &code))
		return code;
	signal(SIGPIPE, SIG_IGN);
	for (i = 0; i < LIEN_NODE_CONNECTIONS; i++)
		node.on[i].fd = -1;
	say_hello(&node);
	run(&node);
	return LIEN_EXIT_OK;
}
