// SPDX-License-Identifier: BSD-2-Clause
#include "agent/daemon/run.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/daemon/answers.h"
#include "agent/join/join.h"
#include "agent/processes/contexts.h"
#include "agent/daemon/loop.h"
#include "agent/core/node.h"
#include "agent/core/open_files.h"
#include "agent/core/privileges.h"
#include "agent/daemon/others.h"
#include "agent/daemon/requests.h"
#include "agent/daemon/together.h"
#include "agent/daemon/resume.h"
#include "agent/processes/watch.h"
#include "agent/orders/orders.h"
#include "agent/server/server.h"
#include "agent/processes/probing.h"
#include "agent/processes/sites.h"
#include "loader/discover/timeout.h"

/* Jobs wait for the agent's main thread and for the threads that look for it, so these run before
 * whatever keeps the processors busy. Slow work runs at the usual priority (setpriority()). */
#define NICE (-10)

static void signal_ready(struct lien_source *source, uint32_t events)
{
	struct lien_agent *agent =
		(void *)((char *)source - __builtin_offsetof(struct lien_agent, signals));
	struct signalfd_siginfo info;

	(void)events;
	/* SIGCONT is blocked only so that was_stopped() sees it. */
	if (read(source->fd, &info, sizeof(info)) == sizeof(info) && info.ssi_signo != SIGCONT)
		agent->stopping = true;
}

static int watch_signals(struct lien_agent *agent)
{
	/* A signal from a terminal, a limit or a mistake must not end the agent: it holds the state
	 * of every job on the node. SIGTSTP and SIGQUIT keep their effect for users who type them.
	 */
	static const int ignored[] = {SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM,
		SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGTTIN, SIGTTOU, SIGXFSZ};
	sigset_t set;
	size_t i;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGCONT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	for (i = SIGRTMIN; i <= (size_t)SIGRTMAX; i++)
		signal(i, SIG_IGN);
	agent->signals.fd = signalfd(-1, &set, SFD_CLOEXEC);
	agent->signals.ready = signal_ready;
	agent->signals.name = "signals";
	return agent->signals.fd < 0 ? -errno : lien_agent_watch(agent, &agent->signals, EPOLLIN);
}

/* The exports of a whole job pass through here as open files. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void on_skipped(void *context, const struct lien_skipped_file *file)
{
	(void)context;
	lien_log(4, "cannot probe %s: %s", file->path, file->reason);
}

static const struct lien_server_calls requests = {
	lien_request, lien_together_ended, lien_request_done};

static int start(struct lien_agent *agent, const struct lien_agent_config *config)
{
	struct lien_probes_config probes = {
		.no_multi = config->no_multi,
		.no_bound = config->no_bound,
		.ring_bytes = config->ring_mib << 20,
		.threads = config->threads,
		.on_event = lien_ring_record,
		.on_skipped = on_skipped,
		.context = agent,
	};
	char error[400];
	ino_t control;
	int err;

	agent->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (agent->epoll < 0)
		return -errno;
	err = lien_graph_new(&agent->graph);
	if (err)
		return err;
	lien_graph_on_process_end(agent->graph, lien_watch_process_end, agent);
	err = watch_signals(agent);
	if (err)
		return err;
	err = lien_join_start(agent, !config->no_ras);
	if (err)
		return err;
	err = lien_sites_start(agent);
	if (err)
		return err;
	err = lien_node_start(agent);
	if (err)
		return err;
	err = lien_open_files_start(agent);
	if (err)
		return err;
	err = lien_probing_start(agent);
	if (err)
		return err;
	err = lien_others_start(agent);
	if (err)
		return err;
	err = lien_server_start(agent, config->socket, &requests);
	if (err)
		return err;
	err = lien_resume_read(agent, config, &probes);
	if (err)
		return err;
	err = lien_probes_open(&agent->probes, &probes, error, sizeof(error));
	if (err) {
		lien_log(3, "%s", error);
		return err;
	}
	err = lien_resume_begin(agent, probes.new_journal);
	if (err)
		return err;
	lien_probes_forget_control_files(agent->probes);
	err = lien_ring_start(agent);
	/* The library of this build, whatever is installed later. */
	agent->control = config->control ? open(config->control, O_RDONLY | O_CLOEXEC) : -1;
	if (!err && config->control)
		lien_probes_add_control_file(agent->probes, config->control, &control);
	if (!err)
		err = lien_watch_start(agent, config->libraries);
	if (!err)
		lien_resume_finish(agent);
	return err;
}

/* Gives up the rights that were needed only to start. */
static void give_up_rights(const struct lien_agent *agent)
{
	int kept;

	lien_timeout_dismiss();
	kept = lien_privileges_try_drop(!strcmp(lien_probes_method(agent->probes), "uprobe-multi"));

	if (kept == 1)
		lien_log(5, "this kernel lets nobody attach probes one by one without "
			    "CAP_SYS_ADMIN: it "
			    "is kept");
	if (kept < 0)
		lien_log(4, "cannot give up the rights that are no longer needed: %s",
			strerror(-kept));
}

static const struct lien_above above = {
	.event = lien_ring_event,
	.consume = lien_ring_consume,
	.look = lien_watch_look,
	.control_file = lien_probing_control,
	.files_read = lien_server_resume_quiet,
	.reply = {[LIEN_ASK_WALK] = lien_walks_reply, [LIEN_ASK_END] = lien_detach_reply},
	.restore = lien_orders_restore,
	.adopt_plan = lien_adopt_plan,
	.adopt_answered = lien_adopt_answered,
	.adopt_done = lien_attach_adopted,
};

int lien_agent_run(const struct lien_agent_config *config)
{
	struct lien_agent *agent = calloc(1, sizeof(*agent));
	uint32_t random;
	int err;

	if (!agent)
		return -ENOMEM;
	agent->above = &above;
	agent->t_start = lien_now_ns();
	if (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random))
		random = agent->t_start;
	agent->token_base = (uint64_t)random << 32;
	agent->prepare_percent = config->prepare_percent;
	agent->prepare_limited = config->prepare_limited;
	agent->no_attach = config->no_attach;
	agent->has_metrics_user = config->has_metrics_user;
	agent->metrics_user = config->metrics_user;
	agent->on_stop = config->on_stop;
	agent->host_limit = config->host_limit;
	lien_host_files_find(&agent->host);
	raise_file_limit();
	setpriority(PRIO_PROCESS, 0, NICE);
	mallopt(M_ARENA_MAX, 1); /* one arena per thread would take 64 MiB of addresses each */
	lien_privileges_begin();
	err = start(agent, config);
	if (!err) {
		give_up_rights(agent);
		lien_graph_be_patient(agent->graph);
		lien_log(6, "ready: pid %d, socket %s, probes by %s", getpid(), config->socket,
			lien_probes_method(agent->probes));
		lien_loop_run(agent);
		/* The next agent must not take their calls for the application's. */
		lien_orders_finish(agent);
		lien_agent_consume(agent);
		lien_log(6, "stopped");
	}
	lien_server_stop(agent);
	lien_together_free(agent);
	lien_answers_stop(agent);
	lien_resume_stop(agent, !err);
	lien_sites_stop(agent);
	lien_node_stop(agent);
	lien_open_files_stop(agent);
	lien_probing_stop(agent);
	lien_others_stop(agent);
	lien_join_stop(agent);
	agent->ended = true;
	lien_graph_free(agent->graph);
	lien_probes_close(agent->probes);
	lien_host_files_free(&agent->host);
	if (agent->control >= 0)
		close(agent->control);
	if (agent->signals.fd > 0)
		close(agent->signals.fd);
	if (agent->epoll > 0)
		close(agent->epoll);
	free(agent);
	return err;
}
