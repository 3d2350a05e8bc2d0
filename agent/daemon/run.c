// SPDX-License-Identifier: BSD-2-Clause
/*
 * The agent's loop, its start and its end. One turn is the work between two looks at the sources.
 * First the loop puts what the kernel side has reported into the graph, a limited number of records
 * per turn. When the graph has everything reported before a source became ready, the loop handles
 * that source. Clients' requests come last, one per turn, users in turn.
 */
#include "agent/daemon/run.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

#include "agent/daemon/daemon.h"
#include "agent/core/agent.h"
#include "agent/core/jobs.h"
#include "agent/core/node.h"
#include "agent/core/privileges.h"
#include "agent/daemon/move.h"
#include "agent/daemon/requests.h"
#include "agent/daemon/resume.h"
#include "agent/graph/event_check.h"
#include "agent/join/join.h"
#include "agent/orders/orders.h"
#include "agent/processes/probing.h"
#include "agent/processes/sites.h"
#include "agent/processes/watch.h"
#include "agent/quiesce/gate.h"
#include "agent/server/server.h"
#include "loader/discover/timeout.h"
#include "loader/probes/gate.h"
#include "loader/probes/make_link.h"

/* --- what the kernel side reports ------------------------------------------------------------- */

/*
 * How long the ring is left alone after it was read. A write to the ring wakes a reader that has
 * caught up, which costs the traced process more than everything else a probe does, so the agent
 * does not wait on the ring for every event. Callers that need everything reported so far
 * (lien_agent_consume()) do not wait.
 */
#define RING_REST_MS 1

/* Limit per turn. A call takes half a microsecond, but a new process takes some milliseconds,
 * because its mappings are read. */
#define RECORDS_AT_ONCE 4096
#define RECORDS_NS	5000000ull
#define CLOCK_EVERY	16
/* Limits for all shares of a turn. */
#define TURN_RECORDS   16384
#define TURN_NS	       20000000ull
#define FINISH_AT_ONCE 4096 /* steps of lien_graph_finish() */
#define LOSSES_AT_ONCE 64   /* processes that have lost events */

/* Any process may map libraries for network cards. The kernel side does not report the end of such
 * a process, so it is not added before it uses CUDA; its mappings are read then. */
static bool of_stranger(struct lien_agent *agent, const struct lien_event *event)
{
	return event->type == LIEN_EVENT_LIBRARY &&
	       lien_library_of(event->library.name) >= LIEN_LIB_IBVERBS &&
	       !lien_graph_process(agent->graph, event->pid);
}

static void keep_event(struct lien_agent *agent, const struct lien_event *event)
{
	int err;

	if (of_stranger(agent, event))
		return;
	lien_resume_note(agent, event);
	err = lien_graph_apply(agent->graph, event);
	if (err)
		lien_log(3, "event %u of process %u was not applied: %s", event->type, event->pid,
			strerror(-err));
}

#define ANY	   0, UINT_MAX
#define ONLY(type) (type), (type)

static const struct lien_subscriber subscribers[] = {
	{ANY, lien_server_event},
	{ANY, keep_event},
	{ANY, lien_watch_call},
	{ONLY(LIEN_EVENT_LIBRARY), lien_watch_library},
	{ONLY(LIEN_EVENT_PROCESS), lien_watch_process},
	{LIEN_CALL_CU_CONTEXT_CREATE, LIEN_CALL_CU_CONTEXT_PRIMARY, lien_watch_context},
	{ONLY(LIEN_EVENT_LOST), lien_walks_lost},
	{ANY, lien_walks_call},
	{0, 0, NULL},
};

/* Has this turn done enough? */
static bool is_enough(struct lien_agent *agent, uint32_t type)
{
	struct lien_turns *turns = &agent->turns;

	if (++turns->turn_records > turns->most_records)
		turns->most_records = turns->turn_records;
	if (lien_graph_unfinished(agent->graph))
		return true;
	if (!agent->daemon->records_left || !--agent->daemon->records_left)
		return true;
	return (type < LIEN_CALL_CU_INIT || agent->daemon->records_left % CLOCK_EVERY == 0) &&
	       lien_now_ns() - agent->daemon->t_records > RECORDS_NS;
}

static int on_record(void *context, const struct lien_event *event, size_t size)
{
	struct lien_agent *agent = context;
	struct lien_event copy; /* the ring's memory may change under us */

	if (size < LIEN_EVENT_HEADER || size > sizeof(copy))
		return is_enough(agent, 0);
	memcpy(&copy, event, size);
	if (copy.size == size && lien_event_valid(&copy) && !lien_walks_own(context, &copy) &&
		lien_resume_record(context, &copy))
		lien_agent_event(context, &copy);
	return is_enough(agent, copy.type);
}

/* Tells the graph about lost events, so that nothing relies on these processes. */
static void note_losses(struct lien_agent *agent)
{
	uint64_t lost = lien_probes_counter(agent->probes, LIEN_COUNTER_LOST), count;
	struct lien_process *process;
	struct lien_event event;
	unsigned i;
	uint32_t pid;

	if (lost == agent->daemon->lost_seen)
		return;
	for (i = 0; i < LOSSES_AT_ONCE && lien_probes_lost(agent->probes, &pid, &count); i++) {
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
	if (i < LOSSES_AT_ONCE) /* otherwise the rest comes in the next turn */
		agent->daemon->lost_seen = lost;
}

/* Applies a turn's share. Returns false if there is no more. */
static bool take_some(struct lien_agent *agent)
{
	int n;

	if (!lien_graph_finish(agent->graph, FINISH_AT_ONCE))
		return true;
	agent->daemon->consuming = true;
	agent->daemon->records_left = RECORDS_AT_ONCE;
	agent->daemon->t_records = lien_now_ns();
	n = lien_probes_consume(agent->probes);
	agent->daemon->consuming = false;
	return n > 0;
}

static bool is_behind(struct lien_agent *agent, uint64_t mark)
{
	return lien_graph_unfinished(agent->graph) || lien_probes_consumed(agent->probes) < mark;
}

static bool consume(struct lien_agent *agent, bool all)
{
	bool behind, more = true;
	uint64_t until;

	/* A record can end a phase of a transaction, which asks for all records: the outer call
	 * applies the rest. */
	if (agent->daemon->consuming || agent->is_copy)
		return !agent->daemon->consuming;
	/* Up to here only: a job may report as fast as the agent reads. */
	until = lien_probes_produced(agent->probes);
	while ((behind = is_behind(agent, until)) && more &&
		(all || (agent->turns.turn_records < TURN_RECORDS &&
				lien_now_ns() - agent->turns.t_begun < TURN_NS)))
		more = take_some(agent);
	note_losses(agent);
	return !behind;
}

/* Applies a turn's share of what was reported. */
static void ring_step(struct lien_agent *agent)
{
	lien_turn_part(agent, "ring", "records");
	take_some(agent);
	note_losses(agent);
}

/*
 * Returns true once the graph has everything that was reported before the first call with this
 * mark. Otherwise applies some of it and returns false; call again until it returns true. *mark is
 * a position in the ring, 0 before the first call and afterwards. Each waiter needs a mark of its
 * own: with another's, it would act on a graph that is older than what it waits for.
 */
static bool caught_up(struct lien_agent *agent, uint64_t *mark)
{
	if (!*mark)
		*mark = lien_probes_produced(agent->probes);
	if (is_behind(agent, *mark)) {
		ring_step(agent);
		return false;
	}
	*mark = 0;
	return true;
}

static void ring_rest(struct lien_agent *agent, bool rest)
{
	struct epoll_event event = {.events = rest ? 0 : EPOLLIN, .data.ptr = &agent->ring};

	epoll_ctl(agent->epoll, EPOLL_CTL_MOD, agent->ring.fd, &event);
	agent->daemon->t_ring = rest ? lien_now_ns() + RING_REST_MS * 1000000ull : 0;
}

static void ring_ready(struct lien_source *source, uint32_t events)
{
	struct lien_agent *agent =
		(void *)((char *)source - __builtin_offsetof(struct lien_agent, ring));

	(void)events;
	ring_step(agent);
	if (!is_behind(agent, lien_probes_produced(agent->probes)))
		ring_rest(agent, true);
}

/* --- the loop --------------------------------------------------------------------------------- */

#define TICK_MS	     1000
#define TICK_FAST_MS 20 /* while waiting for something */
#define TICK_REST_MS 1	/* while bringing a job to rest */
#define RING_MS	     1	/* while ignoring the ring */
#define WAIT_MS	     20 /* for anything that a job can delay */
#define WAITS_MS     40 /* per turn, for reading all processes */
#define MAKING_MS    10 /* per turn, for making probes */
/* Sources handled before a request, if one is waiting. */
#define SOURCES_FIRST 16

static const struct {
	const char *name;
	void (*tick)(struct lien_agent *agent);
} ticks[] = {
	{"ring", note_losses},
	{"watch", lien_watch_tick},
	{"join", lien_join_tick},
	{"gate", lien_gate_tick},
	{"prepare", lien_prepare_tick},
	{"sites", lien_sites_tick},
	{"probing", lien_probing_tick},
	{"rewritten", lien_rewritten_tick},
	{"server", lien_server_tick},
	{"answers", lien_answers_tick},
	{"others", lien_others_tick},
	{"journal", lien_resume_tick},
};

/* The other ticks read the graph, so it has to be up to date. */
static void tick(struct lien_agent *agent)
{
	unsigned i;

	for (i = 0; i < sizeof(ticks) / sizeof(ticks[0]) && !lien_graph_unfinished(agent->graph);
		i++) {
		lien_turn_part(agent, "tick", ticks[i].name);
		ticks[i].tick(agent);
	}
}

static int tick_ms(const struct lien_agent *agent)
{
	if (agent->transaction && !agent->transaction_ended &&
		lien_transaction_is_resting(agent->transaction))
		return TICK_REST_MS;
	return agent->stopping || agent->waking || lien_server_waits_for_quiet(agent) ||
			       agent->transaction || agent->walks || !LIST_EMPTY(&agent->joins) ||
			       lien_probes_facts(agent->probes)->gates ||
			       lien_probes_in_progress(agent->probes)
		       ? TICK_FAST_MS
		       : TICK_MS;
}

/* State that the loop keeps between turns. */
struct turn {
	struct epoll_event event;
	bool has_event;
	bool ticked, probed;  /* in the previous turn */
	uint64_t t_tick;      /* of the last tick */
	unsigned sources;     /* handled while a request waits */
	int probing;	      /* ms until the next file is tried; -1: none is waiting */
	uint64_t tick_mark;   /* a tick that is due waits for the ring; 0: it does not */
	uint64_t orders_mark; /* so does the transaction */
};

/* Is there work, whatever epoll says? */
static bool is_pending(const struct lien_agent *agent, const struct turn *turn)
{
	return lien_server_has_requests(agent) || turn->tick_mark ||
	       lien_graph_unfinished(agent->graph) || lien_orders_must_react(agent);
}

/*
 * Milliseconds until the next tick, until the ring is read again, or until a waiting file is
 * probed.
 */
static int wait_ms(const struct lien_agent *agent, const struct turn *turn, int tick)
{
	if (is_pending(agent, turn))
		return 0;
	if (agent->daemon->t_ring && RING_MS < tick)
		tick = RING_MS;
	return turn->probing >= 0 && turn->probing < tick ? turn->probing : tick;
}

static void handle(struct lien_agent *agent, const struct epoll_event *event)
{
	struct lien_source *source = event->data.ptr;

	if (source->reacts && !caught_up(agent, &source->mark))
		return; /* still ready in a later turn */
	lien_turn_part(agent, "source", source->name);
	source->ready(source, event->events);
}

static void work(struct lien_agent *agent, struct turn *turn)
{
	const bool must_react = lien_orders_must_react(agent);

	if (!must_react)
		turn->orders_mark = 0;
	if (must_react) {
		if (!caught_up(agent, &turn->orders_mark))
			return;
		lien_turn_part(agent, "transaction",
			lien_phase_name(lien_transaction_phase(agent->transaction)));
		lien_transaction_react(agent->transaction);
	} else if (turn->has_event &&
		   (++turn->sources < SOURCES_FIRST || !lien_server_has_requests(agent))) {
		handle(agent, &turn->event);
	} else if (lien_server_has_requests(agent)) {
		turn->sources = 0;
		if (!caught_up(agent, lien_server_mark(agent)))
			return;
		agent->turns.turn_requests++;
		lien_server_request(agent);
	} else if (lien_graph_unfinished(agent->graph)) {
		ring_step(agent);
	}
}

/* A tick has a turn of its own. Two ticks never follow each other while other work is waiting. */
static bool is_due(const struct lien_agent *agent, const struct turn *turn, int every)
{
	if (turn->tick_mark)
		return true;
	if (turn->ticked && (turn->has_event || is_pending(agent, turn) || turn->probing >= 0))
		return false;
	return agent->turns.t_begun - turn->t_tick >= every * 1000000ull;
}

/* False: the turn went into catching up. */
static bool tick_turn(struct lien_agent *agent, struct turn *turn)
{
	/* Held jobs have to hear that we are alive, however much there is to read. */
	lien_turn_part(agent, "tick", "orders");
	lien_orders_tick(agent);
	if (!caught_up(agent, &turn->tick_mark))
		return false;
	tick(agent);
	turn->t_tick = agent->turns.t_begun;
	return true;
}

/* Runs until the agent is asked to stop, no transaction is under way, and no short order: the next
 * agent would take its calls for the application's. */
static void loop_run(struct lien_agent *agent)
{
	struct turn turn = {0};
	int every;

	lien_turns_start(&agent->turns);
	while (!agent->stopping || agent->transaction || lien_orders_finishing(agent)) {
		every = tick_ms(agent);
		turn.probing = lien_probing_wait_ms(agent);
		/* One at a time: handling an event may free the source of another. */
		turn.has_event =
			epoll_wait(agent->epoll, &turn.event, 1, wait_ms(agent, &turn, every)) > 0;
		lien_timeout_limit(WAIT_MS, WAITS_MS);
		lien_making_allow(MAKING_MS);
		lien_turn_begin(&agent->turns);
		if (agent->daemon->t_ring && agent->turns.t_begun >= agent->daemon->t_ring)
			ring_rest(agent, false);
		if (is_due(agent, &turn, every)) {
			turn.ticked = tick_turn(agent, &turn);
		} else {
			turn.ticked = false;
			/* A source that is ready stays so until the next turn, which is not for
			 * probing again. */
			turn.probed = !turn.probed && !turn.probing &&
				      !lien_graph_unfinished(agent->graph);
			if (turn.probed)
				lien_watch_turn(agent);
			else
				work(agent, &turn);
		}
		/* Before a client that waits for the end begins another transaction. */
		if (agent->transaction_ended) {
			lien_orders_end(agent);
			agent->node.t_outdated = lien_now_ns(); /* memory was moved */
		}
		lien_turn_end(&agent->turns);
	}
	lien_turns_stop(&agent->turns);
}

/* --- start and end ---------------------------------------------------------------------------- */

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

static void on_skipped(void *context, const struct lien_skipped_file *file)
{
	(void)context;
	lien_log(4, "cannot probe %s: %s", file->path, file->reason);
}

static const struct lien_server_calls requests = {
	lien_request, lien_together_ended, lien_request_done};

/* The exports of a whole job pass through here as open files. */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int start_modules(struct lien_agent *agent, const struct lien_agent_config *config)
{
	int err;

	agent->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (agent->epoll < 0)
		return -errno;
	err = lien_graph_new(&agent->graph);
	if (err)
		return err;
	lien_graph_on_process_end(agent->graph, lien_watch_process_end, agent);
	err = watch_signals(agent)
		      ?: lien_join_start(agent, !config->no_ras) /* which forks: before threads */
		      ?: lien_jobs_start(agent)
		      ?: lien_sites_start(agent)
		      ?: lien_probing_start(agent);
	if (err)
		return err;
	lien_node_refresh(agent);
	return lien_server_start(agent, config->socket, &requests);
}

static int start(struct lien_agent *agent, const struct lien_agent_config *config)
{
	struct lien_probes_config probes = {
		.no_multi = config->no_multi,
		.no_bound = config->no_bound,
		.ring_bytes = config->ring_mib << 20,
		.threads = config->threads,
		.on_event = on_record,
		.on_skipped = on_skipped,
		.context = agent,
	};
	char error[400];
	ino_t control;
	int err = start_modules(agent, config);

	if (!err)
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
	agent->ring = (struct lien_source){
		.fd = lien_probes_fd(agent->probes), .ready = ring_ready, .name = "ring"};
	err = lien_agent_watch(agent, &agent->ring, EPOLLIN);
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
	kept = lien_privileges_try_drop(lien_probes_facts(agent->probes)->multi);

	if (kept == 1)
		lien_log(5, "this kernel lets nobody attach probes one by one without "
			    "CAP_SYS_ADMIN: it "
			    "is kept");
	if (kept < 0)
		lien_log(4, "cannot give up the rights that are no longer needed: %s",
			strerror(-kept));
}

static const struct lien_above above = {
	.subscribers = subscribers,
	.consume = consume,
	.look = lien_watch_look,
	.control_file = lien_probing_control,
	.files_read = lien_server_resume_quiet,
	.reply = {[LIEN_ASK_WALK] = lien_walks_reply, [LIEN_ASK_END] = lien_detach_reply},
	.restore = lien_orders_restore,
};

int lien_agent_run(const struct lien_agent_config *config)
{
	struct lien_agent *agent = calloc(1, sizeof(*agent));
	struct lien_daemon daemon = {.t_start = lien_now_ns(),
		.has_metrics_user = config->has_metrics_user,
		.metrics_user = config->metrics_user,
		.on_stop = config->on_stop};
	uint32_t random;
	int err;

	if (!agent)
		return -ENOMEM;
	agent->above = &above;
	agent->daemon = &daemon;
	if (syscall(SYS_getrandom, &random, sizeof(random), 0) != sizeof(random))
		random = daemon.t_start;
	agent->token_base = (uint64_t)random << 32;
	agent->prepare_percent = config->prepare_percent;
	agent->prepare_limited = config->prepare_limited;
	agent->no_attach = config->no_attach;
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
			lien_probes_facts(agent->probes)->method);
		loop_run(agent);
		lien_agent_consume(agent);
		lien_log(6, "stopped");
	}
	lien_server_stop(agent);
	lien_together_free(agent);
	lien_answers_stop(agent);
	lien_resume_stop(agent, !err);
	lien_jobs_stop(agent);
	lien_sites_stop(agent);
	lien_node_clear(&agent->node.now);
	lien_files_clear(&agent->open_files.files);
	lien_probing_stop(agent);
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
