// SPDX-License-Identifier: BSD-2-Clause
#include "tests/fuzz/fake_agent.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/core/proc.h"
#include "agent/daemon/daemon.h"
#include "agent/daemon/move.h"
#include "agent/daemon/requests.h"
#include "agent/nodes/outcomes.h"
#include "agent/join/job.h"
#include "agent/join/join.h"
#include "agent/link/link.h"
#include "agent/orders/orders.h"
#include "agent/server/server.h"
#include "agent/quiesce/gate.h"
#include "agent/quiesce/quiesce.h"
#include "agent/core/node.h"
#include "agent/core/open_files.h"
#include "agent/processes/probing.h"
#include "agent/processes/sites.h"
#include "agent/core/jobs.h"
#include "loader/probes/uprobe.h"
#include "loader/probes/follow.h"
#include "loader/probes/gate.h"
#include "loader/inject/inject.h"
#include "tests/unit/events.h"

uint64_t fake_now;
static struct fake_agent *started_agent;
static struct lien_daemon of_daemon;

/* --- what the agent has besides -----------------------------------------------------------------
 */

void lien_log(int level, const char *format, ...)
{
	char line[1024]; /* formatted all the same: the arguments are a part of what is tested */
	va_list args;

	(void)level;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
}

struct lien_log_size lien_log_size(uint64_t bytes)
{
	(void)bytes;
	return (struct lien_log_size){"0"};
}

uint64_t lien_now_ns(void)
{
	return fake_now += 1000;
}

void lien_turn_part(struct lien_agent *agent, const char *kind, const char *name)
{
	(void)agent, (void)kind, (void)name;
}

bool lien_making_busy(void)
{
	return fake_now % 11 == 0;
}

/* There are no copies of a fuzzer: its graph is small. */
void lien_uprobe_close_inherited(void)
{
	abort();
}

uint64_t lien_proc_start(uint32_t pid)
{
	return process(pid)->start;
}

void lien_proc_command(uint32_t pid, char *command, size_t size)
{
	(void)pid, (void)size;
	command[0] = '\0';
}

bool lien_proc_runs(uint32_t pid, uint64_t start)
{
	return process(pid)->start == start;
}

bool lien_proc_is_ending(uint32_t pid, uint64_t start)
{
	return !lien_proc_runs(pid, start);
}

unsigned lien_quiesce_background(void *agent, uint32_t pid, uint64_t *comms, unsigned max)
{
	(void)agent, (void)pid, (void)comms, (void)max;
	return 0;
}

bool lien_proc_owned(const struct lien_process *of, const struct lien_viewer *viewer)
{
	return lien_viewer_sees(viewer, of);
}

/* Whose pair of sockets it is: all of them are this process's. */
static uint32_t maker_of_pair;
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	int result = __real_getsockopt(fd, level, name, value, size);

	if (maker_of_pair && name == SO_PEERCRED)
		((struct ucred *)value)->pid = maker_of_pair;
	return result;
}

bool lien_proc_uses_cards(uint32_t pid)
{
	return pid % 2;
}

bool lien_proc_awaits_files(uint32_t pid)
{
	return !(pid % 3);
}

char lien_proc_stopped(uint32_t pid)
{
	(void)pid;
	return 0;
}

bool lien_proc_halted(uint32_t pid, char remedy[static LIEN_REMEDY_SIZE])
{
	(void)pid;
	remedy[0] = '\0';
	return false;
}

const char *lien_proc_halted_words(uint32_t pid)
{
	(void)pid;
	return NULL;
}

int lien_proc_check_goes_on(uint32_t pid, char *error, size_t size)
{
	(void)pid, (void)error, (void)size;
	return 0;
}

bool lien_proc_cards(void)
{
	return true;
}

static void process_end(void *context, struct lien_process *process)
{
	struct lien_tracked *tracked = process->agent;
	struct lien_agent *agent = context;

	if (agent->transaction)
		lien_transaction_gone(agent->transaction, process->pid);
	if (!tracked)
		return;
	lien_walk_end(agent, process, "it has ended");
	lien_orders_unlink(tracked);
	free((void *)process->ordinals);
	free(tracked);
	process->agent = NULL;
	process->ordinals = NULL;
}

const struct lien_node *lien_node_now(struct lien_agent *agent)
{
	static const struct lien_node none;

	(void)agent;
	return &none;
}

int lien_ras_start(struct lien_agent *agent)
{
	(void)agent;
	return 0;
}

void lien_ras_stop(struct lien_agent *agent)
{
	(void)agent;
}

void lien_ras_tick(struct lien_agent *agent)
{
	(void)agent;
}

bool lien_ras_refresh(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	(void)agent, (void)viewer;
	return false;
}

int lien_netns_start(struct lien_agent *agent)
{
	(void)agent;
	return 0;
}

void lien_netns_stop(struct lien_agent *agent)
{
	(void)agent;
}

void lien_ipc_connect_request(struct lien_client *client, json_t *request)
{
	(void)request;
	lien_reply_error(client, "no process has it");
}

bool lien_node_refresh(struct lien_agent *agent)
{
	(void)agent;
	return false;
}

void lien_node_ordinals(struct lien_process *process, const struct lien_ordinals *ordinals)
{
	struct lien_ordinals *own = malloc(sizeof(*own));

	*own = *ordinals;
	free((void *)process->ordinals);
	process->ordinals = own;
}

bool lien_sites_resolve(struct lien_agent *agent)
{
	(void)agent;
	return false;
}

/* Where rank 0's memory is, and a reservation that is not mapped. */
int __wrap_lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg);
int __wrap_lien_maps_read(pid_t pid, lien_maps_fn fn, void *arg)
{
	const struct lien_maps_entry entries[] = {
		{.start = VA, .end = VA + 4 * PIECE, .path = ""},
		{.start = VA + 64 * PIECE, .end = VA + 80 * PIECE, .path = ""},
	};
	unsigned i;
	int err = 0;

	(void)pid;
	for (i = 0; i < COUNT(entries) && !err; i++)
		err = fn(&entries[i], arg);
	return err;
}

int lien_open_files_ask(struct lien_agent *agent, uint64_t since)
{
	(void)agent, (void)since;
	return 0;
}

int lien_open_files_last(
	const struct lien_agent *agent, const struct lien_probe_open_file **files, unsigned *count)
{
	static struct lien_probe_open_file file = {.share = 5};

	(void)agent;
	file.pid = getpid();
	*files = &file;
	*count = 1;
	return 0;
}

bool lien_probes_traffic_of(const struct lien_probes *probes, uint32_t pid, uint64_t comm,
	struct lien_probe_traffic *traffic)
{
	(void)probes, (void)pid, (void)comm;
	memset(traffic, 0, sizeof(*traffic));
	return true;
}

int lien_probes_traffic(const struct lien_probes *probes, lien_map_fn *fn, void *context)
{
	const struct lien_probe_comm comm = {.comm = 0x100, .pid = getpid()};
	const struct lien_probe_traffic traffic = {.bytes = 1000, .t_last = 5000};

	(void)probes;
	return fn(context, &comm, &traffic);
}

const struct lien_probed_file *lien_probes_each(const struct lien_probes *probes, unsigned index)
{
	(void)probes, (void)index;
	return NULL;
}

const struct lien_probes_facts *lien_probes_facts(const struct lien_probes *probes)
{
	static const struct lien_probes_facts facts = {.method = "none", .can_follow = true};

	(void)probes;
	return &facts;
}

uint64_t lien_probes_counter(const struct lien_probes *probes, enum lien_probe_counter counter)
{
	(void)probes;
	return counter;
}

bool lien_probes_follows(const struct lien_probes *probes, uint32_t pid)
{
	(void)probes;
	return pid & 1;
}

bool lien_probes_gate_holds(
	const struct lien_probes *probes, uint32_t pid, struct lien_probe_shut *range)
{
	(void)probes, (void)pid, (void)range;
	return false;
}

int lien_gate_step(void *agent, uint32_t pid, enum lien_gate_step step, char *why, size_t size)
{
	(void)agent, (void)pid, (void)step, (void)why, (void)size;
	return 0;
}

const char *lien_quiesce_not_now(void *agent, uint32_t pid)
{
	(void)agent, (void)pid;
	return NULL;
}

enum lien_rest lien_quiesce_look(void *agent, struct lien_resting *resting)
{
	(void)agent;
	return resting->levelling ? LIEN_REST_LEVEL : LIEN_REST_REACHED;
}

void lien_quiesce_rested(void *agent, const uint32_t *pids, unsigned count)
{
	(void)agent, (void)pids, (void)count;
}

const char *const lien_on_use_names[LIEN_ON_USE_IGNORE + 1] = {"wait", "restore", "ignore"};

void lien_gate_set(struct lien_agent *agent, bool all)
{
	(void)agent, (void)all;
}

/* Two parts, whatever there is, and then the rest. */
unsigned lien_parts_next(void *of, const struct lien_transaction_result *result, uint64_t *groups,
	unsigned max, char *why, size_t size)
{
	(void)of, (void)max, (void)size;
	why[0] = 0;
	groups[0] = result->parts + 1;
	return result->parts < 2;
}

void lien_by_comm_moved(struct lien_agent *of)
{
	(void)of;
}

void lien_by_comm_set(struct lien_agent *of, uint32_t pid)
{
	(void)of, (void)pid;
}

void lien_gate_tick(struct lien_agent *agent)
{
	(void)agent;
}

bool lien_gate_others_wait(struct lien_agent *agent)
{
	(void)agent;
	return false;
}

void lien_gate_set_on_use(struct lien_agent *agent, enum lien_on_use on_use)
{
	(void)agent, (void)on_use;
}

void lien_gate_stays(struct lien_agent *agent, uint32_t pid)
{
	(void)agent, (void)pid;
}

json_t *lien_gate_view(struct lien_agent *agent, const struct lien_viewer *viewer)
{
	(void)agent, (void)viewer;
	return json_array();
}

json_t *lien_probing_view(const struct lien_agent *agent, const struct lien_viewer *viewer)
{
	(void)agent, (void)viewer;
	return json_pack("{s:[], s:[]}", "users", "processes");
}

int lien_inject(uint32_t pid, int pidfd, int library_fd, unsigned limit_ms,
	struct lien_inject_result *result, char *why, size_t size)
{
	(void)pid, (void)pidfd, (void)library_fd, (void)limit_ms, (void)result;
	snprintf(why, size, "not here");
	return -EPERM;
}

void lien_probes_ungate(struct lien_probes *probes, uint32_t pid, bool ends)
{
	(void)probes, (void)pid, (void)ends;
}

int lien_job_start(struct lien_agent *agent, struct lien_job *job)
{
	(void)agent;
	if (job->drop)
		job->drop(job);
	else
		free(job);
	return -ENOSYS;
}

unsigned lien_jobs_pending(const struct lien_agent *agent, enum lien_job_kind kind)
{
	(void)agent, (void)kind;
	return 0;
}

bool lien_proc_has_ended(uint32_t pid, uint64_t start)
{
	(void)pid, (void)start;
	return true;
}

int lien_probes_set_control(
	struct lien_probes *probes, uint32_t pid, const struct lien_probe_control *control)
{
	(void)probes, (void)pid, (void)control;
	return 0;
}

bool lien_gate_found(struct lien_agent *agent, struct lien_process *process, bool away, bool shut)
{
	(void)agent, (void)process, (void)away, (void)shut;
	return false;
}

/* Nobody answers while the agent waits: it would wait in vain. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
	int n = __real_poll(fds, count, 0);

	if (!n && timeout > 0)
		fake_now += timeout * 1000000ull;
	return n;
}

/* --- the processes ------------------------------------------------------------------------------
 */

static void require(bool condition, const char *what)
{
	if (condition)
		return;
	perror(what);
	_exit(1); /* no finding: it cannot run here */
}

static int idle_child(void)
{
	pid_t parent = getpid(), pid = fork();

	require(pid >= 0, "fork");
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == parent)
		pause();
	_exit(0);
}

static void stop(void)
{
	char *slash;

	lien_server_stop(&started_agent->agent);
	lien_together_free(&started_agent->agent);
	lien_outcomes_close(started_agent->agent.outcomes, true);
	slash = strrchr(started_agent->socket, '/');
	*slash = '\0';
	rmdir(started_agent->socket);
}

static void on_event(struct lien_agent *agent, const struct lien_event *event)
{
	if (!lien_event_valid(event))
		abort(); /* the agent tells itself no nonsense, whatever it was told */
	(void)!lien_graph_apply(agent->graph, event);
}

static const struct lien_subscriber subscribers[] = {
	{0, UINT_MAX, lien_server_event},
	{0, UINT_MAX, on_event},
	{LIEN_EVENT_LOST, LIEN_EVENT_LOST, lien_walks_lost},
	{0, UINT_MAX, lien_walks_call},
	{0, 0, NULL},
};

static bool consume(struct lien_agent *agent, bool all)
{
	(void)agent, (void)all;
	return true;
}

static void look(struct lien_agent *agent, struct lien_process *process)
{
	(void)agent, (void)process;
}

static const struct lien_above above = {
	.subscribers = subscribers,
	.consume = consume,
	.look = look,
	.reply = {[LIEN_ASK_WALK] = lien_walks_reply, [LIEN_ASK_END] = lien_detach_reply},
	.restore = lien_orders_restore,
};
static const struct lien_server_calls requests = {
	lien_request, lien_together_ended, lien_request_done};

static int child_end; /* the agent's end of the child's pair, by the child's number */

void fake_agent_start(struct fake_agent *fake)
{
	struct lien_agent *agent = &fake->agent;
	int pair[2];

	strcpy(fake->socket, "/tmp/lien-fuzz-XXXXXX");
	require(mkdtemp(fake->socket), fake->socket);
	strcat(fake->socket, "/socket");
	require(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "socketpair");
	child_end = pair[0];
	fake->control[1] = pair[1];
	fake->pid[0] = getpid();
	fake->pid[1] = idle_child();
	agent->above = &above;
	agent->daemon = &of_daemon;
	agent->epoll = epoll_create1(EPOLL_CLOEXEC);
	agent->control = -1;
	agent->token_base = 1ull << 40;
	agent->outcomes = lien_outcomes_open(NULL);
	require(agent->outcomes, "outcomes");
	require(!lien_server_start(agent, fake->socket, &requests), fake->socket);
	started_agent = fake;
	atexit(stop);
}

/* What both hold: own memory, an export, its import with an alias, and plain memory. */
static void two_ranks(const uint32_t *pid)
{
	comm_init(pid[0], 0x100, 0xaa, 0, 2);
	comm_init(pid[1], 0x200, 0xaa, 1, 2);
	tell.outer = LIEN_CALL_NCCL_INIT_RANK;
	buffer(pid[0], 10, VA, PIECE);
	buffer(pid[0], 11, VA + PIECE, PIECE);
	export(pid[0], 10, 5);
	create_on(pid[1], 20, PIECE, device_prop(1));
	reserve(pid[1], VA, PIECE);
	map_rw(pid[1], VA, PIECE, 20);
	imported_buffer(pid[1], 21, 5, VA + PIECE, PIECE);
	reserve(pid[1], VA + 2 * PIECE, PIECE);
	map_rw(pid[1], VA + 2 * PIECE, PIECE, 21);
	tell.outer = 0;
	alloc(pid[0], VA + 4 * PIECE, 1000);
	alloc(pid[1], VA + 4 * PIECE, 1000);
}

static void link_rank(struct fake_agent *fake, unsigned rank, int agent_end)
{
	struct lien_process *of = process(fake->pid[rank]);
	struct lien_control_state state = {.pid = fake->pid[rank], .agent_fd = agent_end};
	struct lien_tracked *tracked = calloc(1, sizeof(*tracked));
	struct stat st;

	fstat(agent_end, &st);
	state.agent_ino = st.st_ino;
	tracked->agent = &fake->agent;
	tracked->pid = fake->pid[rank];
	tracked->place.state = 1;
	of->agent = tracked;
	maker_of_pair = fake->pid[rank];
	errno = -lien_orders_link(&fake->agent, of, &state);
	maker_of_pair = 0;
	require(!errno, "pidfd_getfd");
}

static void drain(int fd)
{
	static char bytes[LIEN_WIRE_MESSAGE_MAX];

	while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) >= 0)
		;
}

void fake_agent_fill(struct fake_agent *fake, bool linked)
{
	int pair[2];
	unsigned i;

	fake_now = 1000000000;
	now = 1000;
	memset(&tell, 0, sizeof(tell));
	require(!lien_graph_new(&graph), "graph");
	fake->agent.graph = graph;
	for (i = 0; i < FAKE_RANKS; i++)
		TELL(LIEN_EVENT_PROCESS, fake->pid[i],
			.process = {.uid = 1000, .complete = 1, .comm = "python3"});
	lien_graph_on_process_end(graph, process_end, &fake->agent);
	two_ranks(fake->pid);
	if (!linked)
		return;
	require(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), "socketpair");
	fake->control[0] = pair[1];
	drain(child_end);
	drain(fake->control[1]);
	link_rank(fake, 0, pair[0]);
	close(pair[0]); /* the link has its own */
	link_rank(fake, 1, child_end);
}

void fake_agent_clear(struct fake_agent *fake)
{
	struct lien_agent *agent = &fake->agent;

	fake_agent_run(fake);
	lien_join_stop(agent);
	lien_graph_free(graph);
	agent->graph = graph = NULL;
	lien_orders_end(agent);
}

int fake_agent_connect(const struct fake_agent *fake)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	strcpy(address.sun_path, fake->socket);
	require(!connect(fd, (void *)&address, sizeof(address)), "connect");
	return fd;
}

void fake_agent_run(struct fake_agent *fake)
{
	struct lien_agent *agent = &fake->agent;
	struct epoll_event event;
	struct lien_source *source;

	for (;;) {
		if (agent->transaction_ended)
			lien_orders_end(agent);
		/* One at a time: what one does may end another. */
		if (epoll_wait(agent->epoll, &event, 1, 0) == 1) {
			source = event.data.ptr;
			source->ready(source, event.events);
		} else if (lien_orders_must_react(agent)) {
			lien_transaction_react(agent->transaction);
		} else if (lien_server_has_requests(agent)) {
			lien_server_request(agent);
		} else if (!agent->transaction_ended) {
			break;
		}
	}
	lien_orders_tick(agent);
	if (lien_orders_must_react(agent))
		lien_transaction_react(agent->transaction);
	lien_join_tick(agent);
	lien_prepare_tick(agent);
	lien_server_tick(agent);
}
