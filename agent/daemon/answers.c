// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/answers.h"
#include "agent/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/link/link.h"
#include "loader/probes/uprobe_close.h"

#define AT_ONCE_OF_USER 1
#define AT_ONCE_OF_ROOT 8
#define LIMIT_S		120
#define PIECE		(1u << 16)

struct lien_answer {
	struct lien_client_job waited_for;
	LIST_ENTRY(lien_answer) next;
	struct lien_source pipe; /* .fd -1: the answer is complete, the copy has yet to be reaped */
	struct lien_client *client;
	pid_t copy;
	bool any, whole; /* received something; ended with a newline */
};

/* --- in the copy ------------------------------------------------------------------------------ */

/*
 * Closes descriptors that others watch for EOF, or that carry the lock on a process: they would
 * otherwise wait for the copy.
 */
static void close_inherited(struct lien_client *client)
{
	struct lien_agent *agent = client->agent;
	struct lien_process *process;
	struct lien_tracked *tracked;

	close(agent->epoll);
	agent->epoll = -1; /* both share it; the copy must not change it */
	lien_server_close_inherited(agent);
	for (process = lien_graph_first(agent->graph); process;
		process = lien_graph_next(process)) {
		tracked = process->agent;
		if (tracked && tracked->link) {
			lien_link_close(tracked->link);
			tracked->link = NULL;
		}
	}
}

static void write_all(int fd, const char *data, size_t size)
{
	ssize_t n;

	for (; size; data += n, size -= n) {
		n = write(fd, data, size);
		if (n < 0 && errno != EINTR)
			return;
		n = n < 0 ? 0 : n;
	}
}

static void __attribute__((noreturn)) make(struct lien_client *client, json_t *request,
	void (*handle)(struct lien_client *client, json_t *request), int to, pid_t agent)
{
	sigset_t end;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != agent)
		_exit(1);
	alarm(LIMIT_S);
	client->agent->is_copy = true;
	close_inherited(client);
	lien_uprobe_close_inherited();
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_UNBLOCK, &end, NULL);
	setpriority(PRIO_PROCESS, 0, 0);
	client->out_length = client->out_sent = 0;
	handle(client, request);
	if (!client->broken)
		write_all(to, client->out, client->out_length);
	_exit(0);
}

/* --- in the agent ----------------------------------------------------------------------------- */

/* No more data will come. */
static void close_pipe(struct lien_answer *answer)
{
	struct lien_client *client = answer->client;

	if (answer->pipe.fd < 0)
		return;
	/* A copy may share the open file, so closing ours does not remove it from the epoll set. */
	epoll_ctl(client->agent->epoll, EPOLL_CTL_DEL, answer->pipe.fd, NULL);
	close(answer->pipe.fd);
	answer->pipe.fd = -1;
	answer->client = NULL;
	client->job = NULL;
	lien_client_answers(client, -1);
}

/* The client is gone. */
static void drop(struct lien_client_job *job)
{
	struct lien_answer *answer = (struct lien_answer *)job;

	kill(answer->copy, SIGTERM); /* it first closes what it inherited */
	close_pipe(answer);
}

static void reap(struct lien_answer *answer, int how)
{
	if (waitpid(answer->copy, NULL, how) == 0)
		return;
	LIST_REMOVE(answer, next);
	free(answer);
}

static void finish(struct lien_answer *answer)
{
	struct lien_client *client = answer->client;

	close_pipe(answer);
	if (!answer->any)
		lien_reply_error(client, "the answer is too long, or takes too long");
	else if (!answer->whole)
		client->broken = true;
	lien_client_go_on(client);
	reap(answer, WNOHANG);
}

static void pipe_ready(struct lien_source *source, uint32_t events)
{
	struct lien_answer *answer =
		(void *)((char *)source - __builtin_offsetof(struct lien_answer, pipe));
	static char piece[PIECE];
	ssize_t n = read(source->fd, piece, sizeof(piece));

	(void)events;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		finish(answer);
		return;
	}
	answer->any = true;
	answer->whole = piece[n - 1] == '\n';
	lien_reply_write(answer->client, piece, n);
}

static unsigned most_of(const struct lien_client *client)
{
	return client->viewer.one_user ? AT_ONCE_OF_USER : AT_ONCE_OF_ROOT;
}

bool lien_answer_start(struct lien_client *client, json_t *request,
	void (*handle)(struct lien_client *client, json_t *request))
{
	struct lien_agent *agent = client->agent;
	struct lien_answer *answer;
	pid_t self = getpid();
	int ends[2];

	if (lien_client_answers(client, 0) >= most_of(client) || pipe2(ends, O_CLOEXEC))
		return false;
	answer = calloc(1, sizeof(*answer));
	if (answer)
		answer->copy = fork();
	if (answer && !answer->copy)
		make(client, request, handle, ends[1], self);
	close(ends[1]);
	if (!answer || answer->copy < 0) {
		close(ends[0]);
		free(answer);
		return false;
	}
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	answer->pipe = (struct lien_source){.fd = ends[0], .ready = pipe_ready, .name = "answer"};
	answer->client = client;
	LIST_INSERT_HEAD(&agent->answers, answer, next);
	answer->waited_for.drop = drop;
	client->job = &answer->waited_for;
	client->waiting = true;
	lien_client_answers(client, 1);
	if (lien_agent_watch(agent, &answer->pipe, EPOLLIN))
		finish(answer);
	return true;
}

void lien_answers_tick(struct lien_agent *agent)
{
	struct lien_answer *answer, *next;

	LIST_FOREACH_SAFE (answer, &agent->answers, next, next)
		if (answer->pipe.fd < 0)
			reap(answer, WNOHANG);
}

void lien_answers_stop(struct lien_agent *agent)
{
	struct lien_answer *answer;

	while ((answer = LIST_FIRST(&agent->answers))) {
		kill(answer->copy, SIGKILL);
		LIST_REMOVE(answer, next);
		waitpid(answer->copy, NULL, 0);
		free(answer);
	}
}
