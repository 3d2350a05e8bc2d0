// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "agent/attach.h"
#include "agent/detach.h"
#include "agent/contexts.h"
#include "agent/event_check.h"
#include "agent/gate.h"
#include "agent/node.h"
#include "agent/prepare.h"
#include "agent/privileges.h"
#include "agent/probing.h"
#include "agent/ras.h"
#include "agent/sites.h"
#include "agent/walks.h"
#include "loader/gate.h"
#include "loader/timeout.h"

#define LOOP_WAIT_MS 20 /* for what a job can hold up */
#define TICK_MS	     1000
#define TICK_FAST_MS 20 /* while something is awaited */
#define TICK_REST_MS 1	/* while a job is being brought to rest */
/*
 * The ring is left alone this long after it was read. Writing to it wakes a reader that has read
 * all, which costs the traced process more than all else that a probe does: not for each event,
 * then. Those who need what has been reported until now (lien_agent_consume()) do not wait.
 */
#define RING_REST_MS 1

void lien_log(int level, const char *format, ...)
{
	va_list args;

	if (!isatty(STDERR_FILENO))
		fprintf(stderr, "<%d>", level);
	fputs("lien agent: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
}

uint64_t lien_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

int lien_agent_watch(struct lien_agent *agent, struct lien_source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	return epoll_ctl(agent->epoll, EPOLL_CTL_ADD, source->fd, &event) ? -errno : 0;
}

struct lien_event lien_agent_event_of(uint32_t pid, uint64_t start, unsigned type)
{
	struct lien_event event;

	memset(&event, 0, sizeof(event));
	event.size = LIEN_EVENT_HEADER;
	event.type = type;
	event.pid = event.tid = pid;
	event.start = start;
	event.t_entry = event.t_return = lien_now_ns();
	return event;
}

/* Anybody maps libibverbs. The end of such a process is not told, so it is not one of ours before
 * it uses CUDA; its mappings are read then. */
static bool of_stranger(struct lien_agent *agent, const struct lien_event *event)
{
	return event->type == LIEN_EVENT_LIBRARY &&
	       lien_library_of(event->library.name) == LIEN_LIB_IBVERBS &&
	       !lien_graph_process(agent->graph, event->pid);
}

void lien_agent_event(struct lien_agent *agent, const struct lien_event *event)
{
	struct lien_process *process;
	bool recording, known;
	uint32_t uid;
	int err;

	if (of_stranger(agent, event)) {
		lien_server_event(agent, event, NULL);
		lien_watch_event(agent, event);
		return;
	}
	lien_resume_note(agent, event);
	/* Before, if it ends with this; after, if it is new. */
	recording = lien_server_recording(agent);
	process = recording ? lien_graph_process(agent->graph, event->pid) : NULL;
	known = process && process->start == event->start;
	uid = known ? process->uid : 0;
	err = lien_graph_apply(agent->graph, event);
	if (err)
		lien_log(3, "event %u of process %u was not applied: %s", event->type, event->pid,
			strerror(-err));
	process = recording && !known ? lien_graph_process(agent->graph, event->pid) : NULL;
	if (process) {
		known = true;
		uid = process->uid;
	}
	if (recording)
		lien_server_event(agent, event, known ? &uid : NULL);
	lien_watch_event(agent, event);
	lien_contexts_event(agent, event);
	lien_walks_event(agent, event);
}

static void on_event(void *context, const struct lien_event *event, size_t size)
{
	struct lien_event copy; /* the ring's memory is not ours to rely on */

	if (size < LIEN_EVENT_HEADER || size > sizeof(copy))
		return;
	memcpy(&copy, event, size);
	if (copy.size == size && lien_event_valid(&copy) && !lien_walks_own(context, &copy) &&
		lien_resume_record(context, &copy))
		lien_agent_event(context, &copy);
}

/* What did not reach us is told to the graph, so that nothing relies on these processes. */
static void note_losses(struct lien_agent *agent)
{
	uint64_t lost = lien_probes_counter(agent->probes, LIEN_COUNTER_LOST), count;
	struct lien_process *process;
	struct lien_event event;
	uint32_t pid;

	if (lost == agent->lost_seen)
		return;
	agent->lost_seen = lost;
	while (lien_probes_lost(agent->probes, &pid, &count)) {
		process = lien_graph_process(agent->graph, pid);
		lien_log(4, "%llu events of process %u were lost: it is incomplete now",
			(unsigned long long)count, pid);
		event = lien_agent_event_of(pid, process ? process->start : 0, LIEN_EVENT_LOST);
		event.size = LIEN_EVENT_SIZE(lost);
		do {
			event.lost.count = count;
			lien_agent_event(agent, &event);
			count = lien_probes_lost_noted(agent->probes, pid, count);
		} while (count);
	}
}

void lien_agent_consume(struct lien_agent *agent)
{
	/* A record can end a transaction, whose end asks for all records: those after it will
	 * follow. */
	if (agent->consuming)
		return;
	agent->consuming = true;
	lien_probes_consume(agent->probes);
	agent->consuming = false;
	note_losses(agent);
}

static void ring_rest(struct lien_agent *agent, bool rest)
{
	struct epoll_event event = {.events = rest ? 0 : EPOLLIN, .data.ptr = &agent->ring};

	epoll_ctl(agent->epoll, EPOLL_CTL_MOD, agent->ring.fd, &event);
	agent->t_ring = rest ? lien_now_ns() + RING_REST_MS * 1000000ull : 0;
}

static void ring_ready(struct lien_source *source, uint32_t events)
{
	struct lien_agent *agent =
		(void *)((char *)source - __builtin_offsetof(struct lien_agent, ring));

	(void)events;
	lien_agent_consume(agent);
	ring_rest(agent, true);
}

static void signal_ready(struct lien_source *source, uint32_t events)
{
	struct lien_agent *agent =
		(void *)((char *)source - __builtin_offsetof(struct lien_agent, signals));
	struct signalfd_siginfo info;

	(void)events;
	if (read(source->fd, &info, sizeof(info)) == sizeof(info))
		agent->stopping = true;
}

static int watch_signals(struct lien_agent *agent)
{
	/* What a terminal, a limit or a mistake sends must not end the agent: it holds the state of
	 * every job on the node. SIGTSTP and SIGQUIT are left to those who type them. */
	static const int ignored[] = {SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM,
		SIGPROF, SIGIO, SIGPWR, SIGSTKFLT, SIGTTIN, SIGTTOU, SIGXFSZ};
	sigset_t set;
	size_t i;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	for (i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	for (i = SIGRTMIN; i <= (size_t)SIGRTMAX; i++)
		signal(i, SIG_IGN);
	agent->signals.fd = signalfd(-1, &set, SFD_CLOEXEC);
	agent->signals.ready = signal_ready;
	return agent->signals.fd < 0 ? -errno : lien_agent_watch(agent, &agent->signals, EPOLLIN);
}

/* Exports of a whole job pass through here as open files. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void tick(struct lien_agent *agent)
{
	note_losses(agent);
	lien_watch_tick(agent);
	lien_orders_tick(agent);
	lien_walks_tick(agent);
	lien_attach_tick(agent);
	lien_detach_tick(agent);
	lien_contexts_tick(agent);
	lien_gate_tick(agent);
	lien_prepare_tick(agent);
	lien_sites_tick(agent);
	lien_probing_tick(agent);
	lien_ras_tick(agent);
	lien_server_tick(agent);
}

static int tick_ms(const struct lien_agent *agent)
{
	enum lien_phase phase = LIEN_PHASE_COUNT;

	if (agent->transaction && !agent->transaction_ended)
		phase = lien_transaction_phase(agent->transaction);
	if (phase == LIEN_PHASE_GATE || phase == LIEN_PHASE_DRAIN)
		return TICK_REST_MS;
	return agent->waking || agent->transaction || agent->walks ||
			       !LIST_EMPTY(&agent->compares) || !LIST_EMPTY(&agent->attaches) ||
			       !LIST_EMPTY(&agent->detaches) || lien_probes_gates(agent->probes)
		       ? TICK_FAST_MS
		       : TICK_MS;
}

/* Until the next tick, the ring or a file that waits to be probed. */
static int sleep_ms(const struct lien_agent *agent, int wait, int probing)
{
	if (agent->t_ring && RING_REST_MS < wait)
		wait = RING_REST_MS;
	return probing >= 0 && probing < wait ? probing : wait;
}

static void loop(struct lien_agent *agent)
{
	uint64_t last_tick = 0, now;
	struct epoll_event event;
	struct lien_source *source;
	int n, wait, probing = 0;

	while (!agent->stopping || agent->transaction) {
		wait = tick_ms(agent);
		/* One at a time: what is done about an event may free the source of another. */
		n = epoll_wait(agent->epoll, &event, 1, sleep_ms(agent, wait, probing));
		if (n > 0) {
			source = event.data.ptr;
			source->ready(source, event.events);
		}
		now = lien_now_ns();
		if (agent->t_ring && now >= agent->t_ring)
			ring_rest(agent, false);
		if (now - last_tick >= wait * 1000000ull) {
			tick(agent);
			last_tick = now;
		}
		probing = lien_probing_turn(agent);
		if (agent->transaction_ended) {
			lien_orders_end(agent);
			agent->resume = true;
		}
		if (agent->resume) {
			agent->resume = false;
			lien_server_resume(agent);
		}
	}
}

static void on_skipped(void *context, const struct lien_skipped_file *file)
{
	(void)context;
	lien_log(4, "cannot probe %s: %s", file->path, file->reason);
}

static int start(struct lien_agent *agent, const struct lien_agent_config *config)
{
	struct lien_probes_config probes = {
		.no_multi = config->no_multi,
		.ring_bytes = config->ring_mib << 20,
		.threads = config->threads,
		.on_event = on_event,
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
	err = lien_ras_start(agent, config);
	if (err)
		return err;
	err = lien_sites_start(agent);
	if (err)
		return err;
	err = lien_node_start(agent);
	if (err)
		return err;
	err = lien_probing_start(agent);
	if (err)
		return err;
	err = lien_server_start(agent, config->socket);
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
	agent->ring.fd = lien_probes_fd(agent->probes);
	agent->ring.ready = ring_ready;
	err = lien_agent_watch(agent, &agent->ring, EPOLLIN);
	/* Of this build, whatever is installed later. */
	agent->control = config->control ? open(config->control, O_RDONLY | O_CLOEXEC) : -1;
	if (!err && config->control)
		lien_probes_add_control_file(agent->probes, config->control, &control);
	if (!err)
		err = lien_watch_start(agent, config->libraries);
	if (!err)
		lien_resume_settle(agent);
	return err;
}

/* What was needed to begin is not needed to go on. */
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
		lien_log(4, "cannot give up the rights that are needed no more: %s",
			strerror(-kept));
}

int lien_agent_run(const struct lien_agent_config *config)
{
	struct lien_agent *agent = calloc(1, sizeof(*agent));
	uint32_t random;
	int err;

	if (!agent)
		return -ENOMEM;
	agent->t_start = lien_now_ns();
	if (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random))
		random = agent->t_start;
	agent->token_base = (uint64_t)random << 32;
	agent->no_prepare = config->no_prepare;
	agent->no_attach = config->no_attach;
	agent->on_stop = config->on_stop;
	agent->host_limit = config->host_limit;
	lien_host_files_find(&agent->host);
	raise_file_limit();
	lien_privileges_begin();
	err = start(agent, config);
	if (!err) {
		give_up_rights(agent);
		lien_timeout_set(LOOP_WAIT_MS);
		lien_log(6, "ready: pid %d, socket %s, probes by %s", getpid(), config->socket,
			lien_probes_method(agent->probes));
		loop(agent);
		/* Their calls must not be taken for the application's by the next agent. */
		lien_orders_wait_for_walks(agent);
		lien_agent_consume(agent);
		lien_log(6, "stopped");
	}
	lien_server_stop(agent);
	lien_resume_stop(agent, !err);
	lien_sites_stop(agent);
	lien_node_stop(agent);
	lien_probing_stop(agent);
	lien_ras_stop(agent);
	agent->ended = true;
	lien_graph_free(agent->graph);
	lien_compare_stop(agent);
	lien_attach_stop(agent);
	lien_detach_stop(agent);
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
