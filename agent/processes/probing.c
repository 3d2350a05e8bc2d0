// SPDX-License-Identifier: BSD-2-Clause
#include "agent/processes/probing.h"
#include "agent/core/jobs.h"
#include "agent/core/proc.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "loader/discover/untrusted.h"
#include "loader/discover/status.h"

#define MS_NS		1000000ull
#define S_NS		1000000000ull
#define FILES_OF_USER	64 /* files probed per user, */
#define FILES_OF_ROOT	1024
#define CONTROL_OF_USER 16 /* and known copies of the control library */
#define CONTROL_OF_ROOT 256
#define WAITING_OF_USER 64 /* files waiting for their turn */
#define WAITING_OF_ROOT 1024
#define BURST		16	    /* files that a user may have probed at once, */
#define RATE		10	    /* and then per second */
#define DROPS_AT_ONCE	16	    /* files dropped at a time: each is logged */
#define WAIT_MS		100	    /* until a user may have another file probed */
#define GO_ON_MS	20	    /* while the kernel puts the probes in place */
#define TRIES		3	    /* to find a mapped file */
#define AGAIN_NS	S_NS	    /* after a process was too slow to be read */
#define UNSAFE_NS	(10 * S_NS) /* until a file is tried again that a process has rewritten */
#define SWEEP_NS	(10 * S_NS)
#define YOUNG_NS	(10 * S_NS) /* not dropped before */

/* A file that a process has mapped. */
struct waiting {
	TAILQ_ENTRY(waiting) next;
	struct lien_event event; /* the event that reported it */
	struct account *account;
	uint64_t t;	/* do not try before */
	bool begun;	/* the kernel is putting its probes in place */
	bool done;	/* nothing is left to try */
	unsigned tries; /* tries that did not find it */
	bool refused;	/* there is no room for it */
	bool unsafe;	/* a process has rewritten it in memory */
};
TAILQ_HEAD(waiting_list, waiting);

/* A user whose files are probed. */
struct account {
	LIST_ENTRY(account) next;
	uint32_t user;
	unsigned waiting; /* in the list, including refused ones */
	unsigned refused; /* in the list */
	unsigned unsafe;  /* in the list */
	unsigned more;	  /* did not fit into the list: their processes stay incomplete */
	unsigned control; /* copies of the control library */
	double tokens;	  /* files that may be probed now */
	uint64_t t_tokens;
	bool room; /* another file may be probed, as of this turn */
};

struct control_copy {
	LIST_ENTRY(control_copy) next;
	ino_t inode;
	struct account *account;
};

struct lien_probing {
	struct waiting_list waiting;
	LIST_HEAD(, account) accounts;
	LIST_HEAD(, control_copy) copies;
	const struct account *last; /* had the last turn */
	bool begun;		    /* some waiting file has begun, as of this turn */
	bool sweep;
	uint64_t t_sweep;
};

/* --- accounts --------------------------------------------------------------------------------- */

static struct account *account_of(struct lien_probing *probing, uint32_t user)
{
	struct account *account;

	LIST_FOREACH (account, &probing->accounts, next)
		if (account->user == user)
			return account;
	account = calloc(1, sizeof(*account));
	if (!account)
		return NULL;
	account->user = user;
	account->tokens = BURST;
	account->t_tokens = lien_now_ns();
	LIST_INSERT_HEAD(&probing->accounts, account, next);
	return account;
}

static unsigned files_of(const struct lien_agent *agent, uint32_t user)
{
	const struct lien_probed_file *file;
	unsigned i, count = 0;

	for (i = 0; (file = lien_probes_each(agent->probes, i)); i++)
		count += file->user == user;
	return count;
}

static unsigned limit_of(uint32_t user)
{
	return user ? FILES_OF_USER : FILES_OF_ROOT;
}

static bool has_room(const struct lien_agent *agent, uint32_t user)
{
	return files_of(agent, user) + lien_probes_attaching(agent->probes, user) < limit_of(user);
}

/* Reading a file's symbols takes time, and everybody else waits for it. */
static void add_tokens(struct account *account, uint64_t now)
{
	account->tokens += (now - account->t_tokens) * (RATE / 1e9);
	account->t_tokens = now;
	if (account->tokens > BURST || !account->user)
		account->tokens = BURST;
}

/* --- waiting files ---------------------------------------------------------------------------- */

static void forget(struct lien_probing *probing, struct waiting *waiting)
{
	waiting->account->waiting--;
	waiting->account->refused -= waiting->refused;
	waiting->account->unsafe -= waiting->unsafe;
	TAILQ_REMOVE(&probing->waiting, waiting, next);
	free(waiting);
}

static bool is_gone(const struct waiting *waiting)
{
	return !lien_proc_runs(waiting->event.pid, waiting->event.start);
}

static dev_t device_of(const struct lien_event *event)
{
	return makedev(event->library.dev_major, event->library.dev_minor);
}

/* The file's probes already count, on some user's account. */
static bool has_begun(const struct lien_agent *agent, dev_t device, ino_t inode)
{
	return lien_probes_file(agent->probes, device, inode) ||
	       lien_probes_is_attaching(agent->probes, device, inode);
}

static void log_refusal(const struct account *account)
{
	if (!account->refused && !account->more)
		lien_log(4,
			"user %u has more copies of CUDA's and NCCL's libraries than are probed of "
			"one user (%u): processes that map others are incomplete",
			account->user, limit_of(account->user));
}

bool lien_probing_mapped(struct lien_agent *agent, const struct lien_event *event)
{
	const uint32_t user = lien_user_of(event->pid);
	struct waiting *waiting;
	struct account *account;

	if (user == LIEN_USER_GONE)
		return true;
	account = account_of(agent->probing, user);
	if (!account)
		return true;
	if (account->waiting >= (user ? WAITING_OF_USER : WAITING_OF_ROOT)) {
		log_refusal(account);
		account->more++;
		return false;
	}
	waiting = calloc(1, sizeof(*waiting));
	if (!waiting)
		return true;
	waiting->event = *event;
	waiting->account = account;
	account->waiting++;
	TAILQ_INSERT_TAIL(&agent->probing->waiting, waiting, next);
	return true;
}

bool lien_probing_found(struct lien_agent *agent, const struct lien_library_file *file)
{
	uint32_t user = file->pid ? lien_user_of(file->pid) : LIEN_PROBES_SYSTEM;

	if (user == LIEN_USER_GONE)
		return true;
	if (file->pid && !has_room(agent, user) && !has_begun(agent, file->device, file->inode))
		return false;
	lien_probes_attach(agent->probes, file->library, file->open_path, file->path, user);
	return true;
}

static bool may_be_probed(const struct lien_agent *agent, const struct waiting *waiting)
{
	const struct lien_event *event = &waiting->event;

	return waiting->account->room || waiting->begun ||
	       has_begun(agent, device_of(event), event->library.inode);
}

/* Returns the next file to try; users take turns. */
static struct waiting *next_waiting(struct lien_agent *agent, uint64_t now)
{
	struct lien_probing *probing = agent->probing;
	struct waiting *waiting, *same = NULL;
	struct account *account;

	LIST_FOREACH (account, &probing->accounts, next) {
		add_tokens(account, now);
		account->room = account->waiting && has_room(agent, account->user);
	}
	probing->begun = false;
	TAILQ_FOREACH (waiting, &probing->waiting, next) {
		account = waiting->account;
		probing->begun |= waiting->begun;
		if (waiting->t > now ||
			(account->tokens < 1 && !waiting->begun && !waiting->done) ||
			(waiting->refused && !may_be_probed(agent, waiting)))
			continue;
		if (account != probing->last)
			return waiting;
		if (!same)
			same = waiting;
	}
	return same;
}

/* Returns true for an error that says nothing about the file. */
static bool may_pass(struct waiting *waiting, int err)
{
	switch (err) {
	case -ETIMEDOUT:
	case -ENOMEM:
	case -EMFILE:
	case -ENFILE:
	case -EAGAIN:
	case -ETXTBSY:
		return true;
	case -ENOENT: /* a mapping that changed since it was listed has another name */
	case -ESRCH:
		return !is_gone(waiting) && ++waiting->tries < TRIES;
	}
	return false;
}

struct mapped_file {
	struct lien_agent *agent;
	const struct lien_event *event;
	uint32_t user;
};

/* Probes a file that a process has mapped, unless it is already probed. The kernel side reports it
 * by name and inode; the process's maps have the path. */
static int attach(const struct lien_maps_entry *entry, void *arg)
{
	const struct mapped_file *file = arg;
	const enum lien_library library = lien_library_of(entry->path);
	struct lien_probes *probes = file->agent->probes;
	char path[512];
	int err;

	if (entry->inode != file->event->library.inode)
		return 0;
	if (!library || library == LIEN_LIB_CONTROL ||
		lien_probes_file(probes, makedev(entry->dev_major, entry->dev_minor), entry->inode))
		return 1;
	err = lien_maps_open_path(file->event->pid, entry, path, sizeof(path));
	if (!err)
		err = lien_probes_attach(probes, library, path, entry->path, file->user);
	return err ? err : 1;
}

static void try_to_attach(struct lien_agent *agent, struct waiting *waiting)
{
	struct waiting_list *list = &agent->probing->waiting;
	struct account *account = waiting->account;
	struct mapped_file file = {agent, &waiting->event, account->user};
	int err = lien_maps_read_code(waiting->event.pid, attach, &file);

	if (!waiting->begun)
		account->tokens--;
	waiting->begun = err == -EINPROGRESS;
	if (!waiting->begun) {
		account->unsafe -= waiting->unsafe;
		waiting->unsafe = err == -ETXTBSY;
		account->unsafe += waiting->unsafe;
	}
	waiting->done = !waiting->begun && !may_pass(waiting, err);
	if (waiting->done)
		return;
	waiting->t = lien_now_ns() + (waiting->begun	       ? GO_ON_MS * MS_NS
					     : waiting->unsafe ? UNSAFE_NS
							       : AGAIN_NS);
	TAILQ_REMOVE(list, waiting, next);
	TAILQ_INSERT_TAIL(list, waiting, next);
}

int lien_probing_wait_ms(struct lien_agent *agent)
{
	if (TAILQ_EMPTY(&agent->probing->waiting))
		return -1;
	if (next_waiting(agent, lien_now_ns()))
		return 0;
	return agent->probing->begun ? GO_ON_MS : WAIT_MS;
}

enum lien_probing_outcome lien_probing_turn(struct lien_agent *agent, struct lien_event *event)
{
	struct waiting *waiting = next_waiting(agent, lien_now_ns());

	if (!waiting)
		return LIEN_PROBING_GOES_ON;
	agent->probing->last = waiting->account;
	*event = waiting->event;
	if (is_gone(waiting)) {
		forget(agent->probing, waiting);
		return LIEN_PROBING_GOES_ON;
	}
	if (waiting->done || lien_probes_file(agent->probes, device_of(&waiting->event),
				     waiting->event.library.inode)) {
		lien_turn_part(agent, "probing", "a probed library");
		forget(agent->probing, waiting);
		return LIEN_PROBING_DONE;
	}
	if (may_be_probed(agent, waiting)) {
		lien_turn_part(agent, "probing", "a library");
		try_to_attach(agent, waiting);
		return waiting->unsafe && !waiting->begun ? LIEN_PROBING_REFUSED
							  : LIEN_PROBING_GOES_ON;
	}
	waiting->refused = true;
	log_refusal(waiting->account);
	waiting->account->refused++;
	return LIEN_PROBING_REFUSED;
}

const struct lien_probed_file *lien_probing_mapped_file(
	const struct lien_agent *agent, const struct lien_library_map *map)
{
	const struct lien_probed_file *file, *other;
	unsigned i;

	file = lien_probes_file(agent->probes, makedev(map->dev_major, map->dev_minor), map->inode);
	/* Some file systems number devices differently in maps and in stat(). */
	for (i = 0; !file && (other = lien_probes_each(agent->probes, i)); i++)
		if (other->inode == map->inode)
			file = other;
	return file;
}

static bool will_be_tried(const struct lien_agent *agent, const struct lien_process *process,
	const struct lien_library_map *map)
{
	const struct waiting *waiting;

	TAILQ_FOREACH (waiting, &agent->probing->waiting, next)
		if (waiting->event.pid == process->pid && !waiting->refused && !waiting->unsafe &&
			waiting->event.library.inode == map->inode)
			return true;
	return false;
}

bool lien_probing_refuses(const struct lien_agent *agent, const struct lien_process *process)
{
	const struct account *account = account_of(agent->probing, lien_user_of(process->pid));
	struct lien_library_map *map;
	enum lien_library library;

	if (!account || !(account->refused + account->more + account->unsafe))
		return false;
	RB_FOREACH (map, lien_library_tree, (struct lien_library_tree *)&process->libraries) {
		library = lien_library_of(map->file->text);
		if ((library == LIEN_LIB_CUDA || library == LIEN_LIB_NCCL) &&
			!lien_probing_mapped_file(agent, map) &&
			!will_be_tried(agent, process, map))
			return true;
	}
	return false;
}

/* --- files that no process maps any more ------------------------------------------------------ */

/* Asks /proc, in a thread: the graph does not have every process that maps a file. */
struct scan {
	struct lien_job job;
	unsigned count;
	struct found {
		struct lien_probed_file file; /* its path is a copy */
		bool used;
	} found[];
};

static int note_mapping(const struct lien_maps_entry *entry, void *arg)
{
	struct scan *scan = arg;
	unsigned i;

	for (i = 0; entry->inode && i < scan->count; i++)
		scan->found[i].used |= scan->found[i].file.inode == entry->inode;
	return 0;
}

/* A process that cannot be read may map all files of its user. */
static void note_unreadable(struct scan *scan, uint32_t pid)
{
	uint32_t user = lien_user_of(pid);
	unsigned i;

	for (i = 0; i < scan->count; i++)
		scan->found[i].used |= scan->found[i].file.user == user ||
				       scan->found[i].file.user == LIEN_PROBES_UNKNOWN;
}

static bool still_names(const struct lien_probed_file *file)
{
	struct stat st;

	return !lien_untrusted_stat(file->path, &st) && st.st_ino == file->inode &&
	       st.st_dev == file->device;
}

static void scan_processes(struct lien_job *job)
{
	struct scan *scan = (struct scan *)job;
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	uint32_t pid;
	unsigned i;
	int err;

	for (i = 0; i < scan->count; i++)
		scan->found[i].used = !proc || (scan->found[i].file.user == LIEN_PROBES_SYSTEM &&
						       still_names(&scan->found[i].file));
	while (proc && (entry = readdir(proc))) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		pid = strtoul(entry->d_name, NULL, 10);
		err = lien_maps_read(pid, note_mapping, scan);
		if (err && err != -ESRCH)
			note_unreadable(scan, pid);
	}
	if (proc)
		closedir(proc);
}

static void scan_free(struct lien_job *job)
{
	struct scan *scan = (struct scan *)job;
	unsigned i;

	for (i = 0; i < scan->count; i++)
		free(scan->found[i].file.path);
	free(scan);
}

static bool is_mapped(const struct lien_agent *agent, ino_t inode)
{
	struct lien_process *process;
	struct lien_library_map *map;

	LIEN_FOREACH_PROCESS (process, agent->graph)
		RB_FOREACH (map, lien_library_tree, &process->libraries)
			if (map->inode == inode)
				return true;
	return false;
}

static void scanned(struct lien_agent *agent, struct lien_job *job)
{
	struct scan *scan = (struct scan *)job;
	const struct lien_probed_file *file;
	unsigned i, n = 0;

	for (i = 0; i < scan->count; i++) {
		file = &scan->found[i].file;
		if (scan->found[i].used || is_mapped(agent, file->inode))
			continue;
		if (++n > DROPS_AT_ONCE) {
			agent->probing->sweep = true; /* the rest a second later */
			agent->probing->t_sweep = lien_now_ns() - SWEEP_NS + S_NS;
			break;
		}
		lien_log(6, "%s is probed no longer: no process maps it", file->path);
		lien_probes_drop(agent->probes, file->device, file->inode);
	}
}

/*
 * Returns the files that no process in the graph maps, to be checked in /proc. NULL: there are
 * none.
 */
static struct scan *scan_new(struct lien_agent *agent)
{
	const struct lien_probed_file *file;
	uint64_t now = lien_now_ns();
	struct scan *scan;
	unsigned i, count;

	for (count = 0; lien_probes_each(agent->probes, count); count++)
		;
	scan = calloc(1, sizeof(*scan) + count * sizeof(scan->found[0]));
	for (i = 0; scan && (file = lien_probes_each(agent->probes, i)); i++) {
		if (is_mapped(agent, file->inode))
			continue;
		if (now - file->t_attached < YOUNG_NS) {
			agent->probing->sweep = true; /* check it again */
			continue;
		}
		scan->found[scan->count].file = *file;
		scan->found[scan->count].file.path = strdup(file->path);
		scan->count += scan->found[scan->count].file.path != NULL;
	}
	if (scan && scan->count)
		return scan;
	free(scan);
	return NULL;
}

static void sweep(struct lien_agent *agent)
{
	struct lien_probing *probing = agent->probing;
	struct control_copy *copy, *next;
	struct scan *scan;

	LIST_FOREACH_SAFE (copy, &probing->copies, next, next)
		if (!is_mapped(agent, copy->inode)) {
			copy->account->control--;
			lien_probes_remove_control_file(agent->probes, copy->inode);
			LIST_REMOVE(copy, next);
			free(copy);
		}
	scan = scan_new(agent);
	if (!scan)
		return;
	scan->job = (struct lien_job){.kind = LIEN_JOB_MAPPED_FILES,
		.work = scan_processes,
		.done = scanned,
		.drop = scan_free};
	lien_job_start(agent, &scan->job);
}

/*
 * Forgets refused files whose process has ended; and the numbers of files that did not fit, once no
 * process is incomplete because of them.
 */
static void tidy(struct lien_agent *agent)
{
	struct waiting *waiting, *next_waiting;
	struct lien_process *process;
	struct account *account;
	bool any = false;

	TAILQ_FOREACH_SAFE(waiting, &agent->probing->waiting, next, next_waiting)
	if ((waiting->refused || waiting->unsafe) && is_gone(waiting))
		forget(agent->probing, waiting);
	for (process = lien_graph_first(agent->graph); process && !any;
		process = lien_graph_next(process))
		any = process->incomplete & LIEN_INCOMPLETE_UNPROBED;
	LIST_FOREACH (account, &agent->probing->accounts, next)
		if (!any)
			account->more = 0;
}

void lien_probing_tick(struct lien_agent *agent)
{
	struct lien_probing *probing = agent->probing;

	lien_probes_attach_tick(agent->probes);
	if ((!probing->sweep && agent->t_process_end < probing->t_sweep) ||
		lien_jobs_pending(agent, LIEN_JOB_MAPPED_FILES) ||
		lien_now_ns() - probing->t_sweep < SWEEP_NS)
		return;
	probing->t_sweep = lien_now_ns();
	probing->sweep = false;
	tidy(agent);
	sweep(agent);
}

/* --- the control library ---------------------------------------------------------------------- */

void lien_probing_control(struct lien_agent *agent, uint32_t pid, const char *path)
{
	struct lien_probing *probing = agent->probing;
	struct control_copy *copy;
	struct account *account;
	uint32_t user = lien_user_of(pid);
	struct stat st, own;

	if (user == LIEN_USER_GONE || lien_untrusted_stat(path, &st))
		return;
	/* The agent's own is known from its start to its end. */
	if (!fstat(agent->control, &own) && own.st_dev == st.st_dev && own.st_ino == st.st_ino)
		return;
	LIST_FOREACH (copy, &probing->copies, next)
		if (copy->inode == st.st_ino)
			return;
	account = account_of(probing, user);
	if (!account || account->control >= (user ? CONTROL_OF_USER : CONTROL_OF_ROOT))
		return;
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return;
	if (lien_probes_add_control_file(agent->probes, path, &copy->inode)) {
		free(copy);
		return;
	}
	copy->account = account;
	account->control++;
	LIST_INSERT_HEAD(&probing->copies, copy, next);
}

/* --- view, start and stop --------------------------------------------------------------------- */

json_t *lien_probing_view(const struct lien_agent *agent, const struct lien_viewer *viewer)
{
	struct lien_process *process;
	struct account *account;
	json_t *users = json_array(), *pids = json_array(), *rewritten = json_array();

	LIST_FOREACH (account, &agent->probing->accounts, next)
		if ((account->refused || account->more) &&
			(lien_viewer_sees(viewer, NULL) || viewer->uid == account->user))
			json_array_append_new(
				users, json_pack("{s:i, s:i, s:i, s:i}", "uid", account->user,
					       "probed", files_of(agent, account->user), "limit",
					       limit_of(account->user), "others",
					       account->refused + account->more));
	LIEN_FOREACH_PROCESS (process, agent->graph) {
		if (!lien_viewer_sees(viewer, process))
			continue;
		if (process->incomplete & LIEN_INCOMPLETE_UNPROBED)
			json_array_append_new(pids, json_integer(process->pid));
		if (process->incomplete & LIEN_INCOMPLETE_REWRITTEN)
			json_array_append_new(rewritten, json_integer(process->pid));
	}
	return json_pack(
		"{s:o, s:o, s:o}", "users", users, "processes", pids, "rewritten", rewritten);
}

int lien_probing_start(struct lien_agent *agent)
{
	struct lien_probing *probing = calloc(1, sizeof(*probing));

	if (!probing)
		return -ENOMEM;
	TAILQ_INIT(&probing->waiting);
	LIST_INIT(&probing->accounts);
	LIST_INIT(&probing->copies);
	probing->sweep = true;
	agent->probing = probing;
	return 0;
}

void lien_probing_stop(struct lien_agent *agent)
{
	struct lien_probing *probing = agent->probing;
	struct control_copy *copy;
	struct account *account;
	struct waiting *waiting;

	if (!probing)
		return;
	while ((waiting = TAILQ_FIRST(&probing->waiting))) {
		TAILQ_REMOVE(&probing->waiting, waiting, next);
		free(waiting);
	}
	while ((copy = LIST_FIRST(&probing->copies))) {
		LIST_REMOVE(copy, next);
		free(copy);
	}
	while ((account = LIST_FIRST(&probing->accounts))) {
		LIST_REMOVE(account, next);
		free(account);
	}
	free(probing);
	agent->probing = NULL;
}
