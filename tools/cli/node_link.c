// SPDX-License-Identifier: BSD-2-Clause
#include "tools/cli/node_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lien/clock.h>
#include <lien/version.h>

#include "tools/text/complain.h"

#define HELLO_MS       60000
#define BANNER_MAX     ((size_t)1 << 20)
#define LINE_MAX_BYTES ((size_t)1 << 30)
#define READ_SIZE      65536
#define WORDS_SIZE     4096 /* of what a launcher says on stderr, the end */
#define WORDS_MAX      64
#define END_MS	       2000

extern char **environ;

/* --- names ------------------------------------------------------------------------------------ */

static bool add_name(struct lien_nodes *nodes, const char *command, const char *name)
{
	unsigned i;

	if (!*name || *name == '-') {
		lien_complain(command,
			*name ? "--nodes: '%s' is not a node's name" : "--nodes: a name is empty%s",
			name);
		return false;
	}
	for (i = 0; i < nodes->count; i++)
		if (!strcmp(nodes->links[i].name, name)) {
			lien_complain(command, "--nodes names %s twice", name);
			return false;
		}
	if (nodes->count == LIEN_NODES_MAX) {
		lien_complain(command, "--nodes names more than %d nodes", LIEN_NODES_MAX);
		return false;
	}
	nodes->links[nodes->count++] =
		(struct lien_node_link){.name = name, .in = -1, .out = -1, .err = -1};
	return true;
}

static bool check_launch(const struct lien_nodes *nodes, const char *command);

bool lien_nodes_read(
	struct lien_nodes *nodes, const char *command, const char *const *lists, unsigned count)
{
	size_t size = 1;
	char *at, *comma;
	unsigned i;

	for (i = 0; i < count; i++)
		size += strlen(lists[i]) + 1;
	nodes->names = at = calloc(size, 1);
	nodes->links = calloc(LIEN_NODES_MAX, sizeof(*nodes->links));
	if (!at || !nodes->links) {
		lien_complain(command, "out of memory");
		return false;
	}
	for (i = 0; i < count; i++)
		at += sprintf(at, i ? ",%s" : "%s", lists[i]);
	for (at = nodes->names; at; at = comma ? comma + 1 : NULL) {
		comma = strchr(at, ',');
		if (comma)
			*comma = '\0';
		if (!add_name(nodes, command, at))
			return false;
	}
	return check_launch(nodes, command);
}

/* --- launchers -------------------------------------------------------------------------------- */

static void __attribute__((format(printf, 2, 3)))
fail(struct lien_node_link *link, const char *format, ...)
{
	va_list args;

	if (link->problem[0])
		return;
	va_start(args, format);
	vsnprintf(link->problem, sizeof(link->problem), format, args);
	va_end(args);
}

/* Replaces {node} in a word; NULL: out of memory. */
static char *fill_in(const char *word, size_t length, const char *name)
{
	static const char mark[] = "{node}";
	char *text = calloc(1, length * (strlen(name) + 1) + 1), *to = text;
	size_t i = 0;

	while (text && i < length)
		if (i + strlen(mark) <= length && !strncmp(word + i, mark, strlen(mark))) {
			to = stpcpy(to, name);
			i += strlen(mark);
		} else {
			*to++ = word[i++];
		}
	return text;
}

/*
 * Takes the next word, as a shell would without expansions: quotes and backslashes. Returns its
 * length, written to `word` (as long as the text), or -1: there is none; -2: a quote has no end.
 */
static int next_word(const char **text, char *word)
{
	const char *at = *text + strspn(*text, " \t\n");
	char quote = 0, *to = word;

	if (!*at)
		return -1;
	for (; *at && (quote || !strchr(" \t\n", *at)); at++)
		if (*at == quote)
			quote = 0;
		else if (!quote && (*at == '\'' || *at == '"'))
			quote = *at;
		else if (*at == '\\' && quote != '\'' && at[1])
			*to++ = *++at;
		else
			*to++ = *at;
	*to = '\0';
	*text = at;
	return quote ? -2 : to - word;
}

/* Returns the words, which the caller frees, and their count; 0: there are none, -1: a quote has no
 * end. */
static int split(const struct lien_node_launch *launch, const char *name, char **argv)
{
	const char *text = launch->command;
	char *word = malloc(strlen(text) + 1);
	int length = -1, count = 0;

	while (word && count < WORDS_MAX && (length = next_word(&text, word)) >= 0)
		argv[count++] = fill_in(word, length, name);
	free(word);
	return length == -2 ? -1 : count;
}

/* In a group of its own: Ctrl-C is for the coordinator, which ends the rest in order. 0, or an
 * error number. */
static int spawn(char **argv, int in, int out, int err, pid_t *pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, usual;
	int error;

	sigemptyset(&none);
	sigemptyset(&usual);
	sigaddset(&usual, SIGPIPE);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes,
		POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &usual);
	error = posix_spawnp(pid, argv[0], &actions, &attributes, argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return error;
}

static void launch(struct lien_nodes *nodes, struct lien_node_link *link)
{
	char *argv[WORDS_MAX + 5] = {0};
	int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1}, count, error = 0;
	unsigned i;

	link->problem[0] = '\0';
	link->hello = link->lost = false;
	link->to_used = link->from_used = link->words_used = 0;
	link->t_launch = lien_clock_ms();
	count = split(&nodes->launch, link->name, argv);
	argv[count] = strdup(nodes->launch.program);
	argv[count + 1] = strdup("node");
	if (nodes->launch.socket) {
		argv[count + 2] = strdup("--socket");
		argv[count + 3] = strdup(nodes->launch.socket);
	}
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
		fail(link, "cannot start a launcher: %s", strerror(errno));
	} else {
		error = spawn(argv, in[0], out[1], err[1], &link->child);
		if (error)
			fail(link, "cannot start %s: %s", argv[0], strerror(error));
	}
	for (i = 0; argv[i]; i++)
		free(argv[i]);
	if (in[0] >= 0)
		close(in[0]);
	if (out[1] >= 0)
		close(out[1]);
	if (err[1] >= 0)
		close(err[1]);
	link->in = in[1];
	link->out = out[0];
	link->err = err[0];
	if (error || link->in < 0) {
		link->child = 0;
		return;
	}
	fcntl(link->in, F_SETFL, O_NONBLOCK);
	fcntl(link->out, F_SETFL, O_NONBLOCK);
	fcntl(link->err, F_SETFL, O_NONBLOCK);
}

/* Returns false after a message. */
static bool check_launch(const struct lien_nodes *nodes, const char *command)
{
	char *argv[WORDS_MAX + 5] = {0};
	const int count = split(&nodes->launch, "", argv);
	unsigned i;

	for (i = 0; argv[i]; i++)
		free(argv[i]);
	if (count <= 0 || count == WORDS_MAX) {
		lien_complain(command, "--launch: %s",
			!count	    ? "it is empty"
			: count < 0 ? "a quote is not closed"
				    : "it has too many words");
		return false;
	}
	return true;
}

void lien_nodes_start(struct lien_nodes *nodes)
{
	unsigned i;

	signal(SIGPIPE, SIG_IGN);
	for (i = 0; i < nodes->count; i++)
		launch(nodes, &nodes->links[i]);
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Ends the launcher, if it still runs; that ends what it has started. */
static void end(struct lien_node_link *link, bool patient)
{
	const uint64_t until = lien_clock_ms() + END_MS;

	shut(&link->in);
	while (patient && link->child && lien_clock_ms() < until) {
		if (waitpid(link->child, NULL, WNOHANG) == link->child)
			link->child = 0;
		else
			usleep(2000);
	}
	shut(&link->out);
	shut(&link->err);
	if (link->child) {
		kill(-link->child, SIGTERM);
		kill(link->child, SIGKILL);
		waitpid(link->child, NULL, 0);
		link->child = 0;
	}
	link->hello = false;
}

void lien_nodes_restart(struct lien_nodes *nodes, unsigned node)
{
	end(&nodes->links[node], false);
	launch(nodes, &nodes->links[node]);
}

void lien_nodes_free(struct lien_nodes *nodes)
{
	unsigned i;

	for (i = 0; nodes->links && i < nodes->count; i++)
		shut(&nodes->links[i].in); /* all end at once */
	for (i = 0; nodes->links && i < nodes->count; i++) {
		end(&nodes->links[i], true);
		free(nodes->links[i].to);
		free(nodes->links[i].from);
		free(nodes->links[i].words);
		json_decref(nodes->links[i].identity);
	}
	free(nodes->links);
	free(nodes->names);
	*nodes = (struct lien_nodes){0};
}

/* --- lines ------------------------------------------------------------------------------------ */

static bool room_for(char **buffer, size_t *room, size_t size)
{
	size_t more = *room ? *room : READ_SIZE;
	char *grown;

	if (size <= *room)
		return true;
	while (more < size)
		more *= 2;
	grown = realloc(*buffer, more);
	if (!grown)
		return false;
	*buffer = grown;
	*room = more;
	return true;
}

/* Writes as much as the pipe takes. */
static void flush_to(struct lien_node_link *link)
{
	ssize_t n = 0;
	size_t at = 0;

	while (link->in >= 0 && at < link->to_used && n >= 0) {
		n = write(link->in, link->to + at, link->to_used - at);
		at += n > 0 ? n : 0;
	}
	link->to_used -= at;
	memmove(link->to, link->to + at, link->to_used);
}

static void put(struct lien_nodes *nodes, unsigned node, json_t *message)
{
	struct lien_node_link *link = &nodes->links[node];
	char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
	const size_t size = text ? strlen(text) : 0;

	if (text && link->in >= 0 &&
		room_for(&link->to, &link->to_room, link->to_used + size + 1)) {
		memcpy(link->to + link->to_used, text, size);
		link->to[link->to_used + size] = '\n';
		link->to_used += size + 1;
		nodes->lines++;
		flush_to(link);
	}
	free(text);
	json_decref(message);
}

void lien_nodes_send(struct lien_nodes *nodes, unsigned node, unsigned on, const json_t *request)
{
	put(nodes, node, json_pack("{s:i, s:O}", "on", (int)on, "send", request));
}

void lien_nodes_ask(struct lien_nodes *nodes, unsigned node, json_t *question)
{
	put(nodes, node, question);
}

/* Returns false if it is another one's line. */
static bool take_hello(struct lien_node_link *link, json_t *line)
{
	const char *version = json_string_value(json_object_get(line, "version"));
	const char *lien = json_string_value(json_object_get(line, "lien"));
	const json_t *protocol = json_object_get(line, "protocol");

	if (!lien || strcmp(lien, "node") != 0 || !version)
		return false;
	if (strcmp(version, LIEN_VERSION) != 0 ||
		json_integer_value(protocol) != LIEN_NODE_PROTOCOL) {
		fail(link,
			"lien %s is there (protocol %d), and lien %s here (protocol %d): install "
			"the same on all nodes",
			version, (int)json_integer_value(protocol), LIEN_VERSION,
			LIEN_NODE_PROTOCOL);
		return true;
	}
	json_decref(link->identity);
	link->identity = json_incref(line);
	link->hello = true;
	return true;
}

static void take_line(struct lien_nodes *nodes, unsigned node, const char *text, size_t size,
	const struct lien_nodes_calls *calls)
{
	struct lien_node_link *link = &nodes->links[node];
	json_t *line = json_loadb(text, size, 0, NULL);
	const json_t *body = json_object_get(line, "line");
	const char *gone = json_string_value(json_object_get(line, "gone"));
	const unsigned on = json_integer_value(json_object_get(line, "on"));

	if (!link->hello) {
		if (json_is_object(line) && take_hello(link, line) && link->hello && calls->ready)
			calls->ready(calls->context, node);
	} else if (body) {
		nodes->lines++;
		calls->line(calls->context, node, on, body);
	} else if (gone) {
		calls->gone(calls->context, node, on, gone);
	} else if (json_is_object(line) && calls->answer) {
		calls->answer(calls->context, node, line);
	}
	json_decref(line);
}

/* Returns false when the launcher has ended. */
static bool read_out(struct lien_nodes *nodes, unsigned node, const struct lien_nodes_calls *calls)
{
	struct lien_node_link *link = &nodes->links[node];
	size_t at = 0;
	char *end;
	ssize_t n;

	if (!room_for(&link->from, &link->from_room, link->from_used + READ_SIZE) ||
		link->from_used > (link->hello ? LINE_MAX_BYTES : BANNER_MAX))
		return false;
	n = read(link->out, link->from + link->from_used, link->from_room - link->from_used);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	link->from_used += n;
	while (!link->problem[0] && (end = memchr(link->from + at, '\n', link->from_used - at))) {
		take_line(nodes, node, link->from + at, end - link->from - at, calls);
		at = end + 1 - link->from;
	}
	link->from_used -= at;
	memmove(link->from, link->from + at, link->from_used);
	return true;
}

/* Keeps the end of what the launcher says about its troubles. */
static void read_words(struct lien_node_link *link)
{
	char part[WORDS_SIZE / 2];
	const ssize_t n = read(link->err, part, sizeof(part));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		shut(&link->err);
		return;
	}
	if (!link->words)
		link->words = malloc(WORDS_SIZE + 1);
	if (!link->words)
		return;
	if (link->words_used + n > WORDS_SIZE) {
		memmove(link->words, link->words + WORDS_SIZE / 2, WORDS_SIZE / 2);
		link->words_used =
			link->words_used > WORDS_SIZE / 2 ? link->words_used - WORDS_SIZE / 2 : 0;
	}
	memcpy(link->words + link->words_used, part, n);
	link->words_used += n;
}

/* The last line that has words. */
static const char *last_words(struct lien_node_link *link)
{
	char *start;

	if (link->err >= 0)
		read_words(link);
	while (link->words_used && strchr("\r\n ", link->words[link->words_used - 1]))
		link->words_used--;
	if (!link->words_used)
		return NULL;
	link->words[link->words_used] = '\0';
	start = strrchr(link->words, '\n');
	return start ? start + 1 : link->words;
}

static void name_end(struct lien_nodes *nodes, struct lien_node_link *link)
{
	const char *words = last_words(link);
	int status = 0;

	if (link->child && waitpid(link->child, &status, WNOHANG) == link->child)
		link->child = 0;
	if (words)
		fail(link, "%s", words);
	else if (link->hello)
		fail(link, "its launcher has ended");
	else
		fail(link, "'%s' ended (%d) before `lien node` said anything",
			nodes->launch.command, WIFEXITED(status) ? WEXITSTATUS(status) : status);
}

static bool is_lost(struct lien_nodes *nodes, struct lien_node_link *link)
{
	if (link->problem[0])
		return true;
	if (!link->hello && lien_clock_ms() > link->t_launch + HELLO_MS)
		fail(link, "'%s' did not start `lien node` within %d s", nodes->launch.command,
			HELLO_MS / 1000);
	return link->problem[0];
}

void lien_nodes_poll(
	struct lien_nodes *nodes, unsigned timeout_ms, const struct lien_nodes_calls *calls)
{
	struct pollfd *fds = calloc(3 * nodes->count + 1, sizeof(*fds));
	struct lien_node_link *link;
	unsigned i;

	if (!fds)
		return;
	for (i = 0; i < nodes->count; i++) {
		link = &nodes->links[i];
		fds[3 * i] = (struct pollfd){link->out, POLLIN, 0};
		fds[3 * i + 1] = (struct pollfd){link->err, POLLIN, 0};
		fds[3 * i + 2] = (struct pollfd){link->to_used ? link->in : -1, POLLOUT, 0};
	}
	fds[3 * nodes->count] = (struct pollfd){calls->wake_fd, POLLIN, 0};
	poll(fds, 3 * nodes->count + 1, timeout_ms);
	for (i = 0; i < nodes->count; i++) {
		link = &nodes->links[i];
		if (fds[3 * i + 2].revents)
			flush_to(link);
		if (fds[3 * i + 1].revents && link->err >= 0)
			read_words(link);
		if (fds[3 * i].revents && link->out >= 0 && !read_out(nodes, i, calls))
			name_end(nodes, link);
		if (!link->lost && is_lost(nodes, link)) {
			link->lost = true;
			end(link, false);
			calls->lost(calls->context, i);
		}
	}
	free(fds);
}
